"""What the hand-designed samplers refuse: an error of its class that names the argument, and nothing has changed."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from learned_samplers import (
    HMC,
    MCLMC,
    PSGLD,
    SGHMC,
    SGLD,
    SGLRW,
    SGNHT,
    AdaptedSGHMC,
    CyclicalSchedule,
    CyclicalSGMCMC,
    EntropyMCMC,
    WhitenedSGHMC,
)
from learned_samplers.approximations import IVON
from tests.harness import small_network

NAN = float("nan")
SGD = torch.optim.SGD


def parameter(*shape):
    return torch.zeros(shape or (3,), requires_grad=True)


@pytest.mark.parametrize(
    ("cls", "settings", "named", "error"),
    [
        *((SGHMC, {"momentum_decay": a}, "momentum_decay", ValueError) for a in (0.0, 1.1, -0.1)),
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
        (CyclicalSGMCMC, {"cycle_length": 2, "exploration_ratio": 0.9}, "exploration_ratio", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "base": "adam"}, "base", ValueError),
        (CyclicalSGMCMC, {"cycle_length": 10, "momentum_decay": 2}, "momentum_decay", ValueError),
        (SGLRW, {"temperature": 0.0}, "temperature", ValueError),
        *((EntropyMCMC, {"guide_variance": x}, "guide_variance", ValueError) for x in (0.0, NAN)),
        (WhitenedSGHMC, {"direction_scale": -1.0}, "direction_scale", ValueError),
        (WhitenedSGHMC, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (AdaptedSGHMC, {"warmup_steps": -1}, "warmup_steps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 0, "warmup": WhitenedSGHMC}, "warmup_steps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 2.0}, "warmup_steps", TypeError),
        (AdaptedSGHMC, {"total_steps": 12}, "total_steps", ValueError),  # a mass of nine gradients
        (AdaptedSGHMC, {"total_steps": 50, "cycle_length": 12}, "cycle_length", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "settling_share": 1.0}, "settling_share", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "momentum_decay": 0.0}, "momentum_decay", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "decay": 1.0}, "decay", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "eps": 0.0}, "eps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "mass": "dense"}, "mass", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "mass": "dense", "warmup": WhitenedSGHMC}, "mass", ValueError),
        (AdaptedSGHMC, {}, "warmup_steps or total_steps", ValueError),
        (AdaptedSGHMC, {"total_steps": 9.5}, "total_steps", TypeError),
        (AdaptedSGHMC, {"total_steps": 10, "warmup_steps": 10}, "total_steps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "cycle_length": 0}, "cycle_length", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "cycle_length": 5}, "cycle_length", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "cycle_length": 9.0}, "cycle_length", TypeError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": "adam"}, "warmup", TypeError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda groups: groups}, "warmup", TypeError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda groups: SGD([parameter()], 0.1)}, "warmup", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda g: torch.optim.LBFGS(g[0]["params"])}, "LBFGS", ValueError),
        *(
            (AdaptedSGHMC, {"warmup_steps": 5, "warmup": partial(cls, lr=0.1)}, cls.__name__, ValueError)
            for cls in (HMC, MCLMC, IVON)
        ),
        (MCLMC, {"temperature": 0.0}, "temperature", ValueError),
        (MCLMC, {"momentum_decay": 0.0}, "momentum_decay", ValueError),
        (MCLMC, {"preconditioner": "adam"}, "preconditioner", ValueError),
        (HMC, {"leapfrog_steps": 0}, "leapfrog_steps", ValueError),
        (HMC, {"adapt_steps": -1}, "adapt_steps", ValueError),
        (HMC, {"target_acceptance": 1.0}, "target_acceptance", ValueError),
        (HMC, {"temperature": 0.0}, "temperature", ValueError),
    ],
)
def test_arguments(cls, settings, named, error):
    with pytest.raises(error, match=named):
        cls([parameter()], **{"lr": 0.1, "num_data": 100, **settings})


@pytest.mark.parametrize(
    ("make", "differing", "named"),
    [
        (lambda groups: MCLMC(groups, 0.1, 10), {"momentum_decay": 0.5}, "momentum_decay"),
        (lambda groups: HMC(groups, 0.1, 10), {"leapfrog_steps": 3}, "leapfrog_steps"),
        (lambda groups: CyclicalSGMCMC(groups, 0.1, 10, cycle_length=10), {"base": "sgld"}, "base"),
        (lambda groups: CyclicalSGMCMC(groups, 0.1, 10, cycle_length=10), {"cycle_length": 9}, "cycle_length"),
        (lambda groups: AdaptedSGHMC(groups, 0.1, 10, warmup_steps=3), {"warmup_steps": 4}, "warmup_steps"),
        (
            lambda groups: AdaptedSGHMC(groups, 0.1, 10, warmup=WhitenedSGHMC, warmup_steps=3, cycle_length=5),
            {"cycle_length": 6},
            "cycle_length",
        ),
    ],
)
def test_what_belongs_to_the_whole_chain_is_the_same_in_all_groups(make, differing, named):
    sampler = make([{"params": [parameter(2)]}])
    with pytest.raises(ValueError, match=f"{named} must be the same"):
        sampler.add_param_group({"params": [parameter(2)], **differing})
    assert len(sampler.param_groups) == 1


@pytest.mark.parametrize(
    ("make", "settings", "error", "named"),
    [
        (lambda p: SGD(p, 0.1), {}, TypeError, "SGD"),
        (lambda p: torch.optim.Adam(p, 0.1), {}, ValueError, "number 0"),
        (lambda p: torch.optim.Adam(p, 0.1, maximize=True), {}, ValueError, "maximize"),
        (lambda p: torch.optim.AdamW(p, 0.1), {}, ValueError, "prior_precision"),
        (lambda p: torch.optim.Adam(p, 0.1), {"warmup_steps": 3}, ValueError, "warmup_steps"),
        (lambda p: torch.optim.Adam(p, 0.1), {"temperature": -1}, ValueError, "temperature"),
    ],
)
def test_warm_starts(make, settings, error, named):
    with pytest.raises(error, match=named):
        AdaptedSGHMC.from_optimizer(make(small_network().parameters()), 100, **settings)


@pytest.mark.parametrize(
    ("cls", "shape", "loss", "error", "named"),
    [
        (HMC, (4, 2), torch.zeros(3), ValueError, r"\(3,\)"),
        (MCLMC, (5, 1), torch.zeros(5), ValueError, "2 weights"),
        *(
            (cls, (3,), torch.tensor(1.0, dtype=dtype), TypeError, "too coarse")
            for cls in (HMC, MCLMC)
            for dtype in (torch.bfloat16, torch.float16)
        ),
    ],
)
def test_losses(cls, shape, loss, error, named):
    p = torch.ones(shape, requires_grad=True)
    sampler = cls([p], 0.1, 10)

    def closure():
        p.grad = torch.zeros(shape)
        return loss

    with pytest.raises(error, match=named):
        sampler.step(closure)
    assert torch.equal(p.detach(), torch.ones(shape))
    assert sampler.step_count == 0


def test_schedules():
    with pytest.raises(TypeError, match="sampler"):
        CyclicalSchedule(SGD([parameter()], 0.1), 10)
    with pytest.raises(ValueError, match="exploration_ratio"):
        CyclicalSchedule(SGLD([parameter()], 0.1, 10), 3, 0.9)
    with pytest.raises(ValueError, match="epoch"):
        CyclicalSchedule(SGLD([parameter()], 0.1, 10), 10).step(3)


def test_half_precision_beside_a_probe():
    """Of one group it is a probe of all."""
    half, whole, probe = torch.ones(3, dtype=torch.bfloat16), torch.ones(3), {"correction": "probe"}
    with pytest.raises(ValueError, match="bfloat16"):
        PSGLD([{"params": [half.requires_grad_()], **probe}], 0.01, 100)
    sampler = PSGLD([half], 0.01, 100)
    with pytest.raises(ValueError, match="bfloat16"):
        sampler.add_param_group({"params": [whole.requires_grad_()], **probe})
    assert len(sampler.param_groups) == 1
    assert sampler.half_precision
    assert not PSGLD([{"params": [whole], **probe}], 0.01, 100).half_precision
