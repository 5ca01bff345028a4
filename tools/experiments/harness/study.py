"""An experiment as a declaration, and the loop that carries it out: tuning, seeds, kept runs, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments.harness.options import OutputOptions
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.run_store import RunStore
from experiments.harness.tables import markdown, rectangular, spread, with_error
from experiments.harness.tuning import Choice, Tuning, next_of_series, tune
from meta_tasks.progress import progress

Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A run: a method at a setting on a problem; ``tuning`` marks those by which a setting is chosen."""

    problem: str
    method: str
    choice: Choice
    seed: int
    tuning: bool = False

    @property
    def name(self) -> str:
        """Stem of the run's files."""
        words = "_".join(filter(None, (self.problem, self.method, str(self.choice), "tuning" * self.tuning)))
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in words) + f"_seed{self.seed}"


@dataclass(frozen=True)
class Measure:
    """A number of every run, as tables show it.

    Attributes:
        key: of the number in a run; a list holds several numbers of it, of splits for instance.
        heading, decimals: in tables, after multiplying by ``factor``.
        error: show the standard error of the mean in the place of the standard deviation.
    """

    key: str
    heading: str
    decimals: int
    factor: float = 1.0
    error: bool = False

    def values(self, runs: Sequence[Run]) -> list[float]:
        """Numbers of the runs that ended and have it."""
        numbers = [run[self.key] for run in runs if run["diverged"] is None and run.get(self.key) is not None]
        lists = [value if isinstance(value, list) else [value] for value in numbers]
        return [self.factor * number for values in lists for number in values]

    def cell(self, runs: Sequence[Run]) -> str:
        """Mean ± standard deviation (or error), and how many runs diverged."""
        failed = sum(run["diverged"] is not None for run in runs)
        text = (with_error if self.error else spread)(self.values(runs), self.decimals)
        return f"{text} ({failed} of {len(runs)} diverged)" if failed else text


