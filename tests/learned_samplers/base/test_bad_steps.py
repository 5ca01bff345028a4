"""A step that cannot be taken says why, and leaves every group as it was; one table for every sampler."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import SGHMC, SGLD
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


@EVERY
def test_huge_but_finite_gradients_are_no_error(name):
    p = parameter()
    sampler = SAMPLERS[name]([p], lr=1e-30)

    def closure():
        p.grad = torch.full_like(p, 1e25)  # its norm overflows in single precision
        return torch.tensor(1.0)

    sampler.step(closure)
    assert sampler.step_count == 1


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
