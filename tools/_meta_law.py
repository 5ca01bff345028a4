"""The law of a Meta-SGMCMC network on Gaussians, at constant friction and shrinking step size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from learned_samplers import MetaSGMCMC

STIFFNESS = (0.03, 0.3)  # lr times the curvatures of the mean loss, from the smallest to the largest
COORDINATES = 5
HALVINGS = 3  # step sizes ε, ε/2, ε/4
TIME = 120  # steps of a run at the largest ε; the first half is left out
SMALL = 0.02  # a bias of the variance that is small enough whatever it was before


def measure(
    source: Path, lr: float, momentum_decay: float, *, num_data: int, chains: int, energy: float
) -> dict[str, Any]:
    """Relative bias of the variance of Meta-SGMCMC on a Gaussian, started from exact draws.

    The Gaussian has `COORDINATES` independent coordinates in each chain, of curvatures `STIFFNESS`/lr. lr goes down by
    4 and the momentum decay by 2 at a time, so that the friction C = a/ε stays and the bias, O(ε), vanishes.

    Args:
        source: weight file.
        lr, momentum_decay: largest ones.
        num_data: N.
        chains: independent ones; the error of each variance falls with their root.
        energy: mean loss at the mode, in nats: where the networks are asked.

    Returns:
        "verdict" ("O(h)" if the bias at ε/4 is at most half of the largest, or below `SMALL`; else "biased") and
        "reason"; for each step size "lr", "momentum_decay", "bias" (mean over coordinates) and "kinetic" temperature.
    """
    curvature = torch.linspace(*STIFFNESS, COORDINATES) / lr
    found: dict[str, list[float]] = {"lr": [], "momentum_decay": [], "bias": [], "kinetic": []}
    for halving in range(HALVINGS):
        rate, decay = lr / 4**halving, momentum_decay / 2**halving
        bias, kinetic = _run(source, rate, decay, curvature, TIME * 2**halving, num_data, chains, energy)
        for key, value in zip(found, (rate, decay, bias, kinetic), strict=True):
            found[key].append(value)
    *coarse, last = map(abs, found["bias"])
    vanishes = math.isfinite(sum(coarse)) and last <= max(SMALL, max(coarse) / 2)
    said = ", ".join(f"{value:+.1%}" for value in found["bias"])
    reason = f"variance {said} at ε, ε/2 and ε/4, at constant friction"
    return {"verdict": "O(h)" if vanishes else "biased", "reason": reason, **found, "energy": energy}


def _run(
    source: Path,
    lr: float,
    decay: float,
    curvature: torch.Tensor,
    steps: int,
    num_data: int,
    chains: int,
    energy: float,
) -> tuple[float, float]:
    stream = torch.Generator().manual_seed(0)
    scale = (num_data * curvature).rsqrt()
    theta = (torch.randn(chains, COORDINATES, generator=stream) * scale).requires_grad_()
    sampler = MetaSGMCMC(
        [theta], lr, num_data, network=source, momentum_decay=decay, momentum_init="normal", generator=stream
    )

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        loss = energy + 0.5 * (curvature * theta.square()).sum(1)
        loss.sum().backward()
        return loss

    variance = kinetic = 0.0
    for step in range(steps):
        try:
            sampler.step(closure)
        except FloatingPointError:
            return math.nan, math.nan
        if step >= steps // 2:
            variance += ((theta.detach() / scale).square().mean() - 1).item()
            kinetic += sampler.state[theta]["momentum"].square().mean().item()
    counted = steps - steps // 2
    return variance / counted, kinetic / counted
