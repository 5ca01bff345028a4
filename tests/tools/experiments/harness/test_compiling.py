"""Compiled networks keep their memory layout where torch's channels-last gradient would be wrong, and only there."""

import pytest
import torch
from experiments.harness.compiling import bears_channels_last, compiled
from torch import nn

from meta_tasks.networks import architectures


@pytest.mark.parametrize(
    ("layer", "bears"),
    [
        (nn.Conv2d(7, 8, 1, stride=2), False),
        (nn.Conv2d(8, 8, 1, stride=2), True),
        (nn.Conv2d(16, 16, 1, stride=(1, 2), groups=4), False),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, stride=2), True),
        (nn.Linear(4, 8), True),
    ],
)
def test_convolutions_of_one_pixel_with_a_stride_and_few_channels(layer, bears):
    assert bears_channels_last(nn.Sequential(nn.Flatten(), nn.Sequential(layer))) == bears


@pytest.mark.parametrize(("width", "options"), [(4, {"layout_optimization": False}), (8, None)])
def test_only_a_narrow_residual_network_is_compiled_without_the_layout(monkeypatch, width, options):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **given: asked.append(given) or f)
    model = architectures.build("resnet20_frn", (3, 8, 8), 10, width=width)
    assert compiled(model, model) is model
    assert asked == [{"options": options}]
