"""Where an optimizer and three samplers go on a posterior of two weights with two modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.harness.figures import new_figure
from experiments.harness.options import at_least
from learned_samplers import L2E, SGHMC, CyclicalSGMCMC
from learned_samplers.plots import PALETTE

NUM_DATA, SEPARATION, PRIOR_PRECISION, BATCH = 40, 1.25, 0.05, 8
#: Steps before the first kept state, and between two of them.
BURN_IN, THINNING = 200, 6
_EXTENT = 4.0


@dataclass(frozen=True)
class Posterior:
    """SGD, SGHMC, cyclical SGMCMC and L2E on a posterior of two weights: a strip of four pictures."""

    # Steps of each.
    steps: int = 3000
    # Seed of minibatches and noise.
    seed: int = 0
    # Folder for the figures.
    out: Path = Path("runs/toy_posterior")

    def __post_init__(self) -> None:
        at_least(BURN_IN + 2 * THINNING, self, "steps")


def data() -> Tensor:
    """(40,) points, half around −1.25 and half around 1.25, of standard deviation 1."""
    draws = torch.randn(NUM_DATA, generator=torch.Generator().manual_seed(0))
    return draws + SEPARATION * torch.tensor([-1.0, 1.0]).repeat_interleave(NUM_DATA // 2)


def loss(means: Tensor, x: Tensor) -> Tensor:
    """Mean negative log-likelihood of points (n,) under ½N(w₁, 1) + ½N(w₂, 1), for weights (..., 2)."""
    distances = (x - means[..., None]).square() / 2
    return -torch.logsumexp(-distances, dim=-2).mean(-1) + math.log(2) + 0.5 * math.log(2 * math.pi)


def energy(means: Tensor) -> Tensor:
    """U = N·loss + ½λ‖w‖², which does not change when the two weights are exchanged: two modes."""
    return NUM_DATA * loss(means, data()) + PRIOR_PRECISION / 2 * means.square().sum(-1)


def methods() -> dict[str, Callable[[list[Tensor]], Any]]:
    """The optimizer and the samplers, each from a list of parameters."""
    target: dict[str, Any] = {"num_data": NUM_DATA, "prior_precision": PRIOR_PRECISION}
    return {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=PRIOR_PRECISION / NUM_DATA),
        "SGHMC": lambda p: SGHMC(p, lr=0.03, **target),
        "CyclicalSGMCMC": lambda p: CyclicalSGMCMC(p, lr=0.6, cycle_length=200, exploration_ratio=0.6, **target),
        "L2E": lambda p: L2E(p, lr=0.005, network="l2e", **target),
    }


def walk(make: Callable[[list[Tensor]], Any], steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """All states (steps, 2) from one start, and which of them are kept (steps,), booleans."""
    torch.manual_seed(seed)
    weights, x = torch.tensor([-3.0, -2.6], requires_grad=True), data()
    optimizer = make([weights])
    states, kept = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss(weights, x[torch.randint(NUM_DATA, (BATCH,))]).backward()
        optimizer.step()
        states.append(weights.detach().clone())
        chosen = step >= BURN_IN and step % THINNING == 0
        kept.append(chosen and getattr(optimizer, "is_sampling", True))
    return torch.stack(states), torch.tensor(kept)


def strip(walks: dict[str, tuple[Tensor, Tensor]], *, dark: bool) -> Any:
    """The figure: the posterior in blue, the way in grey, the kept states in orange."""
    ground, ink, way = ("#1e2129", "#e6e6e6", "0.6") if dark else ("white", "black", "0.55")
    fig = new_figure(10.4, 2.9)
    fig.set_facecolor(ground)
    grid = torch.linspace(-_EXTENT, _EXTENT, 161)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    energies = energy(torch.stack([x, y], dim=-1))
    shares = (energies.min() - energies).exp()
    for ax, (name, (states, kept)) in zip(fig.subplots(1, len(walks), sharex=True, sharey=True), walks.items()):
        ax.contourf(x, y, shares, levels=[0.003, 0.05, 0.2, 0.5, 1.01], cmap="Blues_r" if dark else "Blues", alpha=0.8)
        ax.plot(states[:1000, 0], states[:1000, 1], color=way, linewidth=0.4)
        colour = "#FF9F4A" if dark else PALETTE[1]
        ax.plot(states[kept, 0], states[kept, 1], ".", color=colour, markersize=3)
        ax.set(xlim=(-_EXTENT, _EXTENT), ylim=(-_EXTENT, _EXTENT), facecolor=ground, aspect="equal")
        ax.set_title(name, color=ink)
        ax.tick_params(colors=ink, labelsize=8)
        for spine in ax.spines.values():
            spine.set_color(ink)
    return fig


def draw(options: Posterior, command: str) -> None:
    """Run all, and write strip_light.png and strip_dark.png."""
    walks = {name: walk(make, options.steps, options.seed) for name, make in methods().items()}
    options.out.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        fig = strip(walks, dark=theme == "dark")
        fig.savefig(options.out / f"strip_{theme}.png", dpi=100, facecolor=fig.get_facecolor())
    print(f"written to {options.out}")
