"""Declaration of UCI regression by f-SVGD and its rivals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from experiments.function_space.splits import Training, fit, scores
from experiments.harness.options import DataOptions, OutputOptions, at_least, one_of
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.study import Experiment, Findings, Job, Measure
from experiments.harness.tables import markdown, rectangular, with_error
from experiments.harness.tuning import Choice, next_by_ratio
from experiments.harness.uci_data import NAMES, RegressionData, load, standardise, validation_folds

HMC_LIMIT = 2000  # HMC takes gradients over all rows: for sets with fewer
AT_ONCE = 5  # splits that are trained together; more are faster as long as they fit the processor's cache
_ADAM = (4e-3, 1.6e-2, 6.4e-2)
#: Learning rates that are tried on validation rows, those of Adam around the paper's; HMC's step size adapts.
RATES = {
    **dict.fromkeys(("FSVGD", "SVGD", "DeepEnsemble", "PlainEnsemble"), _ADAM),
    **{"SGHMC": (3e-3, 1e-2, 3e-2, 1e-1, 3e-1), "HMC": (1e-3,)},
}


@dataclass(frozen=True)
class UCI(Training, DataOptions, OutputOptions):
    """UCI regression: RMSE and log-likelihood of f-SVGD, SVGD, a deep ensemble, SGHMC and (small sets) HMC."""

    sets: tuple[Annotated[str, one_of(NAMES)], ...] = NAMES  # Sets, in the order of the tables.
    # Methods, in the order of the tables, in any letter case.
    methods: tuple[Annotated[str, one_of(RATES)], ...] = tuple(RATES)
    splits: int = 20  # Splits of each set, at most; the files hold 20, of protein 5.
    folds: int = 2  # Folds of split 0's training part that choose the learning rates, 1 to 5.
    seed: int = 0  # Seed of weights, minibatches and noise.
    threads: int = 1  # CPU threads of torch.
    out: Path = Path("runs/uci")  # Folder of the runs, the table and the results.

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "splits", "threads")
        if not 1 <= self.folds <= 5:
            raise ValueError(f"folds must lie in [1, 5], got {self.folds}")


class Regressions(Experiment):
    """Every method on every set; a run is one of up to `AT_ONCE` splits, and its seed is the first of them."""

    measures = (
        Measure("rmse", "Test RMSE, in the units of the target (lower is better)", 3, error=True),
        Measure("log_likelihood", "Test log-likelihood, nats a point (higher is better)", 3, error=True),
    )
    matrix, extensions, beyond = True, 2, staticmethod(next_by_ratio)
    note = "Mean ± standard error over the splits."

    def __init__(self, options: UCI) -> None:
        super().__init__(options)
        self.sets: dict[str, RegressionData] = {name: load(name, options.data) for name in options.sets}

    def problems(self) -> Sequence[str]:
        return tuple(self.sets)

    def methods(self, problem: str) -> Sequence[str]:
        small = len(self.sets[problem].y) < HMC_LIMIT
        return [method for method in self.options.methods if method != "HMC" or small]

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return range(0, min(self.options.splits, len(self.sets[problem].test_index)), AT_ONCE)

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        return [Choice(lr) for lr in RATES[method]]

    def data(self, problem: str) -> str:
        data = self.sets[problem]
        return fingerprint([data.x, data.y, data.test_index])

    def rows(self, job: Job) -> tuple[Tensor, Tensor]:
        """Rows to train and to test on, (G, n) and (G, T)."""
        data = self.sets[job.problem]
        if job.tuning:
            return validation_folds(data, self.options.folds)
        splits = slice(job.seed, min(job.seed + AT_ONCE, self.options.splits))
        return data.train_index()[splits], data.test_index[splits]

    def made_of(self, job: Job) -> dict[str, Any]:
        options, (fitted, tested) = self.options, self.rows(job)
        sizes = {field.name: getattr(options, field.name) for field in fields(Training) if field.name != "preset"}
        budget = options.budget(fitted.shape[1])
        return {**sizes, "steps": None, "base_seed": options.seed, "groups": len(tested), "budget": budget}

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        rows = standardise(self.sets[job.problem], *self.rows(job))
        stream = self.options.seed * 10_000 + job.seed
        fitted = fit(job.method, rows, job.choice.lr, self.options, stream)
        rmse, log_likelihood = (values.tolist() for values in scores(fitted, rows))
        costs = {"seconds": fitted.seconds, "acceptance_rate": fitted.acceptance_rate}
        return {"rmse": rmse, "log_likelihood": log_likelihood, **costs}

    def score(self, run: dict[str, Any]) -> float:
        return -statistics.fmean(run["log_likelihood"])

    def report(self, findings: Findings) -> str:
        rows = []
        for name, methods in findings.runs.items():
            others = [method for method in methods if method != "FSVGD"] if "FSVGD" in methods else []
            rows += [{"set": name} | {m: difference(methods["FSVGD"], methods[m]) for m in others}] if others else []
        note = "### Log-likelihood of f-SVGD less that of each other method on the same splits\n\n"
        return "\n\n".join(filter(None, [super().report(findings), note + markdown(rectangular(rows)) if rows else ""]))


def difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """Mean difference of two methods' log-likelihoods ± standard error, over the splits on which neither diverged."""
    ended = [(a, b) for a, b in zip(ours, theirs) if a["diverged"] is None and b["diverged"] is None]
    pairs = [pair for a, b in ended for pair in zip(a["log_likelihood"], b["log_likelihood"], strict=True)]
    return with_error([x - y for x, y in pairs], 3)
