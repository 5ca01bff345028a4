"""How far a comparison's numbers can be trusted: paired differences, collapsed runs, the choice of test images."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.harness.tables import failed_of, finished, mean_and_std, spread
from experiments.images.result import Result
from experiments.images.runner import predictions
from learned_samplers import metrics

#: How far predictions are from a reference's: of each number its column's heading, and the function of both.
DISTANCES = {
    "agreement": ("agreement with the reference", metrics.agreement),
    "total_variation": ("total variation", metrics.total_variation),
}
COLLAPSED = 1.5  # times the median NLL of a method's runs, from which one of them counts as collapsed


def losses(results: Sequence[Result], folder: Path) -> torch.Tensor:
    """Negative log-probability of each test image's label, the mean over a method's seeds, in nats."""
    ended = [predictions(result, folder) for result in finished(results)]
    if ended and "test_nll" in ended[0]:
        return torch.stack([each["test_nll"].double() for each in ended]).mean(0)
    true = [each["test"].gather(1, each["test_labels"].long().unsqueeze(1))[:, 0].double() for each in ended]
    return -torch.stack(true).clamp_min(metrics.FLOOR).log().mean(0)  # as `metrics.nll` has it


def image_error(ours: Sequence[Result], theirs: Sequence[Result], folder: Path) -> float:
    """Standard error over test images of the difference between two methods' mean NLL, in nats.

    Each image's negative log-probability is the mean over the seeds that both have finished, those of `paired`; more
    seeds do not lessen this error.
    """
    seeds = {result.seed for result in finished(ours)} & {result.seed for result in finished(theirs)}
    kept = ([result for result in finished(each) if result.seed in seeds] for each in (ours, theirs))
    mine, other = (losses(each, folder) for each in kept)
    difference = mine - other
    return float(difference.std() / math.sqrt(len(difference)))


def paired(ours: Sequence[Result], theirs: Sequence[Result]) -> tuple[float, float | None] | None:
    """Mean difference of the test NLL over the seeds that both have finished, and its standard error.

    The error is None for one such seed, the pair None for no seed.
    """
    others = {result.seed: result.scores["nll"] for result in finished(theirs)}
    differences = [result.scores["nll"] - others[result.seed] for result in finished(ours) if result.seed in others]
    if not differences:
        return None
    mean, std = mean_and_std(differences)
    return mean, std / math.sqrt(len(differences)) if len(differences) > 1 else None


def collapsed(results: Sequence[Result], num_classes: int) -> int:
    """Runs that diverged, or whose test NLL is above that of uniform predictions or 1.5 times the method's median.

    Of a regression (``num_classes`` 0), whose NLL has no zero, those that diverged.
    """
    good = [result.scores["nll"] for result in finished(results)]
    if not num_classes:
        return len(results) - len(good)
    bound = min(math.log(num_classes), COLLAPSED * statistics.median(good)) if good else 0.0
    return len(results) - sum(nll <= bound for nll in good)


def robustness(runs: Mapping[str, Sequence[Result]], name: str, folder: Path, num_classes: int) -> dict[str, Any]:
    """Of a method: median, worst seed, collapsed runs, the scaled NLL, and its difference to the first method."""
    results, first = runs[name], next(iter(runs.values()))
    nlls = [result.scores["nll"] for result in finished(results)]
    scaled = [result.scaled_nll for result in finished(results) if result.scaled_nll is not None]
    if len(scaled) < len(nlls):  # a mean of some seeds alone would leave collapsed ones out
        scaled = []
    difference = None
    if results is not first and (pair := paired(results, first)) is not None:
        difference = {"mean": pair[0], "error": pair[1], "image_error": image_error(results, first, folder)}
    return {
        "median_nll": statistics.median(nlls) if nlls else None,
        "worst_nll": max(nlls) if nlls else None,
        "collapsed": collapsed(results, num_classes),
        "scaled_nll": statistics.fmean(scaled) if scaled else None,
        "scaled_nll_std": statistics.stdev(scaled) if len(scaled) > 1 else None,
        "difference": difference,
    }


def equal_time(results: Sequence[Result]) -> dict[str, Any] | None:
    """Of a method's runs in the seconds of the first: how many there are, and gradients, seconds and NLLs of those that
    did not diverge; None without them."""
    if not results:
        return None
    good = finished(results)
    return {
        "runs": len(results),
        "gradients": good[0].gradient_evaluations if good else None,
        "seconds": statistics.fmean(result.seconds for result in good) if good else None,
        "nll": [result.scores["nll"] for result in good],
        "accuracy": [result.scores.get("accuracy") for result in good],
    }


def beside(results: Sequence[Result], folder: Path, reference: torch.Tensor | None) -> dict[str, Any]:
    """Out-of-distribution scores and distances to the reference, one number a seed; nothing of what there is not."""
    good = finished(results)
    found: dict[str, Any] = {}
    if any(result.ood for result in good):
        found["ood"] = {
            name: {key: [result.ood[name][key] for result in good] for key in ("auroc", "mean_entropy")}
            for name in good[0].ood
        }
    if reference is not None:
        tests = [predictions(result, folder)["test"] for result in good]
        found |= {name: [distance(test, reference) for test in tests] for name, (_, distance) in DISTANCES.items()}
    return found


def beside_cells(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The cells of `beside`."""
    cells = {}
    for key, (heading, _) in DISTANCES.items():
        if key in numbers:
            cells[heading] = spread(numbers[key], 4)
    for name, scores in numbers.get("ood", {}).items():
        cells[f"AUROC {name}"] = spread(scores["auroc"], 3)
        cells[f"entropy {name} [nats]"] = spread(scores["mean_entropy"], 3)
    return cells


def robust_cells(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The cells of `robustness` and `equal_time`."""

    def text(value: float | None, form: str = ".4f") -> str:
        return "–" if value is None else f"{value:{form}}"

    difference, alike = numbers["difference"] or {}, numbers["equal_time"]
    scaled, std = text(numbers["scaled_nll"]), numbers["scaled_nll_std"]
    cells = {
        "tries": str(sum(bool(each["seeds"]) for each in numbers["tuning"])),
        "median NLL": text(numbers["median_nll"]),
        "worst NLL": text(numbers["worst_nll"]),
        "collapsed": str(numbers["collapsed"]),
        "difference": text(difference.get("mean"), "+.4f"),
        "± seeds": text(difference.get("error")),
        "± images": text(difference.get("image_error")),
        "scaled NLL": scaled if std is None else f"{scaled} ± {std:.4f}",
    }
    if alike is not None:
        runs, ended = alike.get("runs", len(alike["nll"])), len(alike["nll"])
        cells["gradients at equal time"] = text(alike["gradients"], "d")
        cells["NLL at equal time"] = failed_of(spread(alike["nll"], 4), runs - ended, runs)
    return cells
