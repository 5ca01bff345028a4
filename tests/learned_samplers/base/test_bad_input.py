"""Bad input gets an error that names it, and leaves everything as it was; one table for every sampler."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import (
    HMC,
    L2E,
    MCLMC,
    PSGLD,
    SGHMC,
    SGLD,
    SGLRW,
    SGNHT,
    AdaptedSGHMC,
    CyclicalSGMCMC,
    EntropyMCMC,
)
from tests.harness import SAMPLERS

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")


def parameter():
    return torch.zeros(3, requires_grad=True)


@EVERY
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("lr", 0.0, ValueError),
        ("lr", -0.1, ValueError),
        ("lr", NAN, ValueError),
        ("lr", "fast", TypeError),
        ("lr", torch.ones(2), TypeError),
        ("num_data", 0, ValueError),
        ("num_data", -5, ValueError),
        ("num_data", INF, ValueError),
        ("num_data", None, TypeError),
        ("temperature", -1.0, ValueError),
        ("temperature", True, TypeError),
        ("prior_precision", -1.0, ValueError),
        ("prior_precision", NAN, ValueError),
        ("foreach", "yes", ValueError),
        ("generator", 3, TypeError),
    ],
)
def test_shared_arguments(name, argument, value, error):
    with pytest.raises(error, match=argument):
        SAMPLERS[name]([parameter()], **{argument: value})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(range(40), batch_size=8), r"number of training examples, len\(loader.dataset\), got .* DataLoader"),
        (TensorDataset(torch.zeros(40)), r"number of training examples, len\(\) of it, got an object of type TensorD"),
        ([1, 2], r"len\(\) of it, got an object of type list"),
        (None, r"such as len\(train_set\), got None"),
        ("40", "num_data must be a number, got '40'"),
    ],
)
def test_the_data_are_not_their_number(data, message):
    for make in (SGHMC, L2E):
        with pytest.raises(TypeError, match=message):
            make([parameter()], lr=0.1, num_data=data)


@pytest.mark.parametrize(
    ("cls", "settings", "argument", "error"),
    [
        (SGHMC, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_decay": 1.1}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_decay": -0.1}, "momentum_decay", ValueError),
        (SGHMC, {"momentum_init": "ones"}, "momentum_init", ValueError),
        (SGNHT, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (SGNHT, {"thermostat_rate": 0.0}, "thermostat_rate", ValueError),
        (SGNHT, {"temperature": 0.0}, "temperature", ValueError),
        (PSGLD, {"decay": 1.0}, "decay", ValueError),
        (PSGLD, {"eps": 0.0}, "eps", ValueError),
        (PSGLD, {"correction": "full"}, "correction", ValueError),
        (PSGLD, {"probe_size": 0}, "probe_size", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 0}, "cycle_length", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 2.5}, "cycle_length", TypeError),
        (CyclicalSGMCMC, {"cycle_length": 10, "exploration_ratio": 1.0}, "exploration_ratio", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 2, "exploration_ratio": 0.9}, "no sampling step", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "base": "adam"}, "base", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "momentum_decay": 2}, "momentum_decay", ValueError),
        (SGLRW, {"temperature": 0.0}, "temperature", ValueError),
        (EntropyMCMC, {"guide_variance": 0.0}, "guide_variance", ValueError),
        (EntropyMCMC, {"guide_variance": NAN}, "guide_variance", ValueError),
        (AdaptedSGHMC, {"warmup_steps": -1}, "warmup_steps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 2.0}, "warmup_steps", TypeError),
        (
            AdaptedSGHMC,
            {"warmup_steps": 5, "warmup_temperature": -1.0},
            "warmup_temperature",
            ValueError,
        ),
        (AdaptedSGHMC, {"warmup_steps": 5, "momentum_decay": 0.0}, "momentum_decay", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "decay": 1.0}, "decay", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "eps": 0.0}, "eps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "integrator": "euler"}, "integrator", ValueError),
        (MCLMC, {"temperature": 0.0}, "temperature", ValueError),
        (MCLMC, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (MCLMC, {"preconditioner": "adam"}, "preconditioner", ValueError),
        (MCLMC, {"energy_target": 0.0}, "energy_target", ValueError),
        (HMC, {"leapfrog_steps": 0}, "leapfrog_steps", ValueError),
        (HMC, {"adapt_steps": -1}, "adapt_steps", ValueError),
        (HMC, {"target_acceptance": 1.0}, "target_acceptance", ValueError),
        (HMC, {"step_jitter": 1.0}, "step_jitter", ValueError),
        (HMC, {"temperature": 0.0}, "temperature", ValueError),
    ],
)
def test_own_arguments(cls, settings, argument, error):
    with pytest.raises(error, match=argument):
        cls([parameter()], 0.1, 100, **settings)


@EVERY
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([], ValueError, "empty"),
        ([{"params": []}], ValueError, "empty"),
        ([torch.zeros(2, dtype=torch.complex64)], TypeError, "real floating-point"),
        ([torch.zeros(2, dtype=torch.long)], TypeError, "real floating-point"),
        ([("bias", torch.zeros(2, dtype=torch.int32))], TypeError, "'bias'"),
        ([torch.zeros(2).to_sparse()], TypeError, "dense"),
        (["weight"], TypeError, "must be a tensor"),
    ],
)
def test_parameters(name, params, error, message):
    with pytest.raises(error, match=message):
        SAMPLERS[name](params)


@EVERY
def test_a_bad_group_is_refused_whole(name):
    sampler = SAMPLERS[name]([parameter()])
    with pytest.raises(ValueError, match="lr must be greater than 0, got -3"):
        sampler.add_param_group({"params": [parameter()], "lr": -3})
    with pytest.raises(TypeError, match="param_group must be a dict"):
        sampler.add_param_group([parameter()])
    assert len(sampler.param_groups) == 1


def test_parameters_in_a_set_and_a_group_without_any_are_refused():
    with pytest.raises(TypeError, match="set"):
        SGLD([{"params": {parameter()}}], 0.1, 10)
    with pytest.raises(ValueError, match="'params'"):
        SGLD([parameter()], 0.1, 10).add_param_group({"lr": 1.0})
