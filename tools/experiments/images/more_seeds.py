"""One method's runs at one setting that two comparisons made with different seeds, as the numbers of all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.tables import failed_of, plain
from experiments.images.methods import SHORT_NAMES

#: Numbers of a comparison that are lists of one value a seed.
_LISTS = ("runs", "agreement", "total_variation")


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """In which settings two rows of one name differ, each with both values; [] where their seeds belong together.

    Numbers count as the files have them, up to the rounding of one that another comparison handed on; the table's text
    has three digits of them.
    """
    tuned = [key for key in SHORT_NAMES if key in first and key in second]
    different = [key for key in ("method", "also_tuned") if first[key] != second[key]]
    different += [key for key in ("lr", *tuned) if not math.isclose(first[key], second[key], rel_tol=1e-9)]
    return [f"{key}: {first[key]}, {second[key]}" for key in different]


def same_weights(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether the runs of both are of one network, whose fingerprint stands in the names of their files."""
    return len({Path(run["file"]).name.partition("_lr")[0] for each in (first, second) for run in each["runs"]}) == 1


def with_more_seeds(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a method with the runs of both, the first's first.

    Tuning, temperatures and the average of all seeds' predictions stay those of the first (its table says of how many
    runs it is: the predictions of the others are not in the file); what one of them measured and the other did not, and
    runs at equal time, are left out. Collapsed are those that either comparison has counted.

    Args:
        first, second: as a comparison's file has them, without `differences`.

    Raises:
        ValueError: they have a seed in common.
    """
    seeds = [{run["seed"] for run in each["runs"]} for each in (first, second)]
    if common := sorted(seeds[0] & seeds[1]):
        raise ValueError(f"both have seed {common[0]}")
    found = {key: value for key, value in first.items() if key not in ("ood", "layers", "corruptions", *_LISTS)}
    found |= {key: [*first[key], *second[key]] for key in _LISTS if key in first and key in second}
    if "ood" in first and "ood" in second and first["ood"].keys() == second["ood"].keys():
        found["ood"] = {
            name: {key: [*values, *second["ood"][name][key]] for key, values in scores.items()}
            for name, scores in first["ood"].items()
        }
    ended = [run for run in found["runs"] if run["diverged"] is None]
    kept = [key for key in first["mean"] if key in second["mean"]]
    values = {key: [run[key] for run in ended if run.get(key) is not None] for key in kept}
    nlls = values.get("nll")
    scaled = _scaled_nll(first, second, [run.get("scaled_nll") for run in ended])
    failed = len(found["runs"]) - len(ended)
    return found | {
        "label": failed_of(plain(first["label"]), failed, len(found["runs"])),
        "mean": {key: statistics.fmean(each) if each else None for key, each in values.items()},
        "std": {key: statistics.stdev(each) if len(each) > 1 else None for key, each in values.items()},
        "median_nll": statistics.median(nlls) if nlls else None,
        "worst_nll": max(nlls) if nlls else None,
        "collapsed": first["collapsed"] + second["collapsed"],
        "scaled_nll": scaled[0],
        "scaled_nll_std": scaled[1],
        "equal_time": None,
        "further": [*first.get("further", ()), second["command"], *second.get("further", ())],
    }


def _scaled_nll(
    first: Mapping[str, Any], second: Mapping[str, Any], of_runs: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the scaled NLL over all runs; None where a part lacks it."""
    known = [value for value in of_runs if value is not None]
    if known and len(known) == len(of_runs):
        return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None
    parts = [each for each in (first, second) if any(run["diverged"] is None for run in each["runs"])]
    return (None, None) if any(each["scaled_nll"] is None for each in parts) else _moments(parts)


def _moments(parts: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the scaled NLL over the runs of all parts, from those of each."""
    counts = [sum(run["diverged"] is None for run in each["runs"]) for each in parts]
    total = sum(counts)
    if not total:
        return None, None
    mean = sum(n * each["scaled_nll"] for n, each in zip(counts, parts, strict=True)) / total
    squares = sum(
        n * (each["scaled_nll"] - mean) ** 2 + (n - 1) * (each["scaled_nll_std"] or 0.0) ** 2
        for n, each in zip(counts, parts, strict=True)
    )
    return mean, math.sqrt(squares / (total - 1)) if total > 1 else None
