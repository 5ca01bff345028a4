"""UCI regression, the whole comparison: rates by validation, every split, runs kept on disk, tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from experiments.function_space.uci import HMC_LIMIT, METHODS, Protocol, fit, scores
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, OutputOptions, at_least_one
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.tables import markdown, with_error
from experiments.harness.tuning import Choice, Tuning, next_by_ratio, tune
from experiments.harness.uci_data import NAMES, RegressionData, load, standardise, validation_folds

#: Times that the learning rates are extended where the best lies at their edge.
EXTENSIONS = 2
#: Splits that are trained together; more are faster as long as they fit the processor's cache.
AT_ONCE = 5


@dataclass(frozen=True)
class UCI(DataOptions, OutputOptions):
    """UCI regression: RMSE and log-likelihood of f-SVGD, SVGD, a deep ensemble, SGHMC and (small sets) HMC."""

    # "cpu": 2,000 steps in minibatches of 100. "paper": 500 epochs of minibatches of 100 below 1,000 training rows,
    # 3,000 of minibatches of 1,000 above.
    preset: Literal["cpu", "paper"] = "cpu"
    # Sets, in the order of the tables.
    sets: tuple[Annotated[str, one_of(NAMES)], ...] = NAMES
    # Methods, in the order of the tables, in any letter case.
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)
    # Splits of each set, at most; the files hold 20, of protein 5.
    splits: int = 20
    # Minibatch steps instead of the preset's.
    steps: int | None = None
    # Networks of each method (chains of SGHMC).
    particles: int = 20
    # Trajectories of each HMC chain after its adaptation, which is as long but at most 100.
    hmc_trajectories: int = 100
    # Folds of split 0's training part that choose the learning rates, 1 to 5.
    folds: int = 2
    # Seed of weights, minibatches and noise.
    seed: int = 0
    # CPU threads of torch.
    threads: int = 1
    # Folder of the runs, the table and the results.
    out: Path = Path("runs/uci")

    def __post_init__(self) -> None:
        at_least_one(self, "splits", "steps", "particles", "hmc_trajectories", "threads")
        if not 1 <= self.folds <= 5:
            raise ValueError(f"folds must lie in [1, 5], got {self.folds}")
        self.protocol()

    def protocol(self) -> Protocol:
        batch, steps = {"cpu": ((100, 100), 2000), "paper": ((100, 1000), 0)}[self.preset]
        epochs, steps = (500, 3000), steps if self.steps is None else self.steps
        chosen: Any = {name: (batch[i], steps, epochs[i]) for i, name in enumerate(("small", "large"))}
        burn_in = min(Protocol.hmc_burn_in, self.hmc_trajectories)
        return Protocol(particles=self.particles, hmc_trajectories=self.hmc_trajectories, hmc_burn_in=burn_in, **chosen)


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


class Comparison:
    """All runs of one call."""

    def __init__(self, options: UCI):
        self.options, self.protocol = options, options.protocol()
        self.stores: dict[str, RunStore] = {}

    def tune(self, data: RegressionData, method: str) -> Tuning[Choice, Run]:
        """What was tried on the validation folds; the chosen rate has the best mean validation log-likelihood.

        Raises:
            RuntimeError: every rate diverged.
        """
        fit_rows, held = validation_folds(data, self.options.folds)
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
        for first in range(0, count, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, count))
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
        settings |= {"seed": self.options.seed, "protocol": asdict(self.protocol)}

        def make() -> dict[str, Any]:
            result, rows = Run(len(test)), standardise(data, train, test)
            try:
                fitted = fit(method, rows, lr, self.protocol, self.options.seed * 10_000 + stream)
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
            self.stores[data.name] = RunStore(self.options.out / data.name, digest, fresh=self.options.fresh)
        return self.stores[data.name]


#: Set → method → rate, trials, the splits that ended, and scores of each.
Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


def compare(comparison: Comparison, sets: Sequence[RegressionData], say: Callable[[str], Any]) -> Results:
    """Tune and run everything, set by set; HMC runs on sets with fewer than `HMC_LIMIT` rows."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for data in sets:
        count = min(comparison.options.splits, len(data.test_index))
        for method in comparison.options.methods:
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
            shown = [f"{key} {with_error(entry[key], 3)}" for key in ("rmse", "log_likelihood")]
            say(f"{data.name}, {method}: lr {lr:g}, {', '.join(shown)}, {entry['seconds']:.0f} s")
    return results


def tables(results: Results, methods: Sequence[str]) -> str:
    """RMSE, log-likelihood, differences to f-SVGD and chosen rates as Markdown."""
    rmse = "Test RMSE, in the units of the target (lower is better)"
    likelihood = "Test log-likelihood, nats a point (higher is better)"
    parts = []
    for key, title, better in (("rmse", rmse, min), ("log_likelihood", likelihood, max)):
        rows = []
        for name, entries in results.items():
            means = {m: statistics.fmean(e[key]) for m, e in entries.items() if e[key]}
            # Means over different splits are not to be compared.
            same = len({tuple(e["splits"]) for e in entries.values()}) == 1
            best = better(means, key=means.__getitem__) if means and same else None
            row = {"set": name, "splits": str(max(len(e[key]) for e in entries.values()))}
            for method in methods:
                failed = entries[method]["splits_diverged"] if method in entries else 0
                text = with_error(entries[method][key], 3) if method in entries else ""
                text += f" ({failed} diverged)" if failed else ""
                row[method] = f"**{text}**" if method == best else text
            rows.append(row)
        parts.append(f"{title}; mean ± standard error over the splits, the best mean in bold:\n\n{markdown(rows)}")
    others = [method for method in methods if method != "FSVGD"]
    if "FSVGD" in methods and others:
        rows = [{"set": name} | {m: difference(entries, m) for m in others} for name, entries in results.items()]
        parts.append(
            "Log-likelihood of f-SVGD less that of each other method on the same split, mean ± standard error over the "
            f"splits on which neither diverged (above zero: f-SVGD is better):\n\n{markdown(rows)}"
        )
    rates = [
        {"set": name} | {m: f"{entries[m]['lr']:g}" for m in methods if m in entries and METHODS[m].rates}
        for name, entries in results.items()
    ]
    parts.append(f"Learning rates, chosen on validation rows of split 0:\n\n{markdown(rates)}")
    return "\n\n".join(parts)


def difference(entries: Mapping[str, Mapping[str, Any]], method: str) -> str:
    """Of the log-likelihoods of f-SVGD and another method, over the splits that ended for both."""
    if method not in entries:
        return ""
    pairs = ((entries[m]["splits"], entries[m]["log_likelihood"]) for m in ("FSVGD", method))
    ours, theirs = (dict(zip(splits, values, strict=True)) for splits, values in pairs)
    return with_error([ours[split] - theirs[split] for split in ours if split in theirs], 3)


def uci(options: UCI, command: str) -> None:
    """Run everything and write."""
    sets = [load(name, options.data) for name in options.sets]
    results = compare(Comparison(options), sets, lambda line: print(line, flush=True))
    text = tables(results, options.methods)
    content = {"settings": settings_of(options), "torch": torch.__version__, "sets": results}
    write_outputs(options.out, command, text, content)
    print(f"\n{text}\nwritten to {options.out}")
