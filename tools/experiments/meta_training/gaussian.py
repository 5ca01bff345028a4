"""Measures the law of a learned sampler; the numbers go into its weights' card, and its badge rests on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import as_number
from learned_samplers.checks import check_sampler
from learned_samplers.learned.badge import EARNING
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2E
from learned_samplers.learned.measures import assumption_violation, flat_states, term_contributions
from learned_samplers.learned.sampler import LearnedSampler

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
    """Measure a learned sampler's law for its card: `check_sampler` on Gaussians, at lr and at a quarter of it.

    Args:
        make: makes the sampler from a list of parameters, as for `check_sampler`.
        coordinates: independent coordinates of each Gaussian; of a network that sees whole matrices, which does
            something else on a vector, they form one that is nearly square, and are as many or a few more.
        stiffness: lr·k/N of each.
        seed: of everything.

    Returns:
        Numbers and strings that JSON can hold: "verdict", "reason"; "shape" of each Gaussian; for each step size "lr",
        "momentum_decay", "largest_bias" and "error" (its standard error); for each "stiffness" "bias",
        "bias_at_a_quarter_of_lr", "kinetic_temperature" and "configurational_temperature"; and what `measured_at` says.
    """
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
    """Of so many coordinates, as the sampler's network wants to see them."""
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
    """Measure the law of an `L2E`, of either form, for its card: `gaussian_law`, and what each term of its step does.

    Args:
        make, coordinates, stiffness, seed: as for `gaussian_law`.

    Returns:
        What `gaussian_law` returns, and after `STEPS` steps from exact draws of the same Gaussians
        "assumption_violation" (the relative one) and "terms" (`term_contributions`).
    """
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
