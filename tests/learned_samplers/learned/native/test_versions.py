"""A compiled step changes weights that a graph may still need: autograd must hear of it."""

from __future__ import annotations

import pytest
import torch

from tests.harness import SAMPLERS, closure_for, small_data, small_network


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["SGHMC", "L2E", "AdaptedSGHMC", "MetaSGMCMC", "KineticL2E", "PrecondL2E"])
def test_a_graph_of_the_weights_before_is_refused_after_a_step(name):
    model, (x, y) = small_network(), small_data()
    sampler = SAMPLERS[name](model.parameters())
    stale = torch.nn.functional.cross_entropy(model(x), y)
    sampler.step(closure_for(model, sampler))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
