"""Figures of what a learned sampler's network has become."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from learned_samplers.l2e_features import feature_set_named
from learned_samplers.l2e_rule import Phi, apply_network

__all__ = ["output_contours"]

_GRID = 41
_RANGE = 3.0


def output_contours(phi: Phi, feature_set: str, output_bound: float | None = None) -> Figure:
    """Contours of |α| and |β| over normalised gradient and momentum (Figure 4 of the L2E paper).

    Gradient and its running averages move together along one axis, the momentum along the other, in units of their root
    mean square over the tensor; all other inputs are zero.

    Args:
        phi: layers of one network, without leading axes or with one of length 1.
        feature_set: name of its features.
        output_bound: as of the sampler.
    """
    names = feature_set_named(feature_set).names
    axis = torch.linspace(-_RANGE, _RANGE, _GRID)
    gradient, momentum = torch.meshgrid(axis, axis, indexing="xy")
    x = torch.zeros(len(names), _GRID * _GRID)
    for i, name in enumerate(names):
        if name == "gradient" or name.startswith("average"):
            x[i] = gradient.flatten()
        elif name == "momentum":
            x[i] = momentum.flatten()
    phi = [(weight.reshape(weight.shape[-2:]), bias.reshape(-1)) for weight, bias in phi]
    with torch.no_grad():
        outputs = apply_network(phi, x, output_bound=output_bound)
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for place, (title, y) in enumerate(zip(("|α|", "|β|"), outputs, strict=True), 1):
        axes = figure.add_subplot(1, 2, place, title=title, xlabel="gradient / its RMS", ylabel="momentum / its RMS")
        values = y.abs().view(_GRID, _GRID).numpy()
        if values.max() > 0:  # an untrained residual network puts out zero everywhere
            figure.colorbar(axes.contourf(axis.numpy(), axis.numpy(), values, levels=20), ax=axes)
    return figure
