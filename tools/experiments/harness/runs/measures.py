"""Measurements of a finished run besides its scores: temperatures, and whether its samples lie in different modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.runs.networks import build_network
from experiments.harness.runs.settings import Settings
from learned_samplers import diagnostics
from learned_samplers.diagnostics import Exploration
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ImageData

IMAGES = 1000  # on which losses along lines are evaluated
LINES = 45  # between pairs of samples: all of ten
STARTS = 16  # independent initial networks, over which the mean is what members of an ensemble share
CONVERGENCE_DRAWS = 2 * diagnostics.MINIMUM_DRAWS  # that cR̂ of κ = 2 takes
KINDS = ("kinetic", "configurational")


def overall(groups: dict[str, dict[str, Any]], kind: str) -> float | None:
    """Temperature of all weights together: the mean over the parts of the network, by their number of weights."""
    known = [group for group in groups.values() if group.get(kind) is not None]
    size = sum(group["size"] for group in known)
    return sum(group["size"] * group[kind] for group in known) / size if known else None


def mean_temperatures(points: Sequence[dict[str, Any]], after: float) -> dict[str, dict[str, float]]:
    """Mean temperatures over the points of `Log.temperatures` after that step which count as sampling.

    Returns:
        {kind: {"all": of all weights together, and each part of the network by its name}}; a kind that does not exist
        (the kinetic one of a sampler without momentum) is left out.
    """
    chosen = [point["groups"] for point in points if point["step"] > after and point["sampling"]]
    means: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        series = {"all": [overall(groups, kind) for groups in chosen]}
        for name in chosen[0] if chosen else ():
            series[name] = [groups[name].get(kind) for groups in chosen]
        known = {name: [value for value in values if value is not None] for name, values in series.items()}
        if known["all"]:
            means[kind] = {name: float(np.mean(values)) for name, values in known.items() if values}
    return means


def common_start(settings: Settings, data: ImageData, seed: int, *, independent: bool) -> dict[str, Tensor]:
    """What all samples of a run share before it begins: its initial weights, or, of members that start independently,
    the mean of initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = [build_network(settings, data) for _ in range(STARTS if independent else 1)]
    states = [{n: p for n, p in network.named_parameters() if p.requires_grad} for network in networks]
    return {name: torch.stack([state[name].detach() for state in states]).mean(0) for name in states[0]}


def explored(samples: SampleCollection, data: ImageData, origin: dict[str, Tensor]) -> Exploration:
    """How the pairs of two samples or more differ, on at most 1,000 validation images and 45 lines."""
    x, y = data.val_x[:IMAGES], data.val_y[:IMAGES]
    return diagnostics.exploration(samples, x, y, origin=origin, max_lines=LINES)


def modes(found: Exploration) -> dict[str, Any]:
    """The numbers of an `Exploration`, for a file: the median of every measure over all pairs, "by_separation" the same
    at each number of steps between two samples, "pairs" and the cosine of each, and of the "lines" their pairs,
    positions and losses in nats."""
    lines = {"pairs": found.lines.pairs, "positions": found.lines.positions, "losses": found.lines.losses}
    apart = {f"{steps:g}": values for steps, values in found.by_separation().items()}
    return {
        **found.summary(),
        "by_separation": {key: {n: v for n, v in each.items() if v == v} for key, each in apart.items()},
        "pairs": [list(pair) for pair in found.pairs],
        "cosines": found.cosine.tolist(),
        "lines": {name: np.asarray(each).tolist() for name, each in lines.items()},
    }


def converged(samples: SampleCollection) -> dict[str, float]:
    """Share of the weights with cR̂ < 1.1 between the two halves of the chain (κ = 2): "all", and layer by layer.

    Of all, and of each layer, 1,000 evenly spaced weights are taken. Needs `CONVERGENCE_DRAWS` samples or more.
    """
    shares = {name: diagnostics.converged_share(samples.to_arviz(parameters=[name])) for name in samples[0]}
    return {"all": diagnostics.converged_share(samples), **shares}
