"""A step that cannot be taken says why, and leaves every group as it was; one table for every sampler."""

from __future__ import annotations

import copy

import pytest
import torch

from learned_samplers import SGHMC, SGLD
from learned_samplers.learned.native.library import ENVIRONMENT_VARIABLE
from tests.harness import SAMPLERS, closure_for, flat, running, small_network

EVERY = pytest.mark.parametrize("name", SAMPLERS)
NAN, INF = float("nan"), float("inf")


def parameter():
    return torch.zeros(3, requires_grad=True)


def _spoil(model, sampler, spoil):
    """A closure that leaves the gradients that ``spoil`` makes."""
    ordinary = closure_for(model, sampler)

    def closure():
        loss = ordinary()
        return spoil(model, loss)

    return closure


def _nan_gradient(model, loss):
    model[2].weight.grad[0, 1] = NAN
    return loss


def _infinite_gradient(model, loss):
    model[0].bias.grad[2] = -INF
    return loss


def _no_gradient(model, loss):
    model[0].bias.grad = None
    return loss


def _sparse_gradient(model, loss):
    model[2].weight.grad = model[2].weight.grad.to_sparse()
    return loss


@EVERY
@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (_nan_gradient, FloatingPointError, r"'2\.weight' is not finite"),
        (_infinite_gradient, FloatingPointError, r"'0\.bias' is not finite"),
        (_no_gradient, ValueError, r"'0\.bias' has no gradient"),
        (_sparse_gradient, TypeError, r"'2\.weight' is sparse"),
        (lambda model, loss: loss * NAN, FloatingPointError, "loss that is not finite: nan"),
        (lambda model, loss: loss + INF, FloatingPointError, "loss that is not finite: inf"),
    ],
    ids=["nan", "inf", "none", "sparse", "nan-loss", "inf-loss"],
)
def test_bad_gradients_change_nothing(name, spoil, error, message):
    model, sampler, unchanged = running(name)
    with pytest.raises(error, match=message):
        sampler.step(_spoil(model, sampler, spoil))
    assert unchanged()
    sampler.step(closure_for(model, sampler))
    assert sampler.step_count == 4


#: Those that square the gradient, or multiply it by more than lr: 1e25 is too much for them in single precision.
SQUARING = {"PSGLD", "PSGLD-probe", "L2E-adaptive", "L2E-paper", "KineticL2E"}
SQUARING |= {"L2E-whitened", "IVON", "IVON-clipped"}
SQUARING |= {"AdaptedSGHMC", "AdaptedSGHMC-cold", "AdaptedSGHMC-whitened", "AdaptedSGHMC-adam"}


