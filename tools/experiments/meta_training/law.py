"""The law of a learned sampler on Gaussians, as its weight card has it; of Meta-SGMCMC at constant friction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learned_samplers import L2E, MetaSGMCMC
from learned_samplers.base.operations import as_number
from learned_samplers.checks import check_sampler
from learned_samplers.learned import weights
from learned_samplers.learned.badge import EARNING
from learned_samplers.learned.cards import registered, sampler_from_card
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.measures import assumption_violation, flat_states, term_contributions
from learned_samplers.learned.sampler import LearnedSampler

STIFFNESS = (0.03, 0.3)  # lr times the curvatures of the mean loss, from the smallest to the largest
COORDINATES = 5
HALVINGS = 3  # step sizes ε, ε/2, ε/4
TIME = 8  # steps of a run at the largest ε, in units of 1/a; the first half is left out
LEAST = 120  # steps of it at least
SMALL = 0.02  # a bias of the variance that is small enough whatever it was before


def given_rate(card: Mapping[str, Any], lr: float | None) -> float:
    """Return the learning rate that is given, or else the card's; ValueError where there is none."""
    rate = card["defaults"].get("lr") if lr is None else lr
    if rate is None:
        raise ValueError("lr must be given: the card of these weights recommends none")
    return float(rate)


def law_of(
    source: Path, lr: float | None, *, num_data: int = 50_000, coordinates: int = 2000, energy: float | None = None
) -> dict[str, Any]:
    """The law of the weights in a file, as their card has it; they are read from it, as a user would."""
    card = weights.load_card(source)
    sampler = registered(card["sampler"])
    lr = given_rate(card, lr)
    if sampler is MetaSGMCMC:
        decay = card["defaults"].get("momentum_decay", 0.1)
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


#: Steps after which `l2e_law` looks at the terms.
STEPS = 200


def measured_at(sampler: LearnedSampler) -> dict[str, Any]:
    """The settings that a measurement of a sampler's law depends on, besides lr and momentum decay."""
    group = sampler.param_groups[0]
    return {
        "num_data": as_number(group["num_data"]),
        "temperature": float(as_number(group["temperature"])),
        **sampler.fingerprint(),
    }


def gaussian_law(
    make: Callable[[list[Tensor]], LearnedSampler],
    *,
    coordinates: int = 2000,
    stiffness: Sequence[float] = (0.05, 0.2),
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a learned sampler's law for its card: `check_sampler` on Gaussians, at lr and at a quarter of it."""
    probe = make([torch.zeros(1, requires_grad=True)])
    shape = _shape(probe, coordinates)
    report = check_sampler(make, stiffness=stiffness, coordinates=shape, refinement=4.0, tolerance=0.05, seed=seed)
    decay = float(as_number(probe.param_groups[0]["momentum_decay"]))
    worst = max(report.results, key=lambda r: abs(r.bias))
    finest = max(report.results, key=lambda r: abs(r.refined_bias))
    # A chain whose mean is off has not the law either, however its variances scale.
    verdict = "biased" if report.verdict in EARNING and not report.passed else report.verdict
    return {
        "verdict": verdict,
        "reason": report.reason,
        "shape": list(shape),
        **measured_at(probe),
        "lr": [report.lr, report.lr / report.refinement],
        "momentum_decay": [decay, decay],
        "largest_bias": [worst.bias, finest.refined_bias],
        # Of a linear step the bias at the smaller lr is linear algebra, without an error.
        "error": [
            worst.standard_error / worst.target_variance,
            0.0 if math.isnan(finest.refined_error) else finest.refined_error / finest.target_variance,
        ],
        "stiffness": list(stiffness),
        "bias": [r.bias for r in report.results],
        "bias_at_a_quarter_of_lr": [r.refined_bias for r in report.results],
        "kinetic_temperature": [r.kinetic_temperature for r in report.results],
        "configurational_temperature": [r.configurational_temperature for r in report.results],
    }


def _shape(sampler: LearnedSampler, coordinates: int) -> tuple[int, ...]:
    """Shape of so many coordinates, as the sampler's network wants to see them."""
    sees = FEATURE_SETS.get(getattr(getattr(sampler, "settings", None), "feature_set", ""))
    if sees is None or not sees.matrix:
        return (coordinates,)
    rows = math.isqrt(coordinates)
    return rows, math.ceil(coordinates / rows)


def l2e_law(
    make: Callable[[list[Tensor]], L2E],
    *,
    coordinates: int = 2000,
    stiffness: Sequence[float] = (0.05, 0.2),
    seed: int = 0,
) -> dict[str, Any]:
    """Measure the law of an `L2E` for its card: `gaussian_law`, and what each term of its step does."""
    law = gaussian_law(make, coordinates=coordinates, stiffness=stiffness, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = make([torch.zeros(1, requires_grad=True)])
        group = probe.param_groups[0]
        curvatures = [s * group["num_data"] / group["lr"] for s in stiffness]
        spread = [(group["temperature"] / (k + group["prior_precision"])) ** 0.5 for k in curvatures]
        shape = law["shape"]
        params = [(torch.randn(shape) * s).requires_grad_() for s in spread]
        sampler = make(params)
        for _ in range(STEPS + 1):
            for p, k in zip(params, curvatures, strict=True):
                p.grad = p.detach() * (k / group["num_data"])
            if sampler.step_count == STEPS:
                break
            sampler.step()
        (state,) = flat_states(sampler)
    return {
        **law,
        "assumption_violation": float(assumption_violation(**state).relative),
        "terms": {name: float(value) for name, value in term_contributions(**state).items()},
    }
