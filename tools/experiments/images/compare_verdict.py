"""The sentence of a comparison: the first learned sampler beside the best of all its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.harness.tables import finished
from experiments.images.compare_statistics import image_error, paired
from experiments.images.methods import METHODS
from experiments.images.result import Result

ERRORS = 2  # standard errors that a difference must exceed


def verdict(runs: Mapping[str, Sequence[Result]], folder: Path | None) -> dict[str, Any] | None:
    """The first learned sampler beside the rival with the lowest mean test NLL, of all methods that are not learned.

    A rival with diverged seeds is taken only where every rival has some. That the rival is the best by these very
    test images favours it. None where there is no learned sampler, no rival, or no seed that both have finished.
    Without a ``folder`` there are no predictions to tell the error of the test images by.

    Returns:
        "method", "rival", "rivals" (how many), "difference" of their mean NLL over the seeds that both have finished,
        its standard "error" over those "seeds" (None for one), "image_error" that the choice of test images gives (or
        None), "accuracy_difference" (None of a regression), and "decided", whether the difference exceeds two of the
        larger error (None for one seed).
    """
    ended = [name for name, results in runs.items() if finished(results)]
    learned = [name for name in ended if METHODS[runs[name][0].method].network is not None]
    rivals = [name for name in ended if METHODS[runs[name][0].method].network is None]
    if not learned or not rivals:
        return None
    whole = [name for name in rivals if len(finished(runs[name])) == len(runs[name])] or rivals
    best = min(whole, key=lambda name: fmean(result.scores["nll"] for result in finished(runs[name])))
    ours, theirs = runs[learned[0]], runs[best]
    if (pair := paired(ours, theirs)) is None:
        return None
    (difference, error), images = pair, None if folder is None else image_error(ours, theirs, folder)
    scores = {result.seed: result.scores for result in finished(theirs)}
    both = [result for result in finished(ours) if result.seed in scores]
    accuracy = [
        result.scores["accuracy"] - scores[result.seed]["accuracy"] for result in both if "accuracy" in result.scores
    ]
    return {
        "method": learned[0],
        "rival": best,
        "rivals": len(rivals),
        "difference": difference,
        "error": error,
        "seeds": len(both),
        "image_error": images,
        "accuracy_difference": fmean(accuracy) if accuracy else None,
        "decided": None if error is None else abs(difference) > ERRORS * max(error, images or 0.0),
    }


def verdict_line(found: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The same as a line of Markdown."""
    error = "" if found["error"] is None else f" ± {found['error']:.4f}"
    seeds = f"paired over {found['seeds']} seeds" if found["seeds"] > 1 else "one seed, so no standard error over seeds"
    accuracy = found["accuracy_difference"]
    ahead = labels[found["method" if found["difference"] < 0 else "rival"]]
    images, errors = found["image_error"], "of the larger error"
    if images is None:
        errors = "standard errors"
    conclusion = {
        None: "one seed decides nothing",
        True: f"more than two {errors}, so {ahead} is ahead",
        False: f"within two {errors}, so no difference is seen",
    }[found["decided"]]
    return (
        f"- {labels[found['method']]} against {labels[found['rival']]}, the best of {found['rivals']} "
        f"{'rivals' if found['rivals'] > 1 else 'rival'} by these test images: NLL {found['difference']:+.4f}{error} "
        f"({seeds}"
        + (")" if images is None else f"; ± {images:.4f} by the choice of test images)")
        + ("" if accuracy is None else f", accuracy {accuracy:+.4f}")
        + f"; {conclusion}."
    )
