"""Measures of an L2E in mid-run, and of its law for the card."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from learned_samplers import SGHMC
from learned_samplers.learned.features import FEATURE_SETS
from learned_samplers.learned.l2e import l2e_rule
from learned_samplers.learned.law import gaussian_law, l2e_law
from learned_samplers.learned.measures import assumption_violation, flat_states, term_contributions
from learned_samplers.learned.network import build_network
from tests.harness import closure_for, small_network
from tests.learned_samplers.learned.flat_keywords import L2E, PrecondL2E

# ------------------------------------------------------------------ of an optimizer


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


def test_the_cards_measurements_of_an_untrained_sampler_are_sghmcs():
    found = l2e_law(lambda p: L2E(p, 0.1, 100, network=None), coordinates=1000, stiffness=(0.2,))
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"] in ("exact", "no bias seen", "O(h)")
    assert abs(found["bias"][0]) < 0.1
    assert found["kinetic_temperature"][0] == pytest.approx(4 / (4 - 0.2 - 0.2), rel=0.05)
    assert found["assumption_violation"] == 0
    assert found["terms"]["alpha"] == 0
    assert found["terms"]["noise"] == pytest.approx(math.sqrt(0.2))


def test_a_linear_step_has_no_error_at_the_smaller_rate():
    """NaN is no JSON: a card could not be written."""

    class Linear(SGHMC):
        def fingerprint(self):
            return {}

    found = gaussian_law(lambda p: Linear(p, 0.1, 100), coordinates=500)
    assert found["error"][0] > 0
    assert found["error"][1] == 0
    json.dumps(found, allow_nan=False)


def test_each_bias_of_a_card_has_the_error_of_its_own_run(monkeypatch):
    result = dict(bias=0.1, refined_bias=0.3, standard_error=0.02, refined_error=0.08, target_variance=2.0)
    result |= dict(kinetic_temperature=1.0, configurational_temperature=1.0)
    report = SimpleNamespace(
        results=[SimpleNamespace(**result)], verdict="biased", passed=False, reason="", lr=0.1, refinement=4.0
    )
    monkeypatch.setattr("learned_samplers.learned.law.check_sampler", lambda *_, **__: report)
    found = gaussian_law(lambda p: PrecondL2E(p, 0.1, 100), stiffness=(0.2,))
    assert found["largest_bias"] == [0.1, 0.3]
    assert found["error"] == [0.01, 0.04]


def test_the_cards_measurements_of_a_random_network_show_its_bias():
    """The residual form with a random network does not leave the posterior: the badge is heuristic for a reason."""
    module = build_network("paper", zero_last=False, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    found = l2e_law(lambda p: L2E(p, 0.1, 100, network=module), coordinates=500, stiffness=(0.2,))
    assert torch.equal(before, torch.get_rng_state())
    assert found["verdict"] in ("biased", "unstable")
    assert found["assumption_violation"] > 0.5
    assert L2E([torch.zeros(1, requires_grad=True)], 0.1, 100, network=module).badge == "heuristic"


def test_the_law_of_a_sampler_that_sees_matrices():
    def make(p, feature="matrix_direction"):
        module = build_network("matrix", ())
        with torch.no_grad():
            module[0].weight[1, FEATURE_SETS["matrix"].names.index(feature)] = -1.0
        return L2E(p, 0.1, 100, network=module, feature_set="matrix", beta_scale=1.0)

    found = l2e_law(make, coordinates=500, stiffness=(0.2,), seed=1)
    assert found["terms"]["learned_velocity"] > 0
    # On a vector both would be the momentum over its root mean square, and two different laws would be told the same.
    assert found["shape"] == [22, 23]
    other = l2e_law(lambda p: make(p, "average_0.9"), coordinates=500, stiffness=(0.2,), seed=1)
    assert found["bias"] != pytest.approx(other["bias"], rel=0.05)
