"""Scores of a run on validation and test data, its temperatures, and the modes that its samples lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.run_store import RunStore
from experiments.harness.runs.networks import build_network
from experiments.harness.runs.result import Result
from experiments.harness.runs.settings import Settings
from learned_samplers import diagnostics, metrics
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


def validate(result: Result, samples: SampleCollection, data: ImageData, store: RunStore) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y):
        probabilities = samples.predict(data.val_x)
        if not probabilities.isfinite().all():
            return _diverged(result)
        result.validation_nll = metrics.nll(probabilities, data.val_y)
    result.num_samples = len(samples)
    samples.save(store.path(result.name, "samples", ".safetensors"))


def _diverged(result: Result) -> None:
    result.diverged, result.validation_nll = "the predictions are not finite", None


#: Test images of each half.
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}


def score(
    result: Result,
    samples: SampleCollection,
    data: ImageData,
    ood: Mapping[str, ImageData],
    store: RunStore,
    half: str = "all",
) -> None:
    """Fill in the scores of the samples on a half of the test images, and save their predictions of these; what is not
    finite is divergence."""
    single, labels = samples.predict_samples(data.test_x[HALVES[half]]), data.test_y[HALVES[half]]
    result.scored_on = half
    # The averages over the first 1, 2, … samples.
    averages = single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]
    test = averages[-1]
    singles = {name: samples.predict_samples(images.test_x) for name, images in ood.items()}
    means = {name: probabilities.mean(0) for name, probabilities in singles.items()}
    if not all(probabilities.isfinite().all() for probabilities in (test, *means.values())):
        return _diverged(result)
    result.scores = metrics.summary(test, labels, next(iter(means.values()), None))
    result.ood = {
        name: {
            "auroc": metrics.ood_auroc(test, mean),
            "mean_entropy": float(torch.special.entr(mean.double()).sum(1).mean()),
        }
        for name, mean in means.items()
    }
    if len(single) > 1:
        for name, probabilities in singles.items():
            result.ood[name]["information_auroc"] = metrics.information_auroc(single, probabilities)
        result.pairwise_kld = metrics.pairwise_kld(single)
        result.ambiguity = metrics.ambiguity(single, labels)
    result.ess = median_ess(single, labels)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        result.curves[metric.__name__] = [metric(average, labels) for average in averages]
    result.curves["kld"] = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]
    saved = {"test": test, "test_labels": labels, **{f"ood_{name}": mean for name, mean in means.items()}}
    store.write_tensors(result.name, "predictions", saved)


def median_ess(single: Tensor, labels: Tensor) -> float | None:
    """Effective sample size of one chain's log-probability of the true label, the median over test examples."""
    if len(single) < diagnostics.MINIMUM_DRAWS:
        return None
    true = single.gather(2, labels.expand(len(single), -1).unsqueeze(-1)).squeeze(-1)
    draws = true.clamp_min(metrics.FLOOR).log().cpu().numpy()
    return float(np.median(diagnostics.ess(draws[None])))
