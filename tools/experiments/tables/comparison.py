"""The runs of the protocol, one process each, and the tables of them."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from experiments.harness.options import DataOptions, OutputOptions, names_once, one_of, positive
from experiments.harness.run_store import RunStore, fingerprint
from experiments.harness.tables import markdown, spread
from experiments.tables.data import CLASSIFICATIONS, GAPS, REGRESSIONS, SPLITS, Table, load
from experiments.tables.methods import METHODS
from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor

#: One run: "set/split/method" → its result.
Found = dict[tuple[str, str, str], dict[str, Any]]


@dataclass(frozen=True)
class TablesOptions(DataOptions, OutputOptions):
    """Small networks on tables: log density, calibration and CPU-seconds of ours and others."""

    # Sets; by default the regressions and then the classifications.
    sets: tuple[Annotated[str, one_of((*REGRESSIONS, *CLASSIFICATIONS), "SET")], ...] = (*REGRESSIONS, *CLASSIFICATIONS)
    # Splits: 0, 1, 2, and for regressions gap0, gap1, gap2. All sets have the first before the second begins.
    splits: tuple[Annotated[str, one_of((*SPLITS, *GAPS))], ...] = SPLITS
    # Methods; hmc only where it is named.
    methods: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(name for name in METHODS if name != "hmc")
    # A Python that has the package sklearn-contrib-bde: for the method bde, airfoil and bike.
    bde_python: str = sys.executable
    # Seconds after which a run is given up.
    limit: float = 3600.0
    # Make no run: show those that are there.
    show: bool = False

    def __post_init__(self) -> None:
        names_once(self, "sets", "splits", "methods")
        positive(self, "limit")

    def jobs(self) -> Iterator[tuple[str, str, str]]:
        """Set, split and method of each run, in the order in which they are made."""
        for split in self.splits:
            for name in self.sets:
                if split in SPLITS or name in REGRESSIONS:
                    yield from ((name, split, method) for method in self.methods)


def results(options: TablesOptions) -> Iterator[Found]:
    """Make every run that is not there, and give all that were asked for so far after each.

    Raises:
        FileNotFoundError: a set, or bde, is not there.
    """
    assert options.out is not None
    found: Found = {}
    tables: dict[str, Table] = {}
    for name, split, method in options.jobs():
        if name not in tables:
            tables[name] = load(name, options.data, options.bde_python)
        table = tables[name]
        rows = rows_of(table, split)
        prints = fingerprint(torch.from_numpy(np.ascontiguousarray(a)) for a in rows.values())
        store = RunStore(options.out, prints, fresh=options.fresh)
        settings = {"set": name, "split": split, "method": method, "of": settings_of(method, table.classes)}
        file = f"{name}_{split}_{method}"
        made = store.read(file, settings)
        if made is None and not options.show:
            made = store.write(file, settings, run(options, method, split, rows))
        if made is not None:
            found[name, split, method] = made | {"plain": {part: plain(rows, part) for part in made["parts"]}}
            yield found


def settings_of(method: str, classes: bool) -> str:
    """The defaults of ours, so that a run is made again where they have changed."""
    estimator = BayesianMLPClassifier() if classes else BayesianMLPRegressor()
    return str(sorted(estimator.get_params().items())) if method in ("ours", "hmc") else ""


def rows_of(table: Table, split: str) -> dict[str, np.ndarray]:
    """x and y of the training rows and every test part of a split, as `methods.measure` takes them."""
    y = table.y.astype(np.int64 if table.classes else np.float64)
    parts = table.split(split).items()
    return {f"x_{part}": table.x[rows].astype(np.float64) for part, rows in parts} | {
        f"y_{part}": y[rows] for part, rows in parts
    }


def plain(rows: Mapping[str, np.ndarray], part: str) -> float:
    """Log density of one normal distribution, or one table of frequencies, of the training targets."""
    train, test = rows["y_train"], rows[f"y_{part}"]
    if train.dtype.kind == "i":
        shares = np.bincount(train, minlength=int(test.max()) + 1) / len(train)
        return float(np.log(np.maximum(shares[test], 1e-12)).mean())
    z = (test - train.mean()) / train.std()
    return float((-0.5 * z**2 - math.log(train.std() * math.sqrt(2 * math.pi))).mean())


def run(options: TablesOptions, method: str, split: str, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One run in a process of its own, with one thread; "failed" says why there is nothing."""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "tools"), os.environ.get("PYTHONPATH", "")])
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    xla = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"
    environment = {**os.environ, **single, "PYTHONPATH": path, "XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu"}
    python = options.bde_python if method == "bde" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rows.npz", Path(folder) / "result.json"
        np.savez(source, **dict[str, Any](rows))
        command = [python, "-m", "experiments.tables.methods", method, split[-1], str(source), str(target)]
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
    return {"failed": reason, "parts": {}}