@EVERY
def test_huge_gradients_are_no_error_unless_the_step_overflows(name, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")  # compiled code sums squares in double precision
    p = parameter()
    sampler = SAMPLERS[name]([p], lr=1e-30)

    def closure():
        p.grad = torch.full_like(p, 1e25)  # its norm overflows in single precision
        return torch.tensor(1.0)

    if name in SQUARING:
        noise = torch.get_rng_state()
        with pytest.raises(FloatingPointError, match="would not be finite after this step"):
            sampler.step(closure)
        assert torch.equal(p.detach(), torch.zeros(3))
        assert torch.equal(torch.get_rng_state(), noise)
        assert not any(state for state in sampler.state.values())
    else:
        sampler.step(closure)
        assert p.isfinite().all()
    assert sampler.step_count == (name not in SQUARING)


@EVERY
@pytest.mark.parametrize("value", [NAN, INF, 3e38])
def test_a_parameter_that_is_not_finite_or_would_overflow_is_noticed(name, value):
    """The gradient is finite: nothing but the parameter itself tells."""
    p = torch.zeros(5, requires_grad=True)
    sampler = SAMPLERS[name]([p], prior_precision=1.0)

    def closure():
        p.grad = torch.full_like(p, 0.1)
        return torch.tensor(1.0)

    for _ in range(2):
        sampler.step(closure)
    with torch.no_grad():
        p[2] = value
    before, count = p.detach().clone(), sampler.step_count
    noise, state = torch.get_rng_state(), copy.deepcopy(sampler.state_dict()["state"])
    if value == 3e38:  # a large number is one all the same; what may not be is the step's result
        try:
            sampler.step(closure)
        except FloatingPointError:
            pass
        else:
            assert p.isfinite().all()
            return
    else:
        with pytest.raises(FloatingPointError, match="parameter number 0 of shape"):
            sampler.step(closure)
    assert torch.equal(p.nan_to_num(7.0), before.nan_to_num(7.0))
    assert sampler.step_count == count
    assert torch.equal(torch.get_rng_state(), noise)
    for index, entry in state.items():
        assert all(torch.equal(x, sampler.state_dict()["state"][index][k]) for k, x in entry.items())


def test_of_many_parameters_each_is_looked_at_within_eight_steps():
    params = [torch.zeros(2, requires_grad=True) for _ in range(100)]
    sampler = SGLD(params, 0.1, 100)
    for p in params:
        p.grad = torch.zeros_like(p)
    sampler.step()
    with torch.no_grad():
        params[77][1] = NAN

    def eight():
        for _ in range(8):
            sampler.step()

    with pytest.raises(FloatingPointError, match="parameter number 77"):
        eight()


def test_parameters_without_names_are_named_by_number_and_shape():
    p = parameter()
    sampler = SGLD([p], 0.1, 100)
    p.grad = torch.full_like(p, NAN)
    with pytest.raises(FloatingPointError, match=r"number 0 of shape \(3,\)"):
        sampler.step()


@EVERY
@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("lr", -0.1, ValueError),
        ("lr", NAN, ValueError),
        ("lr", torch.ones(2), TypeError),
        ("num_data", 0, ValueError),
        ("temperature", -0.1, ValueError),
        ("prior_precision", "flat", TypeError),
        ("foreach", "yes", ValueError),
    ],
)
def test_a_group_changed_between_steps_is_validated_before_any_group_moves(name, key, value, error):
    model = small_network()
    sampler = SAMPLERS[name]([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    for _ in range(2):
        sampler.step(closure_for(model, sampler))
    before, noise, good = flat(model), torch.get_rng_state(), sampler.param_groups[1][key]
    sampler.param_groups[1][key] = value
    for _ in range(2):  # a second try is refused like the first
        with pytest.raises(error, match=f"{key} must"):
            sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    assert torch.equal(torch.get_rng_state(), noise)
    sampler.param_groups[1][key] = good
    sampler.step(closure_for(model, sampler))
    assert [group["step"] for group in sampler.param_groups] == [3, 3]


def test_a_learning_rate_changed_in_place_is_validated():
    p = parameter()
    sampler = SGLD([p], torch.tensor(0.1), 100)
    p.grad = torch.zeros(3)
    sampler.step()
    sampler.param_groups[0]["lr"].fill_(-1.0)
    with pytest.raises(ValueError, match="lr must not be negative"):
        sampler.step()


def test_hyperparameters_of_a_sampler_are_validated_as_at_construction():
    p = parameter()
    sampler = SGHMC([p], 0.1, 100)
    p.grad = torch.zeros(3)
    sampler.step()
    sampler.param_groups[0]["momentum_decay"] = 1.5
    with pytest.raises(ValueError, match=r"momentum_decay must lie in \(0, 1\], got 1.5"):
        sampler.step()


def test_unchanged_hyperparameters_are_not_validated_again(monkeypatch):
    p, calls = parameter(), []
    sampler = SGLD([p], 0.1, 100)
    p.grad = torch.zeros(3)
    sampler.step()
    monkeypatch.setattr(sampler, "_validate", calls.append)
    sampler.step()
    assert not calls
    sampler.param_groups[0]["lr"] = 0.0  # where a schedule may end
    sampler.step()
    assert len(calls) == 1


def test_a_frozen_parameter_with_an_old_gradient_stays():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    sampler = SGLD([a, b], 0.1, 10)
    a.grad, b.grad = torch.zeros(2), torch.zeros(2)
    b.requires_grad_(False)
    sampler.step()
    assert torch.equal(b, torch.ones(2))
    assert not torch.equal(a, torch.ones(2))


@pytest.mark.parametrize("name", ["HMC", "MCLMC-control"])
def test_a_closure_that_returns_nothing_where_the_loss_is_read(name):
    p = torch.nn.Parameter(torch.zeros(3))
    sampler = SAMPLERS[name]([p])

    def closure():
        sampler.zero_grad()
        p.square().sum().backward()

    with pytest.raises(ValueError, match="must return the mean loss, got None"):
        sampler.step(closure)


@pytest.mark.parametrize("cls", [SGLD, SGHMC])
def test_groups_that_disagree_about_the_number_of_data_are_refused(cls):
    a, b = parameter(), parameter()
    sampler = cls([{"params": [a]}, {"params": [b]}], lr=0.1, num_data=100)
    a.grad = b.grad = torch.ones(3)
    sampler.step()
    sampler.param_groups[0]["num_data"] = 400
    before = a.detach().clone()
    with pytest.raises(
        ValueError, match=f"num_data must be the same in every group of {cls.__name__}, got 100 beside 400"
    ):
        sampler.step()
    assert torch.equal(a.detach(), before)
    sampler.param_groups[1]["num_data"] = 400
    sampler.step()
    late = parameter()
    late.grad = torch.ones(3)
    sampler.add_param_group({"params": [late], "num_data": 100})
    with pytest.raises(ValueError, match="num_data must be the same in every group"):
        sampler.step()


def test_temperatures_are_of_what_moves():
    """A layer that is frozen in mid-run has a gradient left, and no part in the temperatures."""
    a, b = parameter(), parameter()
    sampler = SGHMC([a, b], lr=0.1, num_data=100)
    a.grad, b.grad = torch.ones(3), torch.ones(3)
    sampler.step()
    alone = SGHMC([a], lr=0.1, num_data=100)
    alone.state[a] = sampler.state[a]
    b.requires_grad_(False)
    b.grad = torch.full((3,), 1e6)
    assert sampler.temperatures() == alone.temperatures()
