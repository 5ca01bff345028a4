"""Refusals of the approximations: an error of its class that names what is wrong, and nothing has changed."""

import copy
import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection
from learned_samplers.approximations import IVON, SWAG, laplace_samples
from tests.harness import closure_for, flat, small_data, small_network
from tests.learned_samplers.approximations.test_swag import walked

N = 100


def ivon(**settings):
    return IVON([torch.zeros(2, requires_grad=True)], 0.1, N, **settings)


def swag(model=None, moved=None, **settings):
    model = small_network() if model is None else model
    return SWAG(model, torch.optim.SGD((moved or model).parameters(), lr=0.1), **settings)


def laplace(mean, count=3):
    return laplace_samples(small_network(), SimpleNamespace(mean=mean), count)


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: ivon(betas=(0.9, 1.0)), ValueError, r"betas\[1\]"),
        (lambda: ivon(clip_radius=1.0), TypeError, "clip_radius"),
        (lambda: swag(rank=1), ValueError, "rank"),
        (lambda: swag(burn_in=-1), ValueError, "burn_in"),
        (lambda: swag(thinning=0), ValueError, "thinning"),
        (lambda: swag(generator=3), TypeError, "generator.*3"),
        (lambda: swag(moved=nn.Linear(1, 1)), ValueError, "optimizer"),
        (
            lambda: swag(nn.ParameterDict({"theta": torch.zeros(3, dtype=torch.complex64)})),
            TypeError,
            "theta.*complex64",
        ),
        (lambda: SWAG(small_network(), small_network()), TypeError, "optimizer"),
        (lambda: SWAG(torch.zeros(3), torch.optim.SGD(small_network().parameters())), TypeError, "model"),
        (lambda: laplace(torch.zeros(12)), ValueError, "laplace"),
        (lambda: laplace(torch.zeros(11)), ValueError, "laplace"),
        (lambda: laplace(torch.zeros(99)), ValueError, "laplace"),
        (lambda: laplace(torch.zeros(12), 0), ValueError, "count"),
    ],
)
def test_arguments(make, error, named):
    with pytest.raises(error, match=named):
        make()


def backward(model):
    x, y = small_data()
    nn.functional.cross_entropy(model(x), y).backward()


def no_draw(model, sampler):
    sampler.zero_grad()
    backward(model)


def after_the_block(model, sampler):
    model.extra.square().sum().backward()


def clipped(model, sampler):
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def unscaled(model, sampler):
    """As a GradScaler does: its kernel leaves the tensor's version as it was."""
    torch._amp_foreach_non_finite_check_and_unscale_(
        [p.grad for p in model.parameters() if p.grad is not None], torch.zeros(1), torch.full((1,), 2.0**-10)
    )


def not_finite(model, sampler):
    with sampler.sampled_params():
        for p in model.parameters():
            p.grad = torch.full_like(p, float("nan"))


@pytest.mark.parametrize(
    ("spoil", "error", "named"),
    [
        (no_draw, RuntimeError, "sampled_params"),
        (after_the_block, RuntimeError, "outside"),
        (clipped, RuntimeError, "outside"),
        (unscaled, RuntimeError, "outside"),
        (not_finite, FloatingPointError, "not finite"),
    ],
)
def test_gradients_that_a_draw_has_not_seen(spoil, error, named):
    model = small_network()
    model.extra = nn.Parameter(torch.ones(2))
    sampler = IVON(model.parameters(), 0.1, N, missing_gradient="skip")
    with sampler.sampled_params():
        backward(model)
        clipped(model, sampler)  # inside of the block it may be done
    spoil(model, sampler)
    before = flat(model)
    with pytest.raises(error, match=named):
        sampler.step()
    assert torch.equal(flat(model), before)


def test_blocks_and_states_at_the_wrong_time():
    model = small_network()
    sampler = IVON(model.parameters(), 0.1, N)
    before, saved = flat(model), copy.deepcopy(sampler.state_dict())
    with pytest.raises(ZeroDivisionError), sampler.sampled_params():
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="sampled_params"), sampler.sampled_params(), sampler.sampled_params():
        pass
    assert torch.equal(flat(model), before)
    with sampler.sampled_params():
        backward(model)
        with pytest.raises(RuntimeError, match="after the block"):
            sampler.step()
    with pytest.raises(RuntimeError, match="state_dict"):
        sampler.state_dict()
    with pytest.raises(RuntimeError, match="draws"):
        sampler.step(closure_for(model, sampler))
    sampler.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="no draw"):
        sampler.step()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda swag: torch.save(swag, io.BytesIO())])
def test_a_copy_would_draw_the_present_weights_for_ever(copied):
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        copied(walked(torch.randn(10, 5))[1])


OWN = {"burn_in": 0, "thinning": 1, "rank": 20, "generator": "its own"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(
            ({"settings": {**OWN, **changes}}, next(iter(changes)))
            for changes in ({"burn_in": 2}, {"thinning": 5}, {"rank": 3})
        ),
        ({"settings": {**OWN, "generator": None}}, "generator"),
        ({"settings": "all"}, "not a state dict"),
        ({"variance": {"theta": torch.tensor([1.0, float("nan")])}}, "'theta'"),
        ({"variance": {"theta": torch.tensor([1.0, -1.0])}}, "'theta'"),
        ({"mean": {"theta": torch.zeros(3)}}, "parameters"),
        ({"mean": None}, "not a state dict"),
        ({"deviations": [torch.zeros(2)]}, "not a state dict"),
        ({"deviations": []}, "deviations"),
        ({"generator": torch.zeros(3, dtype=torch.uint8)}, "generator"),
        ({"count": 0}, "count"),
        ({"steps": 1}, "steps"),
        (None, "not a state dict"),
        ([1.0], "not a state dict"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, named):
    _, swag = walked(torch.randn(4, 2), generator=torch.Generator())
    before = swag.state_dict()
    with pytest.raises(ValueError, match=named):
        swag.load_state_dict({**before, **change} if isinstance(change, dict) else change)
    assert len(swag) == 4
    assert torch.equal(swag.state_dict()["generator"], before["generator"])
    assert torch.equal(swag.state_dict()["variance"]["theta"], before["variance"]["theta"])


def test_a_weight_that_is_not_finite_and_too_few_states():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swag = SWAG(model, optimizer)
    optimizer.step(closure_for(model, optimizer))
    with pytest.raises(RuntimeError, match="two states"), swag.sampled_params():
        pass
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"0\.weight"):
        optimizer.step()
    assert len(swag) == 1
    swag.detach()
    optimizer.step()
    assert len(swag) == 1


def test_draws_of_another_network_are_refused():
    model = small_network()
    sampler = IVON(model.parameters(), 0.1, N)
    with pytest.raises(ValueError, match="changes no parameter of model"):
        SampleCollection.from_draws(copy.deepcopy(model), sampler.sampled_params, 3)
    with pytest.raises(TypeError, match="without brackets"):
        SampleCollection.from_draws(model, sampler.sampled_params(), 3)
