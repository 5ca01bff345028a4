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
TIME = 8  # steps of a run at the largest ε, in units of 1/a; the first half is left out
LEAST = 120  # steps of it at least
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
        chains: independent ones; the standard error of each variance falls with their root.
        energy: mean loss at the mode, in nats: where the networks are asked.

    Returns:
        "verdict" ("O(h)" if at ε/4 no coordinate's bias, with two standard errors, is above half of the largest at ε
        and ε/2, or above `SMALL`; else "biased") and "reason"; for each step size "lr", "momentum_decay", "bias" and
        "error" (of the coordinate with the largest bias, and its standard error) and "kinetic" temperature.
    """
    curvature = torch.linspace(*STIFFNESS, COORDINATES) / lr
    found: dict[str, list[float]] = {"lr": [], "momentum_decay": [], "bias": [], "error": [], "kinetic": []}
    steps = max(LEAST, round(TIME / momentum_decay))
    for halving in range(HALVINGS):
        rate, decay = lr / 4**halving, momentum_decay / 2**halving
        bias, error, kinetic = _run(source, rate, decay, curvature, steps * 2**halving, num_data, chains, energy)
        worst = int(bias.abs().argmax())
        for key, value in zip(found, (rate, decay, bias[worst].item(), error[worst].item(), kinetic), strict=True):
            found[key].append(value)
    coarse, bound = max(map(abs, found["bias"][:-1])), (bias.abs() + 2 * error).max().item()
    vanishes = math.isfinite(coarse) and bound <= max(SMALL, coarse / 2)
    said = ", ".join(f"{value:+.1%}" for value in found["bias"])
    reason = f"variance {said} (± {found['error'][-1]:.1%}) at ε, ε/2 and ε/4, at constant friction"
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
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Relative bias of each coordinate's variance, its standard error over chains, and the kinetic temperature."""
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

    square, kinetic = torch.zeros_like(scale.expand(chains, -1)), 0.0
    counted = steps - steps // 2
    for step in range(steps):
        try:
            sampler.step(closure)
        except FloatingPointError:
            return (torch.full_like(scale, math.nan),) * 2 + (math.nan,)
        if step >= steps // 2:
            square += (theta.detach() / scale).square() / counted
            kinetic += sampler.state[theta]["momentum"].square().mean().item() / counted
    return square.mean(0) - 1, square.std(0) / math.sqrt(chains), kinetic
