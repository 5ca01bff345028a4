"""IVON with what torch puts around an optimizer: `torch.amp.GradScaler` and ``torch.compile``."""

from __future__ import annotations

import pytest
import torch

from learned_samplers.approximations import IVON
from tests.harness import closure_for, flat, small_data, small_network


def _scaled(*, inside, scale):
    """Weights and curvatures after three steps with a loss that is scaled, and unscaled in the block or by `step`."""
    torch.manual_seed(1)
    model, (x, y) = small_network(), small_data()
    sampler, scaler = IVON(model.parameters(), 0.1, len(x)), torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(3):
        with sampler.sampled_params():
            sampler.zero_grad()
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            if inside:
                scaler.unscale_(sampler)
        scaler.step(sampler)
        scaler.update()
    return flat(model), torch.cat([sampler.state[p]["hessian"].flatten() for p in model.parameters()])


def test_a_scaler_that_unscales_outside_of_the_block_is_found():
    """Its kernel leaves the tensor's version as it was, and ĥ would be too large by the scale."""
    with pytest.raises(RuntimeError, match="clip, unscale or add to them inside the block"):
        _scaled(inside=False, scale=2.0**10)


def test_a_scaler_that_unscales_inside_of_the_block_changes_nothing():
    found, expected = _scaled(inside=True, scale=2.0**10), _scaled(inside=False, scale=1.0)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def test_gradients_that_are_not_finite_are_told_as_that():
    sampler = IVON([theta := torch.ones(2, requires_grad=True)], 0.1, 10)
    with sampler.sampled_params():
        sampler.zero_grad()
        theta.grad = torch.tensor([float("nan"), 1.0])
    with pytest.raises(FloatingPointError, match="not finite"):
        sampler.step()


def test_a_step_that_the_scaler_skips_is_forgotten():
    """A first scale of 2¹²⁷ overflows; the draw that did must not be averaged with those after it."""
    torch.manual_seed(1)
    model, (x, y) = small_network(), small_data()
    sampler = IVON(model.parameters(), 0.1, len(x))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    steps = []
    for _ in range(6):
        with sampler.sampled_params():
            sampler.zero_grad()
            scaler.scale(10 * torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.unscale_(sampler)
        scaler.step(sampler)
        scaler.update()
        steps.append(sampler.step_count)
    assert steps[0] == 0
    assert steps[-1] >= 4


def test_after_gradients_that_are_not_finite_the_loop_goes_on():
    theta = torch.ones(2, requires_grad=True)
    sampler, raised = IVON([theta], 0.1, 10), []
    for factor in (float("inf"), 1.0, 1.0):
        with sampler.sampled_params():
            sampler.zero_grad()
            (theta.square().sum() * factor).backward()
        try:
            sampler.step()
        except FloatingPointError:
            raised.append(factor)
    assert raised == [float("inf")]
    assert sampler.step_count == 2


@pytest.mark.parametrize("with_closure", [False, True])
def test_compiled_it_takes_the_same_steps(with_closure):
    def run(compiled):
        torch._dynamo.reset()
        model = small_network()
        sampler = IVON(model.parameters(), 0.1, 64)
        step = torch.compile(sampler.step, backend="eager") if compiled else sampler.step
        closure = closure_for(model, sampler)
        torch.manual_seed(1)
        for _ in range(4):
            if with_closure:
                assert torch.isfinite(step(closure))
            else:
                with sampler.sampled_params():
                    closure()
                step()
        assert sampler.step_count == 4
        return flat(model)

    assert torch.equal(run(True), run(False))
