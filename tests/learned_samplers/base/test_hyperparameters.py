"""Hyperparameters that a hand, a scheduler or a loaded state wrote are checked as at construction; every sampler."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch

from learned_samplers import HMC, SGHMC, SGLD, CyclicalSchedule
from tests.harness import SAMPLERS, closure_for, flat, running, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")
NEGATIVE = -5
BAD = [NAN, INF, -INF, NEGATIVE, "x", torch.ones(2)]


#: Hyperparameters that may have any finite number.
UNBOUNDED = {"curl_offset"}


def cases(sampler):
    """Each numeric hyperparameter of a sampler with values that it cannot have."""
    group = sampler.param_groups[0]
    for key in sampler.defaults:
        if isinstance(group[key], int | float) and not isinstance(group[key], bool):
            yield from ((key, value) for value in BAD if key not in UNBOUNDED or value is not NEGATIVE)


@EVERY
def test_a_bad_value_in_any_hyperparameter_is_refused_and_nothing_changes(name):
    model, sampler, unchanged = running(name)
    closure = closure_for(model, sampler)
    for key, value in list(cases(sampler)):
        good = sampler.param_groups[0][key]
        sampler.param_groups[0][key] = value
        with pytest.raises((ValueError, TypeError), match=key):
            sampler.step(closure)
        sampler.param_groups[0][key] = good
        assert unchanged(), (key, value)


@EVERY
def test_a_bad_value_in_a_saved_state_is_refused_and_nothing_changes(name):
    _, sampler, unchanged = running(name)
    for key, value in list(cases(sampler)):
        saved = copy.deepcopy(sampler.state_dict())
        saved["param_groups"][0][key] = value
        with pytest.raises((ValueError, TypeError), match=key):
            sampler.load_state_dict(saved)
        assert unchanged(), (key, value)


@pytest.mark.parametrize(
    ("cls", "key", "value"),
    [(SGHMC, "momentum_decay", 7), (HMC, "leapfrog_steps", 0), (SGLD, "prior_precision", -5), (HMC, "step_jitter", 2)],
)
def test_out_of_range(cls, key, value):
    p = torch.ones(3, requires_grad=True)
    sampler = cls([p], 0.01, 10)

    def closure():
        p.grad = p.detach().clone()
        return torch.tensor(1.0)

    sampler.step(closure)
    before = p.detach().clone()
    sampler.param_groups[0][key] = value
    with pytest.raises(ValueError, match=key):
        sampler.step(closure)
    assert torch.equal(p, before)


@EVERY
def test_a_scheduler_that_writes_nonsense_is_refused(name):
    model, sampler, _ = running(name)
    scheduler = torch.optim.lr_scheduler.LambdaLR(sampler, lambda step: math.nan if step else 1.0)
    sampler.step(closure_for(model, sampler))
    scheduler.step()
    before = flat(model)
    with pytest.raises(ValueError, match="lr must be finite"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)


def test_a_cyclical_schedule_with_a_broken_peak_is_refused():
    model = small_network()
    sampler = SGLD(model.parameters(), 0.1, 100)
    schedule = CyclicalSchedule(sampler, 5)
    sampler.param_groups[0]["peak_lr"] = NAN
    schedule.step()
    with pytest.raises(ValueError, match="lr must be finite"):
        sampler.step(closure_for(model, sampler))


@EVERY
def test_a_bad_value_in_the_second_group_leaves_the_first_alone(name):
    model = small_network()
    sampler = SAMPLERS[name]([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    sampler.step(closure_for(model, sampler))
    sampler.param_groups[1]["temperature"] = NAN
    before, noise = flat(model), torch.get_rng_state()
    with pytest.raises(ValueError, match="temperature"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), noise)
    assert [group["step"] for group in sampler.param_groups] == [1, 1]


# ---------------------------------------------------------------- saved states


def _not_finite(saved):
    _first(saved)[0].view(-1)[0] = NAN


def _complex(saved):
    tensor, entry, key = _first(saved)
    entry[key] = tensor.to(torch.complex64)


def _no_tensor(saved):
    _, entry, key = _first(saved)
    entry[key] = 3.0


def _missing(saved):
    saved["state"].pop(0)


def _no_noise(saved):
    saved["sampler"]["rng"] = {}


def _other_order(saved):
    saved["param_groups"][0]["param_names"].reverse()


def _no_lr(saved):
    del saved["param_groups"][0]["lr"]


def _half_a_step(saved):
    saved["param_groups"][0]["step"] = 1.5


def _first(saved):
    entry = saved["state"][0]
    key = next(iter(entry))
    return entry[key], entry, key


@EVERY
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_not_finite, "is not finite"),
        (_complex, "must be a real floating-point tensor"),
        (_no_tensor, "must be a real floating-point tensor"),
        (_missing, r"holds \[\] for parameter '0.weight'"),
        (_no_noise, "no state of a random number generator"),
        (_other_order, "'2.bias' where this one has '0.weight'"),
        (_no_lr, "no lr"),
        (_half_a_step, "step"),
    ],
)
def test_a_broken_saved_state_is_refused_and_changes_nothing(name, spoil, message):
    _, sampler, unchanged = running(name)
    if not sampler.state_names and spoil in (_not_finite, _complex, _no_tensor, _missing):
        pytest.skip("this sampler has no state")
    saved = copy.deepcopy(sampler.state_dict())
    spoil(saved)
    with pytest.raises((ValueError, TypeError), match=message):
        sampler.load_state_dict(saved)
    assert unchanged()


@EVERY
def test_an_older_state_without_the_options_is_taken(name):
    _, sampler, _ = running(name)
    saved = copy.deepcopy(sampler.state_dict())
    for key in ("master_weights", "missing_gradient"):
        del saved["param_groups"][0][key]
    sampler.load_state_dict(saved)
    assert sampler.param_groups[0]["missing_gradient"] == "error"


def test_different_temperatures_are_told_once_and_zero_beside_one_is_fine():
    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))

    def step(sampler):
        a.grad = b.grad = torch.ones(2)
        sampler.step()

    for schedule in (False, True):
        sampler = SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.01}], 0.1, 10)
        if schedule:
            scheduled = CyclicalSchedule(sampler, cycle_length=4, exploration_ratio=0.5)
        with pytest.warns(UserWarning, match=r"heat flows between them.*law of none"):
            step(sampler)
        if schedule:
            scheduled.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(SGHMC([{"params": [a]}, {"params": [b], "temperature": 0.0}], 0.1, 10))


@pytest.mark.parametrize(("key", "value"), [("foreach", 0), ("foreach", 1), ("master_weights", 0), ("step", -5)])
def test_numbers_are_no_truth_values_and_steps_are_counted_from_zero(key, value):
    with pytest.raises(ValueError, match=f"{key} must be"):
        SGLD([{"params": [torch.zeros(2, requires_grad=True)], key: value}], 0.1, 10)
    with pytest.raises(TypeError, match="step must be an integer"):
        SGLD([{"params": [torch.zeros(2, requires_grad=True)], "step": "a"}], 0.1, 10)
