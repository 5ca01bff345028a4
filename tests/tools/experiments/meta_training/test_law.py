"""The law of a learned sampler on Gaussians, for its card."""

from __future__ import annotations

import json
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from experiments.meta_training.law import gaussian_law, l2e_law

from learned_samplers import SGHMC, check_sampler
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.network import build_network
from tests.learned_samplers.learned.flat_keywords import L2E, PrecondL2E


def test_the_cards_measurements_of_an_untrained_sampler_are_sghmcs():
    measured = l2e_law(lambda p: L2E(p, 0.1, 100, network=None), coordinates=1000, stiffness=(0.2,))
    assert json.loads(json.dumps(measured)) == measured
    assert measured["verdict"] in ("exact", "no bias seen", "O(h)")
    assert abs(measured["bias"][0]) < 0.1
    assert measured["kinetic_temperature"][0] == pytest.approx(4 / (4 - 0.2 - 0.2), rel=0.05)
    assert measured["assumption_violation"] == 0
    assert measured["terms"]["alpha"] == 0
    assert measured["terms"]["noise"] == pytest.approx(math.sqrt(0.2))


def test_a_linear_step_has_no_error_at_the_smaller_rate():
    """NaN is no JSON: a card could not be written."""

    class Linear(SGHMC):
        def fingerprint(self):
            return {}

    measured = gaussian_law(lambda p: Linear(p, 0.1, 100), coordinates=500)
    assert measured["error"][0] > 0
    assert measured["error"][1] == 0
    json.dumps(measured, allow_nan=False)


def test_each_bias_of_a_card_has_the_error_of_its_own_run(monkeypatch):
    result = dict(bias=0.1, refined_bias=0.3, standard_error=0.02, refined_error=0.08, target_variance=2.0)
    result |= dict(kinetic_temperature=1.0, configurational_temperature=1.0)
    report = SimpleNamespace(
        results=[SimpleNamespace(**result)], verdict="biased", passed=False, reason="", lr=0.1, refinement=4.0
    )
    monkeypatch.setattr("experiments.meta_training.law.check_sampler", lambda *_, **__: report)
    measured = gaussian_law(lambda p: PrecondL2E(p, 0.1, 100), stiffness=(0.2,))
    assert measured["largest_bias"] == [0.1, 0.3]
    assert measured["error"] == [0.01, 0.04]


def test_the_cards_measurements_of_a_random_network_show_its_bias():
    """The residual form with a random network does not leave the posterior: the badge is heuristic for a reason."""
    module = build_network("paper", zero_last=False, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    measured = l2e_law(lambda p: L2E(p, 0.1, 100, network=module), coordinates=500, stiffness=(0.2,))
    assert torch.equal(before, torch.get_rng_state())
    assert measured["verdict"] in ("biased", "unstable")
    assert measured["assumption_violation"] > 0.5
    assert L2E([torch.zeros(1, requires_grad=True)], 0.1, 100, network=module).badge == "heuristic"


def test_the_law_of_a_sampler_that_sees_matrices(monkeypatch):
    monkeypatch.setattr("experiments.meta_training.law.check_sampler", partial(check_sampler, steps=100))

    def make(p, feature="matrix_direction"):
        module = build_network("matrix", ())
        with torch.no_grad():
            module[0].weight[1, FEATURE_SETS["matrix"].names.index(feature)] = -1.0
        return L2E(p, 0.1, 100, network=module, feature_set="matrix", beta_scale=1.0)

    measured = l2e_law(make, coordinates=500, stiffness=(0.2,), seed=1)
    assert measured["terms"]["learned_velocity"] > 0
    # On a vector both would be the momentum over its root mean square, and two different laws would be told the same.
    assert measured["shape"] == [22, 23]
    without_matrices = l2e_law(lambda p: make(p, "average_0.9"), coordinates=500, stiffness=(0.2,), seed=1)
    assert measured["bias"] != pytest.approx(without_matrices["bias"], rel=0.05)
