"""Running averages in bfloat16: right in the mean where rounding to the nearest number is not."""

import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned.averages import update_averages
from learned_samplers.learned.feature_sets import feature_set_named

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
    """Bias of the mean over the coordinates, in root mean squares, for each average."""
    return ((ours - exact) * exact.sign()).mean(1) / exact.square().mean(1).sqrt()


def test_averages_have_no_bias_and_little_error_and_a_second_moment_forgets():
    """A thousandth of the gradients' size after 300 steps. The nearest number would stop each average on its way."""
    scales = [1.0] * 300 + [1e-3] * STEPS
    for chosen, largest in (([1.0] * 1000, 0.005), (scales, 0.02)):
        exact, ours = (averages_after(chosen, dtype) for dtype in (torch.float32, torch.bfloat16))
        assert bias(ours, exact).abs().max() < largest
        if chosen is not scales:
            assert ((ours - exact).square().mean(1) / exact.square().mean(1)).sqrt().max() < 0.08
    assert bias(averages_after(scales, torch.bfloat16, nearest=True), exact).abs().max() > 1
