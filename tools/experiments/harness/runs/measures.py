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
TEMPERATURES = ("kinetic", "configurational")


def overall(groups: dict[str, dict[str, Any]], temperature: str) -> float | None:
    """Temperature of all weights together: the mean over the parts of the network, by their number of weights."""
    measured = [group for group in groups.values() if group.get(temperature) is not None]
    size = sum(group["size"] for group in measured)
    return sum(group["size"] * group[temperature] for group in measured) / size if measured else None


def mean_temperatures(points: Sequence[dict[str, Any]], after: float) -> dict[str, dict[str, float]]:
    """Mean temperatures over the points of `Log.temperatures` after that step which count as sampling."""
    chosen = [point["groups"] for point in points if point["step"] > after and point["sampling"]]
    means: dict[str, dict[str, float]] = {}
    for temperature in TEMPERATURES:
        series = {"all": [overall(groups, temperature) for groups in chosen]}
        for name in chosen[0] if chosen else ():
            series[name] = [groups[name].get(temperature) for groups in chosen]
        measured = {name: [value for value in values if value is not None] for name, values in series.items()}
        if measured["all"]:
            means[temperature] = {name: float(np.mean(values)) for name, values in measured.items() if values}
    return means


def common_start(settings: Settings, data: ImageData, seed: int, *, independent: bool) -> dict[str, Tensor]:
    """The common start of all samples of a run: its initial weights, or, of members that start independently,
    the mean of initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        networks = [build_network(settings, data) for _ in range(STARTS if independent else 1)]
    states = [{n: p for n, p in network.named_parameters() if p.requires_grad} for network in networks]
    return {name: torch.stack([state[name].detach() for state in states]).mean(0) for name in states[0]}


def explored(samples: SampleCollection, data: ImageData, origin: dict[str, Tensor], settings: Settings) -> Exploration:
    """Differences of the pairs of two samples or more, on at most 1,000 images and so many lines as the settings say;
    of validation images, or for more lines than between ten samples of test images, as nothing is chosen by them."""
    test = settings.lines > LINES
    x, y = (data.test_x, data.test_y) if test else (data.val_x, data.val_y)
    return diagnostics.exploration(samples, x[:IMAGES], y[:IMAGES], origin=origin, max_lines=settings.lines)


def modes(exploration: Exploration) -> dict[str, Any]:
    """Numbers of an `Exploration`, for a file: the median of every measure over all pairs, "by_separation" the same at
    each number of steps between two samples, "near_barrier" that of neighbours, "pairs" and the cosine of each, and of
    the "lines" their pairs, positions and losses in nats."""
    lines = {name: getattr(exploration.lines, name) for name in ("pairs", "positions", "losses")}
    apart = {f"{steps:g}": medians for steps, medians in exploration.by_separation().items()}
    finite = {key: {name: v for name, v in medians.items() if v == v} for key, medians in apart.items()}
    return {
        **exploration.summary(),
        "by_separation": finite,
        "near_barrier": next((medians["barrier"] for medians in finite.values() if "barrier" in medians), None),
        "pairs": [list(pair) for pair in exploration.pairs],
        "cosines": exploration.cosine.tolist(),
        "lines": {name: np.asarray(values).tolist() for name, values in lines.items()},
    }


def converged(samples: SampleCollection) -> dict[str, float]:
    """Share of the weights with cR̂ < 1.1 between the two halves of the chain (κ = 2): "all", and layer by layer.

    Of all, and of each layer, 1,000 evenly spaced weights are taken. Needs `CONVERGENCE_DRAWS` samples or more.
    """
    shares = {name: diagnostics.converged_share(samples.to_arviz(parameters=[name])) for name in samples[0]}
    return {"all": diagnostics.converged_share(samples), **shares}
