"""Contour plots of a learned sampler's network."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, feature_set_named
from learned_samplers.learned.meta_fields import Fields, split_meta_network
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings
from learned_samplers.learned.network import Phi, apply_network

__all__ = ["meta_contours", "output_contours"]

_GRID = 41
#: Ends of the axes, in the units of the networks' inputs.
_RANGE, _LARGEST_ENERGY = 3.0, 5.0
_HELD = (-1.0, 0.0, 1.0)


def output_contours(phi: Phi, feature_set: str, names: tuple[str, str] = ("α", "β")) -> Figure:
    """Contours of the sizes of L2E's two outputs (Figure 4 of the L2E paper), over and at normalised inputs.

    |α| over gradient and parameter at three values of the momentum, |β| over gradient and momentum at three of the
    parameter, each in units of its root mean square over the tensor. The running averages, and what a feature set has
    of gradient and averages over the root of the second moment, move along with the gradient; all else is zero.

    Args:
        phi: layers of one network, without leading axes or with one of length 1.
        feature_set: name of its features.
        names: of the outputs.
    """
    layers = [(weight.reshape(weight.shape[-2:]), bias.reshape(-1)) for weight, bias in phi]
    grids = output_grids(layers, feature_set)
    figure = Figure(figsize=(10, 6), layout="constrained")
    axis, panels = torch.linspace(-_RANGE, _RANGE, _GRID).numpy(), figure.subplots(2, 3, sharex=True, sharey="row")
    rows = (("alpha", "parameter", "momentum"), ("beta", "momentum", "parameter"))
    for name, row, (key, along, held) in zip(names, panels, rows, strict=True):
        values, largest = grids[key].numpy(), grids[key].max().item()
        levels = MaxNLocator(15).tick_values(0, largest)
        for axes, value, at in zip(row, values, _HELD, strict=True):
            axes.set_title(f"|{name}| at {held} {at:g}".replace("-", "−"))
            if largest > 0:
                drawn = axes.contourf(axis, axis, value, levels=levels)
            else:  # an untrained residual network
                axes.text(0.5, 0.5, "0 everywhere", transform=axes.transAxes, ha="center", va="center")
        row[0].set_ylabel(f"{along} / its RMS")
        if largest > 0:
            figure.colorbar(drawn, ax=row, label=f"|{name}|")
    for axes in panels[-1]:
        axes.set_xlabel("gradient / its RMS")
    return figure


def output_grids(phi: Phi, feature_set: str) -> dict[str, Tensor]:
    """|α| and |β| over a grid of the network's normalised inputs, (held values, grid, grid) each.

    Rows are the momentum for β and the parameter for α, columns the gradient; held are the parameter for β and the
    momentum for α.
    """
    named = feature_set_named(feature_set)
    # Features 1 and 2 are θ and r.
    with_gradient = [0, *range(3, 3 + len(AVERAGE_DECAYS))]
    for i, name in enumerate(named.names):
        if "_to_rms" in name or name == "matrix_direction":
            with_gradient.append(i)
    axis = torch.linspace(-_RANGE, _RANGE, _GRID)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    grids: dict[str, list[Tensor]] = {"alpha": [], "beta": []}
    for value in _HELD:
        for head, (output, along, held) in enumerate((("alpha", 1, 2), ("beta", 2, 1))):
            x = torch.zeros(named.size, _GRID * _GRID)
            x[with_gradient] = columns.flatten()
            x[along], x[held] = rows.flatten(), value
            with torch.no_grad():
                like = [(weight.detach().to(x), bias.detach().to(x)) for weight, bias in phi]
                y = apply_network(like, x)[head]
            grids[output].append(y.abs().view(_GRID, _GRID))
    return {name: torch.stack(grid) for name, grid in grids.items()}


def meta_contours(phi: Phi, settings: MetaSGMCMCSettings) -> Figure:
    """Contours of Meta-SGMCMC's curl and friction over energy, momentum and gradient, for s_Q = 1.

    Left: the curl Q = 1 + f_Q over the energy u and the momentum r. Middle: the friction in units of SGHMC's,
    A/a = Q² + s_D·f_D, over the same at gradient 0. Right: A/a over r and the gradient γ, at a tenth of the largest
    energy. SGHMC has 1 everywhere. A is shown before it is clipped at c_A.

    Args:
        phi: layers of the two networks side by side, without leading axes or with one of length 1.
        settings: of the sampler; ``curl_clip`` c_Q and ``friction_scale`` s_D have a say.
    """
    curl_phi, friction_phi = split_meta_network(phi)
    momentum = gradient = torch.linspace(-_RANGE, _RANGE, _GRID)
    energy = torch.linspace(0, _LARGEST_ENERGY, _GRID)

    def at(u: Tensor, r: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Q and A/a where the three axes are broadcast, (grid, grid)."""
        u, r, slope = (x.flatten() for x in torch.broadcast_tensors(u, r, slope))
        fields = Fields(curl_phi, friction_phi, u, slope, torch.inf)
        curl = (1 + fields.curl(u, r)[0]).clamp(-settings.curl_clip, settings.curl_clip)
        friction = (curl.square() + settings.friction_scale * fields.friction(r)[0]).clamp(min=0.0)
        return curl.view(_GRID, _GRID), friction.view(_GRID, _GRID)

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    with torch.no_grad():
        curl, friction = at(energy[None], momentum[:, None], torch.zeros(1, 1))
        compared = at(torch.full((1, 1), _LARGEST_ENERGY / 10), momentum[:, None], gradient[None])[1]
    panels = (
        ("curl Q", energy, curl, "energy u"),
        ("friction A/a, gradient 0", energy, friction, "energy u"),
        (f"friction A/a, u = {_LARGEST_ENERGY / 10:g}", gradient, compared, "energy gradient γ"),
    )
    for place, (title, axis, values, label) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 3, place, title=title, xlabel=label, ylabel="momentum r")
        if values.max() > values.min():  # an untrained network changes nothing anywhere
            figure.colorbar(axes.contourf(axis.numpy(), momentum.numpy(), values.numpy(), levels=20), ax=axes)
    return figure
