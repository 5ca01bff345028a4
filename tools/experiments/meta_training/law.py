"""The law of a learned sampler on Gaussians, as its weight card has it; of Meta-SGMCMC at constant friction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from learned_samplers import L2E, MetaSGMCMC, ScaleAdaptedL2E
from learned_samplers.learned import weights
from learned_samplers.learned.badge import EARNING
from learned_samplers.learned.law import gaussian_law, l2e_law, measured_at
from learned_samplers.learned.registry import registered, sampler_from_card
from learned_samplers.learned.sampler import LearnedSampler

STIFFNESS = (0.03, 0.3)  # lr times the curvatures of the mean loss, from the smallest to the largest
COORDINATES = 5
HALVINGS = 3  # step sizes ε, ε/2, ε/4
TIME = 8  # steps of a run at the largest ε, in units of 1/a; the first half is left out
LEAST = 120  # steps of it at least
EXPLORATION = 200  # steps of ScaleAdaptedL2E before it has a law; the simulation's burn-in is longer
TEMPERATURES = (1.0, 0.1, 0.01)  # of ScaleAdaptedL2E, whose mass depends on them
SMALL = 0.02  # a bias of the variance that is small enough whatever it was before


def law_of(
    source: Path,
    lr: float | None = None,
    *,
    num_data: int = 50_000,
    coordinates: int = 2000,
    energy: float | None = None,
    law_lr: float | None = None,
    law_temperatures: Sequence[float] | None = None,
) -> dict[str, Any]:
    """What stands in the card of the law of the weights in a file; they are read from it, as a user would.

    Args:
        source: weight file.
        lr: the largest learning rate of the measurement; by default the one that the card recommends.
        num_data: N.
        coordinates: independent ones of each Gaussian (chains of Meta-SGMCMC: ten times as many).
        energy: mean loss at the mode, of Meta-SGMCMC; by default 0.
        law_lr, law_temperatures: of ScaleAdaptedL2E, the learning rate up to which, by default 8·``lr``, and the
            temperatures between which its law is to stand, by default `TEMPERATURES`.

    Raises:
        ValueError, FileNotFoundError: the weights cannot be read, or are of no learned sampler, or of one whose law has
            no such argument.
    """
    card = weights.load_card(source)
    check_asked(card["sampler"], energy=energy, law_lr=law_lr, law_temperatures=law_temperatures)
    lr = card["defaults"]["lr"] if lr is None else lr
    if registered(card["sampler"]) is MetaSGMCMC:
        decay = card["defaults"]["momentum_decay"]
        return meta_law(source, lr, decay, num_data=num_data, chains=10 * coordinates, energy=energy or 0.0)
    if issubclass(registered(card["sampler"]), ScaleAdaptedL2E):
        largest, between = 8 * lr if law_lr is None else law_lr, law_temperatures or TEMPERATURES
        return scale_adapted_law(source, largest, between, num_data=num_data, coordinates=coordinates)
    measure: Any = l2e_law if registered(card["sampler"]) is L2E else gaussian_law
    return measure(lambda params: sampler_from_card(source, params, lr, num_data), coordinates=coordinates)


def check_asked(sampler: str, **asked: Any) -> None:
    """Raise ValueError if an argument of `law_of` is given, not None, that the law of this sampler does not have."""
    owners = {"energy": MetaSGMCMC, "law_lr": ScaleAdaptedL2E, "law_temperatures": ScaleAdaptedL2E}
    for name, value in asked.items():
        if value is not None and not issubclass(registered(sampler), owners[name]):
            raise ValueError(
                f"{name}={value} is for the law of {owners[name].__name__}, these weights are of {sampler}"
            )


def measured_sampler(source: Path, params: Any, lr: float, num_data: float, **keywords: Any) -> LearnedSampler:
    """`sampler_from_card`, with an exploration of `EXPLORATION` steps where there has to be one."""
    if issubclass(registered(weights.load_card(source)["sampler"]), ScaleAdaptedL2E):
        keywords = {"adaptation_steps": EXPLORATION, **keywords}
    return sampler_from_card(source, params, lr, num_data, **keywords)


def scale_adapted_law(
    source: Path, lr: float, temperatures: Sequence[float] = TEMPERATURES, *, num_data: int, coordinates: int
) -> dict[str, Any]:
    """The law of ScaleAdaptedL2E once its mass is frozen, at some temperatures, at ``lr`` and at a quarter of it.

    Returns:
        What `gaussian_law` does, of the temperature with the largest bias; "temperatures", all if each earns the
        badge, else that one; and "bias_by_temperature", the largest at ``lr``/4, as text → number.
    """
    found = {}
    for t in temperatures:
        make = partial(measured_sampler, source, lr=lr, num_data=num_data, temperature=t)
        found[t] = gaussian_law(make, coordinates=coordinates)
    wrong = [t for t, law in found.items() if law["verdict"] not in EARNING]
    worst = max(wrong or found, key=lambda t: abs(found[t]["largest_bias"][-1]))
    return {
        **found[worst],
        "temperatures": [worst] if wrong else list(temperatures),
        "bias_by_temperature": {f"{t:g}": law["largest_bias"][-1] for t, law in found.items()},
    }


def meta_law(
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
        and ε/2, or above `SMALL`; else "biased") and "reason"; for each step size "lr", "momentum_decay",
        "largest_bias" (of any coordinate), "error" (its standard error) and "kinetic" temperature; and what
        `learned_samplers.learned.law.measured_at` says.
    """
    curvature = torch.linspace(*STIFFNESS, COORDINATES) / lr
    found: dict[str, list[float]] = {"lr": [], "momentum_decay": [], "largest_bias": [], "error": [], "kinetic": []}
    steps = max(LEAST, round(TIME / momentum_decay))
    for halving in range(HALVINGS):
        rate, decay = lr / 4**halving, momentum_decay / 2**halving
        bias, error, kinetic = _run(source, rate, decay, curvature, steps * 2**halving, num_data, chains, energy)
        worst = int(bias.abs().argmax())
        for key, value in zip(found, (rate, decay, bias[worst].item(), error[worst].item(), kinetic), strict=True):
            found[key].append(value)
    coarse, bound = max(map(abs, found["largest_bias"][:-1])), (bias.abs() + 2 * error).max().item()
    vanishes = math.isfinite(coarse) and bound <= max(SMALL, coarse / 2)
    said = ", ".join(f"{value:+.1%}" for value in found["largest_bias"])
    reason = f"variance {said} (± {found['error'][-1]:.1%}) at ε, ε/2 and ε/4, at constant friction"
    probe = MetaSGMCMC([torch.zeros(1, requires_grad=True)], lr, num_data, network=source)
    return {
        "verdict": "O(h)" if vanishes else "biased",
        "reason": reason,
        **measured_at(probe),
        **found,
        "energy": energy,
    }


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