@dataclass
class Findings:
    """Finished runs, problem → method → one a seed; what was tuned; and why a method has none: it always diverged."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    tuning: dict[tuple[str, str], Tuning[Choice, Run]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], Choice] = field(default_factory=dict)
    lost: dict[tuple[str, str], str] = field(default_factory=dict)

    def methods(self) -> list[str]:
        """Methods that have a run, in the order in which they came."""
        return list(dict.fromkeys(method for by_method in self.runs.values() for method in by_method))

    def matrix(self, measure: Measure, first: str = "problem") -> str:
        """Table of one measure: a row a problem, a column a method."""
        return markdown(
            rectangular(
                [
                    {first: problem} | {method: measure.cell(runs) for method, runs in by_method.items()}
                    for problem, by_method in self.runs.items()
                ]
            )
        )

    def table(self, problem: str, measures: Sequence[Measure]) -> str:
        """Table of one problem: a row a method, a column a measure that any run has."""
        by_method = self.runs[problem]
        shown = [m for m in measures if any(m.values(runs) for runs in by_method.values())]
        rows = []
        for method, runs in by_method.items():
            tuned = {"setting": str(self.chosen[problem, method]) or "–"}
            rows.append({"method": method} | tuned | {m.heading: m.cell(runs) for m in shown})
        if all(row["setting"] == "–" for row in rows):
            for row in rows:
                del row["setting"]
        return markdown(rows)

    def tuning_table(self) -> str:
        """Validation scores of every setting that was tried, or nothing."""
        rows = []
        for (problem, method), tuning in self.tuning.items():
            scores = {str(choice): tuning.mean(choice) for choice in sorted(tuning.trials)}
            tried = ", ".join(f"{c}: {'diverged' if s is None else f'{s:.4f}'}" for c, s in scores.items())
            edge = " (at the edge)" if tuning.edges() else ""
            rows.append({"problem, method": f"{problem}, {method}", "validation score": tried + edge})
        return f"### Tuning\n\n{markdown(rows)}" if rows else ""

    def content(self) -> dict[str, Any]:
        """All numbers, as JSON takes them."""
        trials = [
            {"problem": problem, "method": method, **asdict(choice), "score": tuning.mean(choice)}
            for (problem, method), tuning in self.tuning.items()
            for choice in tuning.trials
        ]
        chosen = [{"problem": p, "method": m, **asdict(choice)} for (p, m), choice in self.chosen.items()]
        lost = [{"problem": p, "method": m, "why": why} for (p, m), why in self.lost.items()]
        return {"runs": self.runs, "tuning": trials, "chosen": chosen, "lost": lost}


class Experiment:
    """A question: problems, methods, what a run does and what is measured. Subclasses say them.

    Attributes:
        measures: columns of the tables.
        matrix: tables by measure, a row a problem, in the place of tables by problem, a row a method.
        note: a sentence above the tables.
        seeds_first: all problems and methods have their first seed before the second begins.
        tuning_seeds, extensions, beyond: see `tune`; a method with a single choice is not tuned.
    """

    measures: tuple[Measure, ...] = ()
    matrix = False
    note = ""
    seeds_first = False
    tuning_seeds: Sequence[int] = (1000,)
    extensions = 0
    beyond: Callable[[Sequence[float], int], float] = staticmethod(next_of_series)

    def __init__(self, options: Any) -> None:
        self.options = options

    def problems(self) -> Sequence[str]:
        raise NotImplementedError

    def methods(self, problem: str) -> Sequence[str]:
        raise NotImplementedError

    def seeds(self, problem: str) -> Sequence[int]:
        return self.options.seed_list()

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        """Settings that are tried."""
        return (Choice(0.0),)

    def data(self, problem: str) -> str | None:
        """Fingerprint of the data of a problem."""
        return None

    def made_of(self, job: Job) -> dict[str, Any]:
        """Settings that a run depends on, beside the job and the data."""
        return {}

    def run(self, job: Job, store: RunStore) -> Run:
        """Numbers of a run; FloatingPointError if it diverged."""
        raise NotImplementedError

    def score(self, run: Run) -> float | None:
        """Validation score of a tuning run, the lower the better."""
        return run["score"]

    def report(self, findings: Findings) -> str:
        """Tables of what there is."""
        if self.matrix:
            parts = [f"### {m.heading}\n\n{findings.matrix(m)}" for m in self.measures]
        else:
            titled = len(findings.runs) > 1
            parts = [f"### {p}\n\n" * titled + findings.table(p, self.measures) for p in findings.runs]
        lost = [f"- {problem}: {method} has no row, {why}" for (problem, method), why in findings.lost.items()]
        return "\n\n".join(filter(None, [self.note, *parts, findings.tuning_table(), "\n".join(lost)]))

    def figure(self, path: Path, findings: Findings, store: Callable[[str], RunStore]) -> None:
        """Draw what there is into a file; by default nothing."""


class Study:
    """All runs of an experiment, kept under a folder: those that are there are read back."""

    def __init__(self, experiment: Experiment, options: OutputOptions) -> None:
        assert options.out is not None
        self.experiment, self.out, self.fresh = experiment, options.out, options.fresh
        self.findings, self._stores = Findings(), dict[str, RunStore]()

    def store(self, problem: str) -> RunStore:
        """The store of a problem's runs."""
        if problem not in self._stores:
            self._stores[problem] = RunStore(self.out, self.experiment.data(problem), fresh=self.fresh)
        return self._stores[problem]

    def run(self, job: Job) -> Run:
        """Do a run, or read it back; "diverged" says why there are no numbers, or is None."""
        store = self.store(job.problem)

        def make() -> Run:
            try:
                return {"diverged": None, **self.experiment.run(job, store)}
            except FloatingPointError as error:
                return {"diverged": " ".join(str(error).split())[:200]}

        return store.run(job.name, {**asdict(job), **self.experiment.made_of(job)}, make)

    def choice(self, problem: str, method: str) -> Choice:
        """The setting that tuning has chosen, or the only one."""
        key, experiment = (problem, method), self.experiment
        if key not in self.findings.chosen:
            choices = experiment.choices(problem, method)
            if len(choices) == 1:
                self.findings.chosen[key] = choices[0]
            else:
                tuning = tune(
                    choices,
                    lambda choice, seed: self.run(Job(problem, method, choice, seed, tuning=True)),
                    lambda run: None if run["diverged"] else experiment.score(run),
                    seeds=experiment.tuning_seeds,
                    extensions=experiment.extensions,
                    beyond=experiment.beyond,
                )
                self.findings.tuning[key], self.findings.chosen[key] = tuning, tuning.chosen
        return self.findings.chosen[key]

    def all(self) -> Iterator[Findings]:
        """Make every run, and give what there is after each."""
        experiment = self.experiment
        order = [
            (problem, method, number, seed)
            for problem in experiment.problems()
            for method in experiment.methods(problem)
            for number, seed in enumerate(experiment.seeds(problem))
        ]
        if experiment.seeds_first:
            order.sort(key=lambda place: place[2])
        with progress(total=len(order), unit="run") as bar:
            for problem, method, _, seed in order:
                bar.set_description(f"{problem}, {method}, seed {seed}")
                if (problem, method) not in self.findings.lost:
                    try:
                        run = self.run(Job(problem, method, self.choice(problem, method), seed))
                    except RuntimeError as error:
                        if not str(error).startswith("it diverged"):
                            raise
                        self.findings.lost[problem, method] = str(error)
                    else:
                        self.findings.runs.setdefault(problem, {}).setdefault(method, []).append(run)
                        yield self.findings
                bar.update()


def carry_out(experiment: Experiment, options: Any, command: str) -> Findings:
    """Make all runs; table.md, results.json and the figure are written after each."""
    study, text = Study(experiment, options), ""
    settings = {"settings": settings_of(options), "torch": torch.__version__}
    for findings in study.all():
        text = experiment.report(findings)
        write_outputs(study.out, command, text, {**settings, **findings.content()})
    if not text:
        raise RuntimeError("; ".join(f"{p}, {m}: {why}" for (p, m), why in study.findings.lost.items()))
    experiment.figure(study.out / "figure.png", study.findings, study.store)
    print(f"\n{text}\n\nwritten to {study.out}")
    return study.findings
