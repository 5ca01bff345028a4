"""What L2E and PrecondL2E refuse, and that nothing has changed after it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.harness import closure_for, flat, small_network
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, PrecondL2E
from tests.learned_samplers.learned.l2e.l2e_cases import network


def parameter():
    return torch.zeros(3, requires_grad=True)


GOOD = {"lr": 0.1, "num_data": 10}
NAN = float("nan")


@pytest.mark.parametrize(
    ("cls", "settings", "error", "message"),
    [
        (L2E, {"network": None, "lr": None}, ValueError, "lr must be given"),
        (
            L2E,
            {"network": None, "num_data": None},
            TypeError,
            "num_data must be the number of training examples, such as .*, got None",
        ),
        (L2E, {"network": None, "form": "residuals"}, ValueError, "form must be one of 'residual', 'paper'"),
        (L2E, {"network": None, "feature_set": "rich"}, ValueError, "feature_set must be one of .* got 'rich'"),
        (L2E, {"network": 3}, TypeError, "network must be a name, a path, an nn.Module or None, got 3"),
        (L2E, {"network": "no-such-weights"}, ValueError, "no shipped weights are named 'no-such-weights'"),
        (L2E, {"network": "nowhere/l2e.safetensors"}, FileNotFoundError, "nowhere"),
        (L2E, {"network": nn.ReLU()}, ValueError, "network must have nn.Linear layers"),
        (L2E, {"network": network("adaptive")}, ValueError, r"network must take 9 features \('paper'\).* got 26 and 2"),
        (L2E, {"network": network(outputs=1)}, ValueError, "give 2 outputs, got 9 and 1"),
        (L2E, {"network": None, "alpha_scale": -1.0}, ValueError, "alpha_scale must not be negative, got -1.0"),
        (L2E, {"network": None, "beta_scale": NAN}, ValueError, "beta_scale must be finite"),
        (L2E, {"network": None, "decay_time": 0}, ValueError, "decay_time must be greater than 0, got 0"),
        (L2E, {"network": None, "decay_time": "1"}, TypeError, "decay_time must be a number"),
        (
            L2E,
            {"network": None, "form": "paper", "decay_time": 9.0},
            ValueError,
            "decay_time does not belong to this form",
        ),
        (L2E, {"network": None, "output_bound": 0}, ValueError, "output_bound must be greater than 0"),
        (L2E, {"network": None, "output_bound": "2"}, TypeError, "output_bound must be a number"),
        (L2E, {"network": None, "momentum_decay": 0.0}, ValueError, "momentum_decay must lie in"),
        (L2E, {"network": None, "momentum_init": "ones"}, ValueError, "momentum_init"),
        (L2E, {"network": None, "friction": "algorithm2"}, ValueError, "friction does not belong to this form"),
        (L2E, {"network": None, "noise_multiplier": 1.0}, ValueError, "noise_multiplier does not belong"),
        (L2E, {"network": None, "form": "paper", "friction": "eq6"}, ValueError, "friction must be one of"),
        (L2E, {"network": None, "form": "paper", "noise_multiplier": -1}, ValueError, "noise_multiplier must not"),
        (KineticL2E, {"network": None, "hessian": "exact"}, ValueError, "hessian must be one of"),
        (KineticL2E, {"network": None, "probe_size": 0}, ValueError, "probe_size must be greater than 0"),
        (KineticL2E, {"network": None, "mean_scale": -1}, ValueError, "mean_scale must not be negative"),
        (KineticL2E, {"network": None, "lr": None}, ValueError, "lr must be given"),
        (KineticL2E, {"network": network()}, ValueError, "network must take 2 features"),
        (PrecondL2E, {"curl_clip": 0.5}, ValueError, "curl_clip must be at least 1, got 0.5"),
        (PrecondL2E, {"friction_clip": "big"}, TypeError, "friction_clip must be a number"),
        (PrecondL2E, {"curl_scale": -2.0}, ValueError, "curl_scale must not be negative"),
        (PrecondL2E, {"correction": "full"}, ValueError, "correction must be one of"),
        (PrecondL2E, {"network": network("adaptive")}, ValueError, "network must take 9 features"),
    ],
)
def test_bad_arguments_are_named(cls, settings, error, message):
    with pytest.raises(error, match=message):
        cls([parameter()], **{**GOOD, **settings})


def test_a_network_that_is_not_finite_is_refused():
    module = network()
    with torch.no_grad():
        module[0].weight[0, 0] = NAN
    with pytest.raises(ValueError, match="network must have finite weights"):
        L2E([parameter()], 0.1, 10, network=module)


def test_a_step_that_fails_changes_nothing():
    model = small_network()
    sampler = L2E(model.named_parameters(), 0.1, 100, network=network())
    sampler.step(closure_for(model, sampler))
    before, saved = flat(model), copy.deepcopy(sampler.state_dict())
    model[2].weight.grad[1, 1] = NAN
    with pytest.raises(FloatingPointError, match=r"2\.weight"):
        sampler.step()
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 1
    for i, entry in saved["state"].items():
        assert all(torch.equal(value, sampler.state_dict()["state"][i][key]) for key, value in entry.items())
