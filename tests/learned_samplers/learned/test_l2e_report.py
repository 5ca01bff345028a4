"""Measures of an L2E in mid-run."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import SGHMC
from learned_samplers.learned.l2e import l2e_rule
from learned_samplers.learned.measures import assumption_violation, flat_states, term_contributions
from learned_samplers.learned.network import build_network
from tests.harness import closure_for, small_network
from tests.learned_samplers.learned.flat_keywords import L2E


def next_parameter(state):
    """Where `l2e_rule` takes θ from a state of `flat_states`."""
    values = {key: value for key, value in state.items() if key != "form"}
    theta, gradient, *kept = (values.pop(name) for name in ("parameter", "gradient", "momentum", "averages"))
    return l2e_rule(theta, gradient, None, *kept, **values)[0]


def test_the_states_of_an_optimizer_are_what_its_next_step_uses():
    model, module = small_network(), build_network("adaptive", (6,), zero_last=False)
    groups = [{"params": [model[0].weight], "lr": 0.03}, {"params": [*model[2].parameters(), model[0].bias]}]
    sampler = L2E(groups, 0.1, 100, network=module, feature_set="adaptive", temperature=0.0)
    closure = closure_for(model, sampler)
    with pytest.raises(ValueError, match="sampler"):
        flat_states(sampler)
    for _ in range(3):
        sampler.step(closure)
    closure()
    states = flat_states(sampler)
    assert [s["segments"].lengths for s in states] == [(15,), (10, 2, 5)]
    assert [s["lr"] for s in states] == [0.03, 0.1]
    assert all(0 < assumption_violation(**s).relative <= 1 for s in states)
    assert all(term_contributions(**s)["noise"] == 0 for s in states)
    expected = torch.cat([next_parameter(s) for s in states])
    sampler.step()
    after = torch.cat([p.detach().flatten() for group in sampler.param_groups for p in group["params"]])
    torch.testing.assert_close(after, expected)
    with pytest.raises(TypeError, match="SGHMC"):
        flat_states(SGHMC(model.parameters(), 0.1, 100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_states_are_those_of_the_weights_that_the_rule_moves(dtype):
    """With a prior around the first weights, and where the rule moves float32 copies."""
    p = torch.full((50,), 3.0, dtype=dtype, requires_grad=True)
    settings = {"network": "l2e", "prior_precision": 10.0, "temperature": 0.0, "lr": 1e-3}
    sampler = L2E([{"params": [p], "prior_mean": "initial"}], num_data=1000, **settings)
    for step in range(3):
        p.grad = torch.full((50,), 0.01 * (1 + step), dtype=dtype)
        if step < 2:
            sampler.step()
    (state,) = flat_states(sampler)
    torch.testing.assert_close(state["parameter"], sampler.state[p].get("master", p.detach()).float() - 3.0)
    assert term_contributions(**state)["prior"] < 0.01 * term_contributions(**state)["gradient"]
    expected = next_parameter(state)
    sampler.step()
    torch.testing.assert_close(sampler.state[p].get("master", p.detach()).float(), expected + 3.0)
