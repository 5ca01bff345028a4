"""UCI regression, the whole comparison: rates by validation, every split, runs kept on disk, tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.function_space.uci import HMC_LIMIT, METHODS, Protocol, fit, scores
from experiments.function_space.uci_data import RegressionData, standardise, validation_folds
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.tables import markdown, with_error
from experiments.harness.tuning import Choice, Tuning, next_by_ratio, tune

#: Times that the learning rates are extended where the best lies at their edge.
EXTENSIONS = 2


@dataclass
class Run:
    """The results of one method at one rate on some splits (or on the validation folds of split 0) of one set.

    Attributes:
        rmse, log_likelihood: a number a split, in original units; empty for a run that diverged.
        seconds: of training, all splits together.
        steps: minibatch steps; of HMC, gradients over all rows.
    """

    groups: int
    rmse: list[float] = field(default_factory=list)
    log_likelihood: list[float] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    acceptance_rate: float | None = None
    diverged: str | None = None


class OutOfTime(Exception):
    """Raised when the time limit is reached; finished runs are on disk."""


class Comparison:
    """All runs of one protocol.

    Args:
        out: folder of the runs.
        protocol: of every method.
        at_once: splits that are trained together.
        folds: validation folds (fifths of the training part of split 0) that choose a learning rate.
        seed: of weights, minibatches and noise.
        minutes: after so many no further run is begun; None for no limit.
        fresh: do finished runs again.
    """

    def __init__(
        self,
        out: Path,
        protocol: Protocol,
        *,
        at_once: int = 5,
        folds: int = 2,
        seed: int = 0,
        minutes: float | None = None,
        fresh: bool = False,
    ):
        self.out, self.protocol, self.at_once, self.folds, self.seed = out, protocol, at_once, folds, seed
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.fresh = fresh
        self.stores: dict[str, RunStore] = {}

    def tune(self, data: RegressionData, method: str) -> Tuning[Choice, Run]:
        """What was tried on the validation folds; the chosen rate has the best mean validation log-likelihood.

        Raises:
            RuntimeError: every rate diverged.
        """
        fit_rows, held = validation_folds(data, self.folds)
        try:
            return tune(
                [Choice(lr) for lr in METHODS[method].rates],
                lambda choice, _: self.run(data, method, choice.lr, "validation", fit_rows, held, 1000),
                lambda run: None if run.diverged else -statistics.fmean(run.log_likelihood),
                extensions=EXTENSIONS,
                beyond=next_by_ratio,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{method} on {data.name}: {error}") from error

    def splits(self, data: RegressionData, method: str, lr: float, count: int) -> Iterator[Run]:
        """The method's runs on the first ``count`` splits."""
        train = data.train_index()
        for first in range(0, count, self.at_once):
            part = slice(first, min(first + self.at_once, count))
            label = f"splits{part.start}-{part.stop - 1}"
            yield self.run(data, method, lr, label, train[part], data.test_index[part], first)

    def run(
        self,
        data: RegressionData,
        method: str,
        lr: float,
        label: str,
        train: torch.Tensor,
        test: torch.Tensor,
        stream: int,
    ) -> Run:
        """Do one run, or read it where it is on disk with the same settings."""
        settings = {"set": data.name, "method": method, "lr": lr, "rows": label, "groups": len(test)}
        settings |= {"seed": self.seed, "protocol": asdict(self.protocol)}

        def make() -> dict[str, Any]:
            if self.end is not None and time.monotonic() > self.end:
                raise OutOfTime
            result, rows = Run(len(test)), standardise(data, train, test)
            try:
                fitted = fit(method, rows, lr, self.protocol, self.seed * 10_000 + stream)
            except FloatingPointError as error:
                result.diverged = str(error)
            else:
                result.rmse, result.log_likelihood = (values.tolist() for values in scores(fitted, rows))
                result.seconds, result.steps = fitted.seconds, fitted.steps
                result.acceptance_rate = fitted.acceptance_rate
            return asdict(result)

        return Run(**self.store(data).run(f"{method}_lr{lr:g}_{label}", settings, make))

    def store(self, data: RegressionData) -> RunStore:
        """The runs on one set."""
        if data.name not in self.stores:
            digest = fingerprint([data.x, data.y, data.test_index])
            self.stores[data.name] = RunStore(self.out / data.name, digest, fresh=self.fresh)
        return self.stores[data.name]


