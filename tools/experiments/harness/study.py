"""An experiment as a declaration, and the loop that carries it out: tuning, seeds, kept runs, processes, tables."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.harness.options import OutputOptions
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.run_store import RunStore
from experiments.harness.runs.checkpoint import TimeIsUp
from experiments.harness.tables import markdown, rectangular, spread, with_error
from experiments.harness.tuning import Choice, Tuning, next_of_series, score_text, tune
from meta_tasks.progress import progress

Run = dict[str, Any]
#: Stores of problems, by name.
Stores = Callable[[str], RunStore]
OTHER_CODE = "Some runs were read back that another version of the code had made."


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

    def __str__(self) -> str:
        words = (self.problem, self.method, str(self.choice), f"seed {self.seed}", "tuning" * self.tuning)
        return ", ".join(filter(None, words))


@dataclass(frozen=True)
class Measure:
    """A number of every run, as tables show it.

    Attributes:
        key: of the number in a run; a list holds several numbers of it, of splits for instance.
        heading, decimals: in tables, after multiplying by ``factor``.
        error: show the standard error of the mean in the place of the standard deviation.
        of: a statistic in the place of mean and deviation.
    """

    key: str
    heading: str
    decimals: int
    factor: float = 1.0
    error: bool = False
    of: Callable[[Sequence[float]], float] | None = None

    def values(self, runs: Sequence[Run]) -> list[float]:
        """Numbers of the runs that ended and have it."""
        numbers = [run[self.key] for run in runs if run["diverged"] is None and run.get(self.key) is not None]
        lists = [value if isinstance(value, list) else [value] for value in numbers]
        return [self.factor * number for values in lists for number in values]

    def cell(self, runs: Sequence[Run]) -> str:
        """Mean ± standard deviation (or error), or the statistic."""
        values = self.values(runs)
        if self.of is not None and values:
            return f"{self.of(values):.{self.decimals}f}"
        return (with_error if self.error else spread)(values, self.decimals)


def with_failures(text: str, runs: Sequence[Run]) -> str:
    """A label or a cell, with the number of runs that diverged, if there are any."""
    failed = sum(run["diverged"] is not None for run in runs)
    return f"{text} ({failed} of {len(runs)} diverged)" if failed else text


@dataclass
class Findings:
    """Finished runs, problem → method → one a seed; what was tuned; and why a method has none: it always diverged."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    tuning: dict[tuple[str, str], Tuning[Choice, Run]] = field(default_factory=dict)
    lost: dict[tuple[str, str], str] = field(default_factory=dict)

    def methods(self) -> list[str]:
        """Methods that have a run, in the order in which they came."""
        return list(dict.fromkeys(method for by_method in self.runs.values() for method in by_method))

    def matrix(self, measure: Measure) -> str:
        """Table of one measure: a row a problem, a column a method."""
        rows = [
            {"problem": problem}
            | {method: with_failures(measure.cell(runs), runs) for method, runs in by_method.items()}
            for problem, by_method in self.runs.items()
        ]
        return markdown(rectangular(rows))

    def table(
        self, problem: str, measures: Sequence[Measure], label: Callable[[str], str] = str, *, settings: bool = True
    ) -> str:
        """Table of one problem: a row a method, a column a measure that any run has; nothing if none has any."""
        by_method = self.runs[problem]
        shown = [m for m in measures if any(m.values(runs) for runs in by_method.values())]
        chosen = {method: str(self.tuning[problem, method].chosen) * settings for method in by_method}
        rows = []
        for method, runs in by_method.items():
            cells = {"setting": chosen[method] or "–"} if any(chosen.values()) else {}
            cells |= {m.heading: m.cell(runs) for m in shown}
            rows.append({"method": with_failures(label(method), runs), **cells})
        return markdown(rows) if shown else ""

    def tuning_table(self) -> str:
        """Validation scores of every setting that was tried, or nothing."""
        rows = []
        for (problem, method), tuning in self.tuning.items():
            tried = [f"{choice}: {score_text(tuning.mean(choice))}" for choice in sorted(tuning.trials)]
            edge = " (at the edge)" * tuning.at_edge
            if tried:
                rows.append({"problem, method": f"{problem}, {method}", "validation score": ", ".join(tried) + edge})
        return f"### Tuning\n\n{markdown(rows)}" if rows else ""

    def content(self) -> dict[str, Any]:
        """All numbers, as JSON takes them."""
        places = [{"problem": problem, "method": method} for problem, method in self.tuning]
        tunings = list(zip(places, self.tuning.values(), strict=True))
        trials = [
            {**place, **asdict(choice), "score": tuning.mean(choice)}
            for place, tuning in tunings
            for choice in tuning.trials
        ]
        chosen = [{**place, **asdict(tuning.chosen)} for place, tuning in tunings]
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
        findings: what there is so far, which the study fills in.
    """

    measures: tuple[Measure, ...] = ()
    matrix = False
    note = ""
    seeds_first = False
    tuning_seeds: Sequence[int] = (1000,)
    extensions = 0
    beyond: Callable[[Sequence[float], int], float] = staticmethod(next_of_series)

    def __init__(self, options: Any) -> None:
        self.options, self.findings = options, Findings()

    def problems(self) -> Sequence[str]:
        raise NotImplementedError

    def methods(self, problem: str) -> Sequence[str]:
        raise NotImplementedError

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return self.options.seed_list()

    def choices(self, problem: str, method: str) -> Sequence[Choice]:
        """Settings that are tried."""
        return (Choice(0.0),)

    def trials(self, problem: str, method: str) -> list[Job]:
        """The runs with which the tuning begins; none of a method with a single choice."""
        choices = self.choices(problem, method)
        several = choices if len(choices) > 1 else ()
        return [Job(problem, method, choice, seed, tuning=True) for choice in several for seed in self.tuning_seeds]

    def tune(self, problem: str, method: str, study: Study) -> Tuning[Any, Run]:
        """All trials of a method on a problem."""
        choices = self.choices(problem, method)
        if len(choices) == 1:
            return Tuning(self.score_of, fixed=choices[0])
        return tune(
            choices,
            lambda choice, seed: study.run(Job(problem, method, choice, seed, tuning=True)),
            self.score_of,
            seeds=self.tuning_seeds,
            extensions=self.extensions,
            beyond=self.beyond,
        )

    def score_of(self, run: Run) -> float | None:
        """`score`; None of a run that diverged."""
        return None if run["diverged"] else self.score(run)

    def data(self, problem: str) -> str | None:
        """Fingerprint of the data of a problem."""
        return None

    def folder(self, problem: str) -> str:
        """Folder of a problem's runs inside that of the results."""
        return ""

    def made_of(self, job: Job) -> dict[str, Any]:
        """Settings that a run depends on, beside the job and the data."""
        return {}

    def run(self, job: Job, store: RunStore) -> Run:
        """Numbers of a run; FloatingPointError if it diverged."""
        raise NotImplementedError

    def kept(self, job: Job, store: RunStore) -> Run:
        """Do a run, or read it back; "diverged" says why there are no numbers, or is None."""

        def make() -> Run:
            try:
                return {"diverged": None, **self.run(job, store)}
            except FloatingPointError as error:
                return {"diverged": " ".join(str(error).split())[:200]}

        return store.run(job.name, {**asdict(job), **self.made_of(job)}, make)

    def score(self, run: Run) -> float:
        """Validation score of a tuning run, the lower the better."""
        return run["score"]

    def finish(self, problem: str, study: Study) -> None:
        """Do what remains when all methods have run on a problem; by default do nothing."""

    def report(self, findings: Findings) -> str:
        """Tables of what there is."""
        if self.matrix:
            parts = [f"### {m.heading}\n\n{findings.matrix(m)}" for m in self.measures]
        else:
            titled = len(findings.runs) > 1
            parts = [f"### {p}\n\n" * titled + findings.table(p, self.measures) for p in findings.runs]
        return "\n\n".join(filter(None, [*parts, findings.tuning_table()]))

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw what there is into a file; by default nothing."""


class Study:
    """All runs of an experiment, kept under a folder: those that are there are read back."""

    def __init__(self, experiment: Experiment, options: OutputOptions, *, locked: bool = True) -> None:
        assert options.out is not None
        self.experiment, self.options, self.out, self.locked = experiment, options, options.out, locked
        self.findings, self._stores = Findings(), dict[str, RunStore]()
        self.of_other_code: set[Path] = set()
        experiment.findings = self.findings

    def store(self, problem: str) -> RunStore:
        """The store of a problem's runs."""
        if problem not in self._stores:
            folder, data = self.out / self.experiment.folder(problem), self.experiment.data(problem)
            self._stores[problem] = RunStore(folder, data, fresh=self.options.fresh, locked=self.locked)
            self._stores[problem].of_other_code = self.of_other_code
        return self._stores[problem]

    def run(self, job: Job) -> Run:
        """Do a run, or read it back."""
        return self.experiment.kept(job, self.store(job.problem))

    def tuning(self, problem: str, method: str) -> Tuning[Any, Run]:
        """The trials of a method, made once; RuntimeError if it diverged at every setting."""
        key = (problem, method)
        if key in self.findings.lost:
            raise RuntimeError(self.findings.lost[key])
        if key not in self.findings.tuning:
            try:
                tuning = self.experiment.tune(problem, method, self)
                chosen = tuning.chosen
            except RuntimeError as error:
                if str(error).startswith("it diverged"):
                    self.findings.lost[key] = str(error)
                raise
            self.findings.tuning[key] = tuning
            if tuning.trials:
                edge = ", at the edge of what was tried" * tuning.at_edge
                best = f"{chosen} has the lowest score, {score_text(tuning.mean(chosen))}, of {len(tuning.trials)}"
                tqdm.write(f"{problem}, {method}: {best}{edge}")
        return self.findings.tuning[key]

    def finals(self, problem: str, method: str) -> list[Job]:
        """The runs of a method that count, at the setting that was chosen; none if it diverged at every one."""
        try:
            choice = self.tuning(problem, method).chosen
        except RuntimeError:
            if (problem, method) not in self.findings.lost:
                raise
            return []
        return [Job(problem, method, choice, seed) for seed in self.experiment.seeds(problem, method)]

    def all(self) -> Iterator[Findings]:
        """Make every run, and give what there is after each method, or each run if all have their first seed first."""
        experiment, jobs = self.experiment, getattr(self.options, "jobs", 1)
        order = [
            (problem, method, number)
            for problem in experiment.problems()
            for method in experiment.methods(problem)
            for number in range(len(experiment.seeds(problem, method)))
        ]
        if experiment.seeds_first:
            order.sort(key=lambda place: place[2])
        last = {problem: place for place, (problem, *_) in enumerate(order)}
        with progress(total=len(order), unit="run") as bar:
            for place, (problem, method, number) in enumerate(order):
                bar.set_description(f"{problem}, {method}")
                if jobs > 1 and problem not in self._stores:
                    self._beside([job for m in experiment.methods(problem) for job in experiment.trials(problem, m)])
                    self._beside([job for m in experiment.methods(problem) for job in self.finals(problem, m)])
                if finals := self.finals(problem, method):
                    run = self.run(finals[number])
                    self.findings.runs.setdefault(problem, {}).setdefault(method, []).append(run)
                if place == last[problem] and problem in self.findings.runs:
                    experiment.finish(problem, self)
                complete = experiment.seeds_first or number == len(finals) - 1 or place == last[problem]
                if complete and problem in self.findings.runs:
                    yield self.findings
                bar.update()

    def _beside(self, jobs: Sequence[Job]) -> None:
        """Make runs side by side, a process each; they are read back afterwards, one after the other."""
        if not jobs:
            return
        self.store(jobs[0].problem).take()  # this process locks the folder for all of them
        context, count = multiprocessing.get_context("spawn"), min(getattr(self.options, "jobs", 1), len(jobs))
        with context.Pool(count, _start, (type(self.experiment), self.options)) as pool:
            for job, error in zip(jobs, pool.imap(_work, jobs), strict=True):
                if error:
                    tqdm.write(f"{job}: {error}")


