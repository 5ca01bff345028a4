"""A compiled step changes weights that a graph may still need: autograd must hear of it."""

from __future__ import annotations

import pytest
import torch

from learned_samplers.learned.native.kernel import native_library
from tests.harness import SAMPLERS, small_data, small_network


@pytest.mark.skipif(native_library() is None, reason="the compiled update is not there")
@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC", "MetaSGMCMC", "KineticL2E", "PrecondL2E"])
def test_a_graph_of_the_weights_before_is_refused_after_a_step(name):
    model, (x, y) = small_network(), small_data()
    sampler = SAMPLERS[name](model.parameters())

    def loss():
        return torch.nn.functional.cross_entropy(model(x), y)

    def closure():
        sampler.zero_grad()
        value = loss()
        value.backward()
        return value

    stale = loss()
    sampler.step(closure)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
