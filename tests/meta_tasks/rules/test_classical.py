"""What the rules say of their cost."""

import pytest

from meta_tasks.rules.base import steps_for
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import KineticRule, L2ERule


@pytest.mark.parametrize(
    ("rule", "gradients", "steps"),
    [(SGHMCRule(), 7, 7), (L2ERule(), 400, 400), (KineticRule(), 400, 200), (KineticRule(), 7, 3), (SGHMCRule(), 1, 1)],
)
def test_steps_for_a_budget_of_gradients(rule, gradients, steps):
    assert steps_for(rule, gradients) == steps


def test_a_budget_below_one_step_is_refused():
    with pytest.raises(ValueError, match="gradients=1 are fewer than the 2 that one step of 'KineticL2E' costs"):
        steps_for(KineticRule(), 1)
    with pytest.raises(ValueError, match="gradients=0 are fewer than the 1 that one step of 'sghmc' costs"):
        steps_for(SGHMCRule(), 0)