# The study of a worker process.
_worker: list[Study] = []


def _start(experiment: type[Experiment], options: Any) -> None:
    _worker.append(Study(experiment(options), options, locked=False))


def _work(job: Job) -> str:
    """Make a run; why it could not be made, or nothing."""
    try:
        _worker[0].run(job)
    except TimeIsUp:
        return "the time is up"
    except Exception as error:  # the others go on; the study meets it again
        return f"{type(error).__name__}: {error}"
    return ""


def carry_out(experiment: Experiment, options: Any, command: str) -> Findings:
    """Make all runs; table.md and results.json are written after each method, the figure at the end."""
    study, text = Study(experiment, options), ""
    settings = {"settings": settings_of(options), "torch": torch.__version__}
    try:
        for findings in study.all():
            lost = [f"- {problem}: {method} has no row, {why}" for (problem, method), why in findings.lost.items()]
            warning = OTHER_CODE * bool(study.of_other_code)
            text = "\n\n".join(filter(None, [experiment.report(findings), "\n".join(lost)]))
            page = "\n\n".join(filter(None, [experiment.note, warning, text]))
            write_outputs(study.out, command, page, {**settings, **findings.content()})
    except TimeIsUp:
        print(f"the time is up; the same command goes on from {study.out}")
        if not text:
            print("no row is finished yet")
            return study.findings
    if not text:
        raise RuntimeError("; ".join(f"{p}, {m}: {why}" for (p, m), why in study.findings.lost.items()))
    experiment.figure(study.out / "figure.png", study.findings, study.store)
    print(f"\n{text}\n\nwritten to {study.out}")
    return study.findings
