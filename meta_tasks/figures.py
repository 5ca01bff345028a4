"""Figures of what a learned sampler's network has become."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from learned_samplers.l2e_features import feature_set_named
from learned_samplers.l2e_rule import Phi, apply_network
from learned_samplers.meta_sgmcmc_network import split_meta_network
from learned_samplers.meta_sgmcmc_rule import Fields

__all__ = ["meta_contours", "output_contours"]

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


def meta_contours(
    phi: Phi, *, largest_energy: float = 5.0, largest_gradient: float = 3.0, curl_clip: float = 5.0,
    friction_scale: float = 1.0, absolute: bool = False,
) -> Figure:  # fmt: skip
    """Contours of what Meta-SGMCMC's networks make of energy, momentum and gradient, for β = s_Q = 1 and κ = 0.

    Left: the curl Q = 1 + f_Q over the energy u and the momentum r. Middle: the friction in units of SGHMC's,
    A/a = Q² + s_D·f_D, over the same at gradient 0. Right: A/a over r and the gradient γ, at a tenth of the largest
    energy. SGHMC has 1 everywhere. A is shown before it is clipped at c_A.

    Args:
        phi: layers of the two networks side by side, without leading axes.
        largest_energy, largest_gradient: ends of the axes, in the units of the networks' inputs.
        curl_clip, friction_scale: c_Q and s_D of the sampler.
        absolute: whether its form is "absolute".
    """
    curl_phi, friction_phi = split_meta_network(phi)
    momentum, energy = torch.linspace(-_RANGE, _RANGE, _GRID), torch.linspace(0, largest_energy, _GRID)
    gradient = torch.linspace(-largest_gradient, largest_gradient, _GRID)

    def at(u: Tensor, r: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Q and A/a where the three axes are broadcast, (grid, grid)."""
        u, r, slope = (x.flatten() for x in torch.broadcast_tensors(u, r, slope))
        fields = Fields(curl_phi, friction_phi, u, slope, torch.inf, absolute)
        curl = (1 + fields.curl(u, r)[0]).clamp(-curl_clip, curl_clip)
        friction = (curl.square() + friction_scale * fields.friction(r)[0]).clamp(min=0.0)
        return curl.view(_GRID, _GRID), friction.view(_GRID, _GRID)

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    with torch.no_grad():
        curl, friction = at(energy[None], momentum[:, None], torch.zeros(1, 1))
        compared = at(torch.full((1, 1), largest_energy / 10), momentum[:, None], gradient[None])[1]
    panels = (
        ("curl Q", energy, curl, "energy u"),
        ("friction A/a, gradient 0", energy, friction, "energy u"),
        (f"friction A/a, u = {largest_energy / 10:g}", gradient, compared, "energy gradient γ"),
    )
    for place, (title, axis, values, label) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 3, place, title=title, xlabel=label, ylabel="momentum r")
        if values.max() > values.min():  # an untrained network changes nothing anywhere
            figure.colorbar(axes.contourf(axis.numpy(), momentum.numpy(), values.numpy(), levels=20), ax=axes)
    return figure
