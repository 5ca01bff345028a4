"""Refusals of the hand-designed samplers: an error of its class that names the argument, and nothing has changed."""

import copy
from functools import partial

import pytest
import torch

from learned_samplers import (
    HMC,
    MCLMC,
    PSGLD,
    SGLD,
    AdaptedSGHMC,
    CyclicalSchedule,
    CyclicalSGMCMC,
    EntropyMCMC,
    WhitenedSGHMC,
)
from learned_samplers.approximations import IVON
from tests.harness import SAMPLERS, run, running, small_network

NAN = float("nan")
SGD = torch.optim.SGD


def parameter(*shape):
    return torch.zeros(shape or (3,), requires_grad=True)


@pytest.mark.parametrize(
    ("cls", "settings", "named", "error"),
    [
        (CyclicalSGMCMC, {"cycle_length": 2, "exploration_ratio": 0.9}, "exploration_ratio", ValueError),
        (EntropyMCMC, {"lr": 0.1, "guide_variance": 1e-3}, "lr must be below num_data·guide_variance", ValueError),
        (AdaptedSGHMC, {}, "warmup_steps or total_steps", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 0, "warmup": WhitenedSGHMC}, "warmup_steps", ValueError),
        (AdaptedSGHMC, {"total_steps": 12}, "total_steps.*13", ValueError),  # a mass of nine gradients
        (AdaptedSGHMC, {"total_steps": 50, "cycle_length": 12}, "cycle_length", ValueError),
        (AdaptedSGHMC, {"total_steps": 100, "warmup_steps": 100}, "total_steps.*warmup_steps=100, got", ValueError),
        (
            AdaptedSGHMC,
            {"total_steps": 100, "cycle_length": 200},
            "total_steps.*warmup_steps=100 of a cycle_length of 200, got 100",
            ValueError,
        ),
        *((AdaptedSGHMC, {"total_steps": 100, "num_data": value}, "num_data", TypeError) for value in ([1], None)),
        (AdaptedSGHMC, {"warmup_steps": 5, "mass": "dense", "warmup": WhitenedSGHMC}, "mass", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "cycle_length": 5}, "cycle_length", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda groups: groups}, "warmup", TypeError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda groups: SGD([parameter()], 0.1)}, "warmup", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": lambda g: torch.optim.LBFGS(g[0]["params"])}, "LBFGS", ValueError),
        (AdaptedSGHMC, {"warmup_steps": 5, "warmup": partial(SGD, lr=NAN)}, "lr=nan of SGD", ValueError),
        *(
            (AdaptedSGHMC, {"warmup_steps": 5, "warmup": partial(cls, lr=0.1)}, cls.__name__, ValueError)
            for cls in (HMC, MCLMC, IVON)
        ),
    ],
)
def test_settings_that_do_not_go_together(cls, settings, named, error):
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
        (lambda p: torch.optim.Adam(p, 0.1), {"mass": "matrix"}, ValueError, "mass"),
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
    """A probe in one group is a probe of all."""
    half, single, probe = torch.ones(3, dtype=torch.bfloat16), torch.ones(3), {"correction": "probe"}
    with pytest.raises(ValueError, match="bfloat16"):
        PSGLD([{"params": [half.requires_grad_()], **probe}], 0.01, 100)
    sampler = PSGLD([half], 0.01, 100)
    with pytest.raises(ValueError, match="bfloat16"):
        sampler.add_param_group({"params": [single.requires_grad_()], **probe})
    assert len(sampler.param_groups) == 1
    assert sampler.half_precision
    assert not PSGLD([{"params": [single], **probe}], 0.01, 100).half_precision


def _tally(**changes):
    return lambda saved: saved["param_groups"][0]["tally"].update(changes)


def _filled(key, value):
    return lambda saved: saved["state"][0][key].fill_(value)


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        *(
            (name, _filled(key, value), f"{key} of parameter '0.weight' holds numbers")
            for name, key, value in [
                ("PSGLD", "second_moment", -1e-3),
                ("SGNHT", "thermostat", 1.5),
                ("AdaptedSGHMC", "mass", -1.0),
                ("AdaptedSGHMC-matrix", "mass", -1.0),
                ("WhitenedSGHMC", "whitening", -1.0),
                ("MCLMC-noise", "noise_square", -1e-3),
                ("IVON", "hessian", -1.0),
            ]
        ),
        ("HMC", lambda saved: saved["param_groups"][0].pop("tally"), "tally must be a dict, got None"),
        ("HMC", lambda saved: saved["param_groups"][0].update(tally={}), "tally lacks accepted, average"),
        ("HMC", _tally(accepted=-1), "finite number in accepted, got -1"),
        ("HMC", _tally(lr_factor="x"), "finite number in lr_factor"),
        ("MCLMC", lambda saved: saved["param_groups"][0]["tally"].pop("ahead"), "tally lacks ahead"),
        ("MCLMC", _tally(ahead=2.0), "lists of finite numbers in ahead"),
        ("MCLMC", _tally(squares=[NAN]), "lists of finite numbers in squares"),
        ("MCLMC", _tally(count=True), "finite number in count"),
    ],
)
def test_states_that_no_update_leaves(name, spoil, said):
    _, sampler, unchanged = running(name)
    saved = copy.deepcopy(sampler.state_dict())
    saved["sampler"].pop("checksum")
    spoil(saved)
    with pytest.raises(ValueError, match=said):
        sampler.load_state_dict(saved)
    assert unchanged()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_prior_that_would_make_the_state_infinite(name):
    """The step is undone, or the chain stays finite."""
    try:
        _, sampler, _ = run(name, 4, prior_precision=1e30)
    except FloatingPointError:
        pass
    else:
        assert all(x.isfinite().all() for state in sampler.state.values() for x in state.values())
