"""Declaration of the tables: the runs of the protocol, one process each, and the tables of them."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from experiments.harness.options import DataOptions, OutputOptions, names_once, one_of, positive
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.study import Experiment, Findings, Job, Run
from experiments.harness.tables import markdown, with_error
from experiments.tables.data import CLASSIFICATIONS, FEWER, GAPS, MIXED, REGRESSIONS, SPLITS, Table, load
from experiments.tables.methods import METHODS
from experiments.tables.ranks import collapsed, ranks, values
from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor


@dataclass(frozen=True)
class TablesOptions(DataOptions, OutputOptions):
    """Small networks on tables: log density, calibration and CPU-seconds of ours and others."""

    # Sets; by default the regressions and then the classifications.
    sets: tuple[Annotated[str, one_of((*REGRESSIONS, *CLASSIFICATIONS), "SET")], ...] = (*REGRESSIONS, *CLASSIFICATIONS)
    # Splits: 0 to 19, and for regressions gap0, gap1, gap2. All sets have the first before the second begins.
    splits: tuple[Annotated[str, one_of((*SPLITS, *GAPS), "SPLIT")], ...] = SPLITS[:3]
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)  # Methods.
    # A Python that has the package sklearn-contrib-bde: for the method bde, airfoil and bike.
    bde_python: str = sys.executable
    limit: float = 3600.0  # Seconds after which a run is given up.
    out: Path = Path("runs/tables")  # Folder of the runs, the tables and the results.

    def __post_init__(self) -> None:
        names_once(self, "sets", "splits", "methods")
        positive(self, "limit")


def rows_of(table: Table, split: str) -> dict[str, np.ndarray]:
    """x and y of the training rows and every test part of a split, as `methods.measure` takes them."""
    y = table.y.astype(np.int64 if table.classes else np.float64)
    parts = table.split(split)
    x = table.numbers(parts["train"]).astype(np.float64)
    inputs = {f"x_{part}": x[rows] for part, rows in parts.items()}
    return inputs | {f"y_{part}": y[rows] for part, rows in parts.items()}


def plain(rows: Mapping[str, np.ndarray], part: str) -> float:
    """Log density of one normal distribution, or one table of frequencies, of the training targets."""
    train, test = rows["y_train"], rows[f"y_{part}"]
    if train.dtype.kind == "i":
        shares = np.bincount(train, minlength=int(test.max()) + 1) / len(train)
        return float(np.log(np.maximum(shares[test], 1e-12)).mean())
    z = (test - train.mean()) / train.std()
    return float((-0.5 * z**2 - math.log(train.std() * math.sqrt(2 * math.pi))).mean())


def run(options: TablesOptions, method: str, split: str, rows: Mapping[str, np.ndarray]) -> Run:
    """A run in a process of its own, with one thread; "failed" says why there is nothing."""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "tools"), os.environ.get("PYTHONPATH", "")])
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    xla = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"
    environment = {**os.environ, **single, "PYTHONPATH": path, "XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu"}
    python = options.bde_python if method.startswith("bde") else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rows.npz", Path(folder) / "result.json"
        np.savez(source, **dict[str, Any](rows))
        command = [
            python,
            "-m",
            "experiments.tables.methods",
            method,
            split.removeprefix("gap"),
            str(source),
            str(target),
        ]
        reason = f"more than {options.limit:g} s"
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.limit)
            if ended.returncode == 0:
                return json.loads(target.read_text())
            reason = (ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            pass
    if "No module named 'bde'" in reason:
        raise FileNotFoundError(f"{python} has no package bde; install learned-samplers[bde], or name a --bde-python")
    if "No module named" in reason:
        raise FileNotFoundError(f"{method}: {reason}; install learned-samplers[rivals]")
    return {"failed": reason, "parts": {}}


TITLES = {
    "lpd": "log predictive density",
    "rmse": "RMSE",
    "coverage": "coverage of 90 % intervals, %",
    "width": "width of 90 % intervals, standard deviations of the targets",
    "seconds": "CPU-seconds",
    "megabytes": "peak memory, MB",
    "accuracy": "accuracy, %",
}
DECIMALS = {"coverage": 1, "accuracy": 1, "seconds": 0, "megabytes": 0}


class Tables(Experiment):
    """A problem is a split of a set, "concrete 0"; every method has one run on it."""

    def __init__(self, options: TablesOptions) -> None:
        super().__init__(options)
        self.tables: dict[str, Table] = {}

    def problems(self) -> Sequence[str]:
        places = [(name, split) for split in self.options.splits for name in self.options.sets]
        return [f"{name} {split}" for name, split in places if self._exists(name, split)]

    @staticmethod
    def _exists(name: str, split: str) -> bool:
        return int(split) < FEWER.get(name, len(SPLITS)) if split in SPLITS else name in {*REGRESSIONS} - {*MIXED}

    def methods(self, problem: str) -> Sequence[str]:
        classes = problem.split()[0] in CLASSIFICATIONS
        left_out = ("bde-benchmark",) if classes else ("logistic",)
        return [method for method in self.options.methods if method not in left_out]

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return (0,)

    def rows(self, problem: str) -> dict[str, np.ndarray]:
        name, split = problem.split()
        if name not in self.tables:
            self.tables[name] = load(name, self.options.data, self.options.bde_python)
        return rows_of(self.tables[name], split)

    def data(self, problem: str) -> str:
        return fingerprint(torch.from_numpy(np.ascontiguousarray(array)) for array in self.rows(problem).values())

    def made_of(self, job: Job) -> Run:
        """Defaults of ours, so that a run is made again if they have changed."""
        classes = job.problem.split()[0] in CLASSIFICATIONS
        estimator = BayesianMLPClassifier() if classes else BayesianMLPRegressor()
        return {"defaults": str(sorted(estimator.get_params().items())) if job.method.startswith("ours") else ""}

    def run(self, job: Job, store: RunStore) -> Run:
        rows = self.rows(job.problem)
        result = run(self.options, job.method, job.problem.split()[1], rows)
        return {**result, "plain": {part: plain(rows, part) for part in result["parts"]}}

    def report(self, findings: Findings) -> str:
        """Ranks over sets, tables of all splits, a row a set, and the answers to the protocol's questions."""
        text = []
        if ranked := ranks(findings, REGRESSIONS, ("lpd", "rmse")):
            text += ["## Regression: ranks over sets", markdown(ranked)]
        if ranked := ranks(findings, CLASSIFICATIONS, ("lpd", "accuracy")):
            text += ["## Classification: ranks over sets", markdown(ranked)]
        for title, names, splits, part, columns in (
            ("Regression", REGRESSIONS, SPLITS, "test", ("lpd", "rmse", "coverage", "width", "seconds", "megabytes")),
            ("Classification", CLASSIFICATIONS, SPLITS, "test", ("lpd", "accuracy", "seconds", "megabytes")),
            ("Gap splits, rows of the gap", REGRESSIONS, GAPS, "gap", ("lpd", "coverage", "width")),
            ("Gap splits, rows of the data", REGRESSIONS, GAPS, "data", ("lpd", "coverage", "width")),
        ):
            for column in columns:
                rows = [self._row(findings, name, splits, part, column) for name in names]
                if shown := [row for row in rows if row]:
                    text += [f"## {title}: {TITLES[column]}", markdown(shown)]
        return "\n\n".join(filter(None, [*text, answers(findings)]))

    def _row(self, findings: Findings, name: str, splits: Sequence[str], part: str, column: str) -> dict[str, str]:
        """Mean ± standard error of each method over the splits of a set; † for each run that collapsed."""
        problems = [p for p in findings.runs if p in [f"{name} {split}" for split in splits]]
        cells = {"set": name, "splits": str(len(problems))}
        for method in findings.methods():
            runs = [run for p in problems for run in findings.runs[p].get(method, ())]
            cells[method] = with_error(values(runs, part, column), DECIMALS.get(column, 3))
            cells[method] += "†" * sum(map(collapsed, runs))
        return cells if problems else {}


