"""Running averages in bfloat16: right in the mean where rounding to the nearest number is not."""

import pytest
import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned.features import _update_rounded_, feature_set_named, update_averages
from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE
from tests.learned_samplers.learned.flat_keywords import L2E

D, STEPS = 400, 3000


def averages_after(scales, dtype, nearest=False):
    """The averages of the set "matrix" of gradients with a mean of their own and noise, whose scale changes by step."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(D, generator=generator)
    named = feature_set_named("matrix")
    averages = torch.zeros(named.num_averages, D, dtype=torch.float32 if nearest else dtype)
    for step, scale in enumerate(scales):
        gradient = scale * (0.1 * centre + torch.randn(D, generator=generator))
        averages = update_averages(averages, gradient, named, step=step, segments=Segments((D,)))
        if nearest:
            averages = averages.to(dtype).float()
    return averages.double()


def bias(ours, exact):
    """Of the mean over the coordinates, in root mean squares, for each average."""
    return ((ours - exact) * exact.sign()).mean(1) / exact.square().mean(1).sqrt()


def test_averages_have_no_bias_and_little_error():
    scales = [1.0] * STEPS
    exact, ours = averages_after(scales, torch.float32), averages_after(scales, torch.bfloat16)
    assert bias(ours, exact).abs().max() < 0.005
    error = (ours - exact).square().mean(1).sqrt() / exact.square().mean(1).sqrt()
    assert error.max() < 0.08


def test_a_second_moment_forgets():
    """A thousandth of the gradients' size after 300 steps. The nearest number would stop each average on its way."""
    scales = [1.0] * 300 + [1e-3] * STEPS
    exact = averages_after(scales, torch.float32)
    assert bias(averages_after(scales, torch.bfloat16), exact).abs().max() < 0.02
    fault = bias(averages_after(scales, torch.bfloat16, nearest=True), exact).abs()
    assert fault.max() > 1


@pytest.mark.parametrize("pieces", [(D,), (100, 1, 299)])
def test_each_tensor_counts_its_own_coordinates(pieces):
    row, gradient = torch.randn(D).bfloat16(), torch.randn(D)
    together, start = row.clone(), 0
    _update_rounded_(together, gradient, 0.01, square=False, number=1, step=7, segments=Segments(pieces))
    for length in pieces:
        alone, part = row[start : start + length].clone(), slice(start, start + length)
        _update_rounded_(alone, gradient[part], 0.01, square=False, number=1, step=7, segments=Segments((length,)))
        assert torch.equal(alone, together[part])
        start += length


@pytest.mark.parametrize("network", ["l2e-gated", "l2e-sparse"])
def test_compiled_and_pure_steps_see_one_average_of_whole_matrices(network, monkeypatch):
    found = []
    for native in ("0", "1"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, native)
        draws = torch.Generator().manual_seed(0)
        p = (0.1 * torch.randn(12, 20, generator=draws)).requires_grad_()
        sampler = L2E([p], num_data=64, network=network, temperature=0.0, averages_dtype="bfloat16")
        for _ in range(5):
            p.grad = 0.01 * torch.randn(12, 20, generator=draws)
            sampler.step()
        found.append(p.detach())
    assert (found[0] - found[1]).norm() < 2e-6 * found[0].norm()