def compare(
    comparison: Comparison,
    sets: Sequence[RegressionData],
    methods: Sequence[str],
    splits: int,
    say: Callable[[str], Any],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Tune and run everything, set by set: set → method → rate, trials, the splits that ended, and scores of each.

    HMC runs on sets with fewer than `HMC_LIMIT` rows.
    """
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for data in sets:
        count = min(splits, len(data.test_index))
        for method in methods:
            if method == "HMC" and len(data.y) >= HMC_LIMIT:
                continue
            tuning = comparison.tune(data, method) if METHODS[method].rates else None
            lr = METHODS[method].lr if tuning is None else tuning.chosen.lr
            trials = {} if tuning is None else {choice.lr: run for choice, (run,) in tuning.trials.items()}
            runs = list(comparison.splits(data, method, lr, count))
            firsts = [sum(run.groups for run in runs[:i]) for i in range(len(runs))]
            ended = [range(at, at + run.groups) for at, run in zip(firsts, runs) if run.diverged is None]
            entry: dict[str, Any] = {
                "lr": lr,
                "validation": {f"{rate:g}": trial.log_likelihood for rate, trial in trials.items()},
                "splits": [split for part in ended for split in part],
                "rmse": [value for run in runs for value in run.rmse],
                "log_likelihood": [value for run in runs for value in run.log_likelihood],
                "seconds": sum(run.seconds for run in runs),
                "steps": runs[0].steps,
                "acceptance_rates": [r.acceptance_rate for r in runs if r.acceptance_rate is not None],
                "splits_diverged": sum(run.groups for run in runs if run.diverged is not None),
            }
            results.setdefault(data.name, {})[method] = entry
            say(
                f"{data.name}, {method}: lr {lr:g}, RMSE {with_error(entry['rmse'], 3)}, log-likelihood "
                f"{with_error(entry['log_likelihood'], 3)}, {entry['seconds']:.0f} s"
            )
    return results


def tables(results: Mapping[str, Mapping[str, Mapping[str, Any]]], methods: Sequence[str]) -> str:
    """RMSE, log-likelihood, differences to f-SVGD and chosen rates as Markdown."""
    parts = []
    for key, title, better in (
        ("rmse", "Test RMSE, in the units of the target (lower is better)", min),
        ("log_likelihood", "Test log-likelihood, nats a point (higher is better)", max),
    ):
        rows = []
        for name, entries in results.items():
            means = {m: statistics.fmean(e[key]) for m, e in entries.items() if e[key]}
            # Means over different splits are not to be compared.
            same = len({tuple(e["splits"]) for e in entries.values()}) == 1
            best = better(means, key=means.__getitem__) if means and same else None
            decimals = _decimals(list(means.values())) if key == "rmse" else 3
            row = {"set": name, "splits": str(max(len(e[key]) for e in entries.values()))}
            for method in methods:
                text = with_error(entries[method][key], decimals) if method in entries else ""
                failed = entries[method]["splits_diverged"] if method in entries else 0
                text += f" ({failed} diverged)" if failed else ""
                row[method] = f"**{text}**" if method == best else text
            rows.append(row)
        parts.append(f"{title}; mean ± standard error over the splits, the best mean in bold:\n\n{markdown(rows)}")
    if "FSVGD" in methods and len(methods) > 1:
        rows = _differences(results, methods)
        parts.append(
            "Log-likelihood of f-SVGD less that of each other method on the same split, mean ± standard error over the "
            f"splits on which neither diverged (above zero: f-SVGD is better):\n\n{markdown(rows)}"
        )
    rates = [
        {"set": name} | {m: f"{entries[m]['lr']:g}" for m in methods if m in entries and METHODS[m].rates}
        for name, entries in results.items()
    ]
    parts.append(f"Learning rates, chosen on validation rows of split 0:\n\n{markdown(rates)}")
    return "\n\n".join(parts) + "\n"


def _differences(
    results: Mapping[str, Mapping[str, Mapping[str, Any]]], methods: Sequence[str]
) -> list[dict[str, str]]:
    rows = []
    for name, entries in results.items():
        row = {"set": name}
        for method in methods:
            if method == "FSVGD":
                continue
            ours, theirs = (_by_split(entries[m]) if m in entries else {} for m in ("FSVGD", method))
            differences = [ours[split] - theirs[split] for split in ours if split in theirs]
            row[method] = with_error(differences, 3) if method in entries else ""
        rows.append(row)
    return rows


def _by_split(entry: Mapping[str, Any]) -> dict[int, float]:
    """The log-likelihood of each split that ended."""
    return dict(zip(entry["splits"], entry["log_likelihood"], strict=True))


def _decimals(values: Sequence[float]) -> int:
    """Three, or as many as a small number needs for two digits."""
    least = min((abs(value) for value in values if value), default=1.0)
    return 5 if least < 0.01 else 4 if least < 0.3 else 3
