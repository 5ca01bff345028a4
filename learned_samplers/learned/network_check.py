"""Whether a network of the user's own class computes what a learned rule reads from it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from learned_samplers.learned.network import layers_of, through


def check_forward(network: nn.Module) -> None:
    """Raise ValueError if a module of the user's own class computes something else than its layers with ReLU between.

    The rules read the ``nn.Linear`` layers and never call the module. One without a ``forward`` just holds them.
    """
    if type(network).forward in (nn.Sequential.forward, nn.Module.forward):
        return  # of the first `layers_of` sees the layers themselves
    stream, copied = torch.Generator().manual_seed(0), copy.deepcopy(network).to("cpu", torch.float64)
    with torch.no_grad():
        phi = layers_of(copied)
        for part in (part for pair in phi for part in pair):  # a last layer of zeros would hide what lies before it
            part.add_(torch.randn(part.shape, generator=stream, dtype=part.dtype))
        x = torch.randn(phi[0][0].shape[1], 16, generator=stream, dtype=torch.float64)
        expected = through(phi, x).T
        try:
            found = copied(x.T)
        except Exception as error:
            raise ValueError(f"network's forward fails on features (16, {len(x)}): {error}") from error
    if getattr(found, "shape", None) != expected.shape or not torch.allclose(found, expected):
        raise ValueError(
            f"network's forward must be its nn.Linear layers in the order in which they were made, with ReLU between "
            f"them and nothing else, for that is what a step computes; {type(network).__name__} gives something else"
        )