def collapsed(result: Mapping[str, Any]) -> bool:
    """Whether a run failed, or knows less than the distribution of the training targets."""
    parts = result["parts"]
    first = next((part for part in parts if part != "gap"), None)
    return first is None or not parts[first]["lpd"] >= result["plain"][first]


def report(found: Found) -> str:
    """The tables of what there is, and the answers to the protocol's questions."""
    text = []
    usual = {key: r for key, r in found.items() if key[1] in SPLITS}
    gaps = {key: r for key, r in found.items() if key[1] in GAPS}
    for title, names, columns in (
        ("Regression", REGRESSIONS, ("lpd", "rmse", "coverage", "width", "seconds", "megabytes")),
        ("Classification", CLASSIFICATIONS, ("lpd", "accuracy", "seconds", "megabytes")),
    ):
        for column in columns:
            if rows := matrix(usual, names, "test", column):
                text += [f"## {title}: {TITLES[column]}", markdown(rows)]
    for part in ("gap", "data"):
        for column in ("lpd", "coverage", "width"):
            if rows := matrix(gaps, REGRESSIONS, part, column):
                text += [f"## Gap splits, rows of the {part}: {TITLES[column]}", markdown(rows)]
    return "\n\n".join([*text, answers(usual)])


TITLES = {
    "lpd": "log predictive density",
    "rmse": "RMSE",
    "coverage": "coverage of 90 % intervals, %",
    "width": "width of 90 % intervals, standard deviations of the targets",
    "seconds": "CPU-seconds",
    "megabytes": "peak memory, MB",
    "accuracy": "accuracy, %",
}


def values(found: Found, name: str, method: str, part: str, column: str) -> list[float]:
    """One number of every run of a set and method that has not collapsed."""
    runs = [r for (s, _, m), r in found.items() if (s, m) == (name, method) and not collapsed(r)]
    percent = 100.0 if column in ("coverage", "accuracy") else 1.0
    return [percent * (r[column] if column in ("seconds", "megabytes") else r["parts"][part][column]) for r in runs]


def matrix(found: Found, names: Sequence[str], part: str, column: str) -> list[dict[str, str]]:
    """A row a set, a column a method: mean ± standard deviation over splits; † for each that collapsed."""
    methods = [m for m in METHODS if any(key[2] == m for key in found)]
    decimals = {"coverage": 1, "accuracy": 1, "seconds": 0, "megabytes": 0}.get(column, 3)
    table = []
    for name in names:
        if splits := {split for s, split, _ in found if s == name}:
            row = {"set": name, "splits": str(len(splits))}
            for method in methods:
                bad = [r for (s, _, m), r in found.items() if (s, m) == (name, method) and collapsed(r)]
                row[method] = spread(values(found, name, method, part, column), decimals) + "†" * len(bad)
            table.append(row)
    return table


def answers(found: Found) -> str:
    """Whose log density is higher, on the splits that both have, and at what cost; and coverage of ours."""
    better, cheap, within, sets = [], [], [], []
    for name in REGRESSIONS:
        splits = [s for n, s, m in found if n == name and m == "ours" and (n, s, "bde") in found]
        pairs = [(found[name, s, "ours"], found[name, s, "bde"]) for s in splits]
        pairs = [(a, b) for a, b in pairs if not collapsed(a)]
        if not pairs:
            continue
        sets.append(name)
        if cover := values(found, name, "ours", "test", "coverage"):
            within += [name] if abs(statistics.fmean(cover) - 90) <= 2 else []
        gains = [math.inf if collapsed(b) else a["parts"]["test"]["lpd"] - b["parts"]["test"]["lpd"] for a, b in pairs]
        if statistics.fmean(gains) >= 0:
            better.append(name)
            costs = [(a["seconds"], b.get("seconds", math.inf)) for a, b in pairs]
            cheap += [name] if sum(a for a, _ in costs) <= 0.5 * sum(b for _, b in costs) else []

    def of(chosen: Sequence[str]) -> str:
        return f"{len(chosen)} of {len(sets)} sets ({', '.join(chosen) or 'none'})"

    return (
        f"Log density of ours at least bde's: {of(better)}; at half of its CPU-seconds or less too: {of(cheap)}. "
        f"Coverage of ours within two points of 90 %: {of(within)}."
    )