def answers(findings: Findings) -> str:
    """Sets on which the log density of ours is higher than bde's, on the splits that both have, and at what cost.

    Nothing where no set has both.
    """
    better, cheap, within, sets = [], [], [], []
    for name in REGRESSIONS:
        runs = [findings.runs.get(f"{name} {split}", {}) for split in SPLITS]
        pairs = [
            (r["ours"][0], r["bde"][0]) for r in runs if {"ours", "bde"} <= r.keys() and not collapsed(r["ours"][0])
        ]
        if not pairs:
            continue
        sets.append(name)
        if abs(statistics.fmean(values([ours for ours, _ in pairs], "test", "coverage")) - 90) <= 2:
            within.append(name)
        lpd: Callable[[Run], float] = lambda run: run["parts"]["test"]["lpd"]  # noqa: E731
        if statistics.fmean(math.inf if collapsed(b) else lpd(a) - lpd(b) for a, b in pairs) >= 0:
            better.append(name)
            seconds = [(a["seconds"], b.get("seconds", math.inf)) for a, b in pairs]
            cheap += [name] if sum(a for a, _ in seconds) <= 0.5 * sum(b for _, b in seconds) else []

    if not sets:
        return ""

    def of(chosen: Sequence[str]) -> str:
        return f"{len(chosen)} of {len(sets)} sets ({', '.join(chosen) or 'none'})"

    return (
        f"Log density of ours at least bde's: {of(better)}; at half of its CPU-seconds or less too: {of(cheap)}. "
        f"Coverage of ours within two points of 90 %: {of(within)}."
    )
