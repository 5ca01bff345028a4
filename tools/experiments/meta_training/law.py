"""The law of a learned sampler on Gaussians, as its weight card has it; of Meta-SGMCMC at constant friction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from experiments.meta_training.gaussian import gaussian_law, l2e_law, measured_at
from learned_samplers import L2E, MetaSGMCMC
from learned_samplers.learned import weights
from learned_samplers.learned.cards import registered, sampler_from_card

STIFFNESS = (0.03, 0.3)  # lr times the curvatures of the mean loss, from the smallest to the largest
COORDINATES = 5
HALVINGS = 3  # step sizes ε, ε/2, ε/4
TIME = 8  # steps of a run at the largest ε, in units of 1/a; the first half is left out
LEAST = 120  # steps of it at least
SMALL = 0.02  # a bias of the variance that is small enough whatever it was before


def law_of(
    source: Path, lr: float | None, *, num_data: int = 50_000, coordinates: int = 2000, energy: float | None = None
) -> dict[str, Any]:
    """The law of the weights in a file, as their card has it; they are read from it, as a user would."""
    card = weights.load_card(source)
    sampler = registered(card["sampler"])
    lr = card["defaults"]["lr"] if lr is None else lr
    if sampler is MetaSGMCMC:
        decay = card["defaults"]["momentum_decay"]
        return meta_law(source, lr, decay, num_data=num_data, chains=10 * coordinates, energy=energy or 0.0)
    if energy is not None:
        raise ValueError(f"energy={energy} is for the law of MetaSGMCMC, these weights are of {card['sampler']}")
    measure: Any = l2e_law if sampler is L2E else gaussian_law
    return measure(lambda params: sampler_from_card(source, params, lr, num_data), coordinates=coordinates)


def meta_law(
    source: Path, lr: float, momentum_decay: float, *, num_data: int, chains: int, energy: float
) -> dict[str, Any]:
    """Relative bias of the variance of Meta-SGMCMC on a Gaussian, started from exact draws.

    The Gaussian has `COORDINATES` independent coordinates in each chain, of curvatures `STIFFNESS`/lr. lr goes down by
    4 and the momentum decay by 2 at a time, so that the friction C = a/ε stays and the bias, O(ε), vanishes.
    """
    curvature = torch.linspace(*STIFFNESS, COORDINATES) / lr
    measured: dict[str, list[float]] = {"lr": [], "momentum_decay": [], "largest_bias": [], "error": [], "kinetic": []}
    steps = max(LEAST, round(TIME / momentum_decay))
    for halving in range(HALVINGS):
        rate, decay = lr / 4**halving, momentum_decay / 2**halving
        sampler = chain(source, rate, decay, curvature, num_data, chains)
        bias, error, kinetic = biases(*sampler, curvature, steps * 2**halving, num_data, energy)
        worst = int(bias.abs().argmax())
        for key, value in zip(measured, (rate, decay, bias[worst].item(), error[worst].item(), kinetic), strict=True):
            measured[key].append(value)
    coarse, bound = max(map(abs, measured["largest_bias"][:-1])), (bias.abs() + 2 * error).max().item()
    vanishes = math.isfinite(coarse) and bound <= max(SMALL, coarse / 2)
    biases_text = ", ".join(f"{value:+.1%}" for value in measured["largest_bias"])
    reason = f"variance {biases_text} (± {measured['error'][-1]:.1%}) at ε, ε/2 and ε/4, at constant friction"
    probe = MetaSGMCMC([torch.zeros(1, requires_grad=True)], lr, num_data, network=source)
    verdict = "O(h)" if vanishes else "biased"
    return {"verdict": verdict, "reason": reason, **measured_at(probe), **measured, "energy": energy}


def chain(
    source: Path, lr: float, decay: float, curvature: torch.Tensor, num_data: int, chains: int
) -> tuple[torch.Tensor, MetaSGMCMC]:
    """Exact draws (chains, d) of the Gaussian, and the sampler that moves them."""
    stream = torch.Generator().manual_seed(0)
    draws = torch.randn(chains, len(curvature), generator=stream) * (num_data * curvature).rsqrt()
    theta = draws.requires_grad_()
    settings: dict[str, Any] = {"momentum_decay": decay, "momentum_init": "normal", "generator": stream}
    return theta, MetaSGMCMC([theta], lr, num_data, network=source, **settings)


def biases(
    theta: torch.Tensor, sampler: MetaSGMCMC, curvature: torch.Tensor, steps: int, num_data: int, energy: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Relative bias of each coordinate's variance, its standard error over chains, and the kinetic temperature."""

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        loss = energy + 0.5 * (curvature * theta.square()).sum(1)
        loss.sum().backward()
        return loss

    scale, chains = (num_data * curvature).rsqrt(), len(theta)
    square, kinetic = torch.zeros_like(theta), 0.0
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
