"""All runs of the table at 32×32: rates are chosen, then the rows run, side by side and within so many minutes."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.cifar32.methods import DERIVED, METHODS, ROWS
from experiments.cifar32.run import closed_scores, file_of, run

TUNING_SEEDS, SEEDS = (100, 101, 102), (1, 2)
TUNING_EPOCHS, EPOCHS = 5, (50, 40, 30, 25, 20, 15, 10)
#: So many rows decide how many epochs the minutes allow.
LEAST_ROWS = 10
#: Of the minutes that are left, what runs are planned for.
SHARE = 0.9
UNIFORM = 2.302585

Job = tuple[str, float, int, int]  # method, lr, epochs, seed


def _found(out: Path, job: Job) -> dict[str, Any] | None:
    place = file_of(out, *job).with_suffix(".json")
    return json.loads(place.read_text()) if place.exists() else None


def tuning(out: Path, name: str) -> dict[float, list[dict[str, Any]]]:
    """By rate the finished tuning runs of a method, of those seeds for which all of its rates have one."""
    rates = METHODS[name].rates
    runs = {lr: [_found(out, (name, lr, TUNING_EPOCHS, seed)) for seed in TUNING_SEEDS] for lr in rates}
    whole = [i for i in range(len(TUNING_SEEDS)) if all(found[i] for found in runs.values())]
    return {lr: [each for i in whole if (each := found[i])] for lr, found in runs.items()}


def chosen(name: str, out: Path) -> float | None:
    """The rate with the lowest mean validation NLL; None before all rates have a run with the same seed."""
    method = (METHODS | DERIVED)[name]
    if method.rate_of:
        return method.rates[0] if method.rates else chosen(method.rate_of, out)
    means = {}
    for lr, runs in tuning(out, name).items():
        values = [UNIFORM if each["validation_nll"] is None else each["validation_nll"] for each in runs]
        means[lr] = sum(min(x, UNIFORM) for x in values) / max(len(values), 1)
    return min(means, key=means.__getitem__) if tuning(out, name)[method.rates[0]] else None


def _seconds(out: Path, name: str) -> float:
    """The seconds of a tuning run of a method, beside others."""
    runs = [each["seconds"] for found in tuning(out, DERIVED[name].rate_of if name in DERIVED else name).values()
            for each in found]  # fmt: skip
    return sum(runs) / max(len(runs), 1)


class Study:
    """The runs under a folder, ``jobs`` at a time, until ``minutes`` are over.

    Args:
        out: where each run has its files: finished ones are not run again, others go on from their last epoch.
        root: where the images lie.
        device, jobs, minutes: where, how many processes (by default 1 on a CPU, all cores but two for a GPU), and when
            to stop; None without end.
    """

    def __init__(
        self, out: Path, root: Path, device: str = "cpu", jobs: int | None = None, minutes: float | None = None
    ):
        self.out, self.root, self.device = out, root, device
        self.jobs = jobs or (1 if device == "cpu" else max((os.cpu_count() or 3) - 2, 1))
        self.end = None if minutes is None else time.perf_counter() + 60 * minutes

    def left(self) -> float:
        return float("inf") if self.end is None else self.end - time.perf_counter()

    def all(self, say: Callable[[str], None] = print) -> None:
        """Choose the rates, then run the rows."""
        if self.jobs == 1:
            self._all(lambda jobs: (run(*self._arguments(job)) for job in jobs), say)
            return
        with multiprocessing.get_context("spawn").Pool(self.jobs, torch.set_num_threads, (1,)) as pool:
            self._all(lambda jobs: self._of_pool(pool, jobs), say)

    def _all(self, go: Callable[[Sequence[Job]], Iterator[dict[str, Any]]], say: Callable[[str], None]) -> None:
        for number, seed in enumerate(TUNING_SEEDS):
            first = [(name, lr, TUNING_EPOCHS, seed) for name, method in METHODS.items() for lr in method.rates]
            if number and not self._fit([name for name, *_ in first], ROWS[:LEAST_ROWS], EPOCHS[0]):
                break
            self._done(go(first), say)
        epochs = next((e for e in EPOCHS if self._fit([], ROWS[:LEAST_ROWS], e)), EPOCHS[-1])
        for seed in SEEDS:
            rows: list[str] = []
            for name in ROWS:
                if chosen(name, self.out) is not None and self._fit([], [*rows, name], epochs):
                    rows.append(name)
            self._done(go([(name, chosen(name, self.out) or 0.0, epochs, seed) for name in rows]), say)

    def _done(self, runs: Iterator[dict[str, Any]], say: Callable[[str], None]) -> None:
        for each in runs:
            say(json.dumps({key: value for key, value in each.items() if "test" not in key}))
            if self.left() < 0:
                return

    def _fit(self, tuned: Sequence[str], rows: Sequence[str], epochs: int) -> bool:
        """Whether runs at 5 epochs, and then rows, fit in what is left, by the seconds of the tuning runs."""
        if self.end is None:
            return True
        first = [_seconds(self.out, name) for name in tuned]
        then = [_seconds(self.out, name) * epochs / TUNING_EPOCHS for name in rows]
        needed = sum(max(max(each), sum(each) / self.jobs) for each in (first, then) if each)
        return needed < SHARE * self.left()

    def _arguments(self, job: Job) -> tuple[Any, ...]:
        return (*job, self.root, self.out, self.device, job[2] > TUNING_EPOCHS)

    def _of_pool(self, pool: Any, jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
        found = pool.imap_unordered(_run, [self._arguments(job) for job in jobs])
        for _ in jobs:
            try:
                yield found.next(None if self.end is None else max(self.left(), 0.0))
            except multiprocessing.TimeoutError:
                return


def _run(arguments: tuple[Any, ...]) -> dict[str, Any]:
    torch.backends.cudnn.benchmark = True
    try:
        return run(*arguments)
    except Exception as error:  # the others go on
        return {"method": arguments[0], "lr": arguments[1], "error": f"{type(error).__name__}: {error}"}


def table(out: Path, known: dict[str, torch.Tensor] | None = None) -> str:
    """The rows that are there, a run each; with the images ``known``, on the closed half of the test images."""
    half = "closed" if known else "open"
    keys = ("accuracy", "nll", "ece", "auroc", "information_auroc", "photos_auroc", "disagreement", "ambiguity",
            "agreement", "total_variation")  # fmt: skip
    heads = ("method", "lr", "epochs", "seed", "seconds", "validation_nll", *keys)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in ROWS:
        for path in sorted(out.glob("*.json")):
            found = json.loads(path.read_text())
            if found["method"] == name and found["epochs"] > TUNING_EPOCHS:
                found |= closed_scores(path.with_suffix(""), known) if known else {}
                found |= {key: found.get(f"{half}_test_{key}", "–") for key in keys}
                cells = [found[key] for key in heads]
                lines.append("| " + " | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells) + " |")
    return "\n".join(lines)
