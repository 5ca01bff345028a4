"""Use that every learned rule makes of its sampler's settings."""

from dataclasses import fields, replace

import pytest
import torch

from learned_samplers.learned.sampler import REGISTRY
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.base import steps_for
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import LEARNED_RULES, KineticRule
from tests.meta_tasks.toy_tasks import image_task


def other_values(settings, each):
    """Settings that differ in one field, of as many values as the sampler allows."""
    choices = each.metadata["setting"].choices
    for value in (*choices, True, False, 3, 0.4, 2.5, 30.0):
        try:
            changed = replace(settings, **{each.name: value})
        except (ValueError, TypeError):
            continue
        if changed != settings:
            yield changed


def end_of_a_run(name, settings):
    """Where some steps of a random network lead; None if the rule refuses the settings."""
    try:
        rule = LEARNED_RULES[name](settings=settings, hidden=(4,))
    except ValueError:
        return None
    weights = 2 * torch.randn(rule.num_weights, generator=torch.Generator().manual_seed(0))
    task = image_task(lr=0.05, prior_precision=5.0)
    unroll = Unroll(task, rule.for_run(12, 0), BMALoss, Schedule(12, 6, 2), [1], members_per_group=1)
    unroll.advance(weights[None])
    return unroll.parameter


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("L2E", {"form": "residual", "feature_set": "matrix"}),
        ("L2E", {"form": "paper"}),
        ("PrecondL2E", {"feature_set": "adaptive"}),
        ("KineticL2E", {}),
        ("MetaSGMCMC", {}),
    ],
)
def test_every_setting_that_is_not_refused_has_an_effect(name, base):
    settings = REGISTRY[name].settings_class(**base)
    before = end_of_a_run(name, settings)
    for field in fields(settings):
        ends = [end_of_a_run(name, changed) for changed in other_values(settings, field)]
        assert not any(end is not None and torch.equal(end, before) for end in ends), field.name
        refused = [end is None for end in ends]
        assert all(refused) if field.name in LEARNED_RULES[name].fixed else not any(refused), field.name


@pytest.mark.parametrize(
    ("rule", "gradients", "steps"), [(SGHMCRule, 7, 7), (KineticRule, 400, 200), (KineticRule, 7, 3)]
)
def test_steps_for_a_budget_of_gradients(rule, gradients, steps):
    assert steps_for(rule(), gradients) == steps
