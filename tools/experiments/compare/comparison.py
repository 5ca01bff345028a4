"""Declaration of a comparison: every row, tuned and run at every budget of minibatch gradients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.compare import corruptions
from experiments.compare.cifar10_c import RECREATED
from experiments.compare.corruptions import NONE, CorruptedImages
from experiments.compare.figures import draw_all
from experiments.compare.options import CompareOptions
from experiments.compare.presets import PRESETS
from experiments.compare.report import DISTANCES, HEALTH, NOTES, PAIRS, ROBUST, SCORES, layers, numbers
from experiments.compare.report import out_of_distribution as ood_measures
from experiments.harness.run_store import RunStore
from experiments.harness.runs.result import Result, label
from experiments.harness.runs.runner import Resume, Runs, fingerprint_of, predictions
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.trials import Setting, proposal
from experiments.harness.study import Experiment, Findings, Job, Run, Stores, Study
from experiments.harness.tables import finished
from experiments.harness.tuning import Tuning, tune
from learned_samplers import metrics


def gradients(problem: str) -> int:
    """The budget that a problem is, "400 gradients"."""
    return int(problem.split()[0])


def problem_of(budget: int) -> str:
    return f"{budget} gradients"


class Comparison(Experiment):
    """A problem is a budget; a method is a row.

    Attributes:
        results: finished runs, by their file below the folder of the results.
    """

    note = NOTES

    def __init__(self, options: CompareOptions) -> None:
        super().__init__(options)
        self.images, self.ood = options.load()
        self.reference = options.load_reference(self.images)
        self.alternatives = options.alternatives(self.images)
        self.tuning_seeds = options.tuning_seeds()
        end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        self.resume = Resume(options.state or options.folder() / "state", options.state_minutes, end)
        self.results: dict[str, Result] = {}
        self.best: dict[str, list[Setting]] = {}  # of each row, the settings that the next budget tries
        self.diverged: dict[str, str] = {}  # rows that diverged at every setting of a budget

    def problems(self) -> Sequence[str]:
        return [problem_of(budget) for budget in self.options.all_budgets(self.images)]

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.sampler

    def seeds(self, problem: str, method: str) -> Sequence[int]:
        return self.options.seeds_of(method)

    def data(self, problem: str) -> str:
        return fingerprint_of(self.images, self.ood)

    def folder(self, problem: str) -> str:
        return f"steps_{gradients(problem)}"

    # ------------------------------------------------------------------------------------------------------ tuning

    def _tuned_at(self, problem: str, method: str) -> str:
        """The budget at which a row is tuned."""
        budget = None if self.options.is_given(method) else self.options.tune_budget
        return problem if budget is None else problem_of(budget)

    def choices(self, problem: str, method: str) -> Sequence[Setting]:
        return self.best.get(method) or self.options.candidates(method, self.images, gradients(problem))

    def trials(self, problem: str, method: str) -> list[Job]:
        at = self._tuned_at(problem, method)
        if self.options.is_given(method) or (at, method) in self.findings.tuning or method in self.diverged:
            return []
        return [Job(at, method, s, seed, tuning=True) for s in self.choices(at, method) for seed in self.tuning_seeds]

    def tune(self, problem: str, method: str, study: Study) -> Tuning[Any, Run]:
        """Trials at a budget: new ones at the smallest, the best of it (successive halving) and some more at others."""
        options, at = self.options, self._tuned_at(problem, method)
        if options.is_given(method):
            (setting,) = self.choices(problem, method)
            if rate_of := options.row(method).rate_of:
                setting = Setting(study.tuning(problem, rate_of).chosen.lr)
            return Tuning(self.score_of, fixed=setting)
        if at != problem:
            return study.tuning(at, method)
        if method in self.diverged:
            raise RuntimeError(self.diverged[method])
        try:
            tuning = tune(
                self.choices(problem, method),
                lambda setting, seed: study.run(Job(problem, method, setting, seed, tuning=True)),
                self.score_of,
                seeds=self.tuning_seeds,
                tries=options.tries_at(gradients(problem), self.images, method),
                propose=lambda tuning: proposal(tuning, self.alternatives),
            )
        except RuntimeError as error:
            self.diverged[method] = f"{error}, at {problem}"
            raise
        self.best[method] = tuning.ranked()[: options.keep]
        for setting, trials in tuning.trials.items():
            for run in trials if setting != tuning.chosen else ():
                self._runs(study.store(problem)).discard_samples(self.results[run["file"]])
        return tuning

    def score(self, run: Run) -> float:
        """Validation NLL, or the distance from HMC's predictions."""
        if self.options.tune_by == "validation":
            return run["validation_nll"]
        reference = self.reference_for(run)
        if reference is None:
            raise ValueError("tune_by='distance' needs a --reference, or the row HMC before the others")
        return metrics.total_variation(self.predictions(run), reference)

    # -------------------------------------------------------------------------------------------------------- runs

    def _runs(self, store: RunStore) -> Runs:
        return Runs(self.images, self.ood, store, self.resume)

    def settings(self, job: Job) -> Settings:
        """Settings of a run: those of the comparison and its row, with the budget and what is tuned."""
        assert isinstance(job.choice, Setting)
        return replace(self.options.run_settings(job.method, gradients(job.problem)), **dict[str, Any](job.choice.also))

    def kept(self, job: Job, store: RunStore) -> Run:
        assert isinstance(job.choice, Setting)
        options, runs, settings = self.options, self._runs(store), self.settings(job)
        test = not job.tuning or options.tune_by == "distance"
        how = (options.row(job.method).method, job.choice.lr, job.seed)
        row = (str(job), job.choice.variant, job.method)
        result = runs.run(settings, *how, *row, test=test)
        if not job.tuning:  # of rows that are tuned the first seed's modes are measured
            lines = options.is_given(job.method) or job.seed == options.seed
            runs.measure(result, settings, lines=lines, convergence=options.convergence)
        file = f"{store.folder.name}/runs/{result.name}.json"
        self.results[file] = result
        named = {"file": file, "seed": job.seed, "diverged": result.diverged, "validation_nll": result.validation_nll}
        return {**named, **numbers(result, convergence=options.convergence)}

    def finish(self, problem: str, study: Study) -> None:
        """Score the runs of all rows on corrupted test images; each corruption is made once."""
        if not self.options.corruptions:
            return
        images, runs = CorruptedImages(self.images, self.options.corruptions), self._runs(study.store(problem))
        finals = [(name, run) for name, by_seed in self.findings.runs[problem].items() for run in by_seed]
        for corruption in (NONE, *RECREATED):
            for name, run in finals:
                result = self.results[run["file"]]
                if result.diverged is None and corruption in images.missing(result):
                    assert result.corruptions is not None
                    (job, *_) = study.finals(problem, name)
                    scores = images.scores(runs.samples(result, self.settings(job)), corruption)
                    result.corruptions["scores"][corruption] = scores
                    runs.keep(result)
        for _, run in finals:
            if run["diverged"] is None:
                run |= corruptions.numbers(self.results[run["file"]].corruptions or {})

    # ------------------------------------------------------------------------------------------------------ report

    def predictions(self, run: Run) -> Tensor:
        """Probabilities of the test images."""
        return predictions(self.results[run["file"]], self.options.folder() / Path(run["file"]).parts[0])["test"]

    def reference_for(self, run: Run) -> Tensor | None:
        """Probabilities that a run is compared with: the reference, or the average of HMC's chains of other seeds."""
        if self.reference is not None:
            return self.reference
        at = next((p for p in self.findings.runs if self.folder(p) == Path(run["file"]).parts[0]), "")
        chains = [r for r in self.findings.runs.get(at, {}).get("HMC", ()) if r["diverged"] is None]
        others = [self.predictions(chain).double() for chain in chains if chain["seed"] != run["seed"]]
        return sum(others[1:], others[0]) / len(others) if others else None

    def _compare(self, problem: str) -> None:
        """Fill in what a run's numbers are beside those of others: the first row's, and the reference's."""
        by_method = self.findings.runs[problem]
        first = {run["seed"]: run["nll"] for run in next(iter(by_method.values())) if run["diverged"] is None}
        for number, (name, runs) in enumerate(by_method.items()):
            for run in runs:
                run["tries"] = len(self.findings.tuning[problem, name].trials)
                if run["diverged"] is None and number and run["seed"] in first:
                    run["difference"] = run["nll"] - first[run["seed"]]
                if run["diverged"] is None and (reference := self.reference_for(run)) is not None:
                    test = self.predictions(run)
                    run |= {key: distance(test, reference) for key, (_, distance) in DISTANCES.items()}

    def by_label(self, problem: str) -> dict[str, list[Result]]:
        """The runs of each row, by its name in tables."""
        by_method = self.findings.runs[problem].values()
        results = [[self.results[run["file"]] for run in runs] for runs in by_method]
        return {label(by_seed[0]): by_seed for by_seed in results}

    def report(self, findings: Findings) -> str:
        parts, means = [], {}
        for problem, by_method in findings.runs.items():
            self._compare(problem)
            results = self.by_label(problem)
            labels = dict(zip(by_method, results, strict=True))
            parts.append(f"### {problem}")
            for measures in (SCORES, (*ROBUST, *ood_measures(self.options.settings.ood)), HEALTH):
                parts.append(findings.table(problem, measures, labels.__getitem__, settings=measures is SCORES))
            parts.append(layers(results) if self.options.convergence else "")
            for columns in corruptions.COLUMNS:
                parts.append(findings.table(problem, columns, labels.__getitem__, settings=False))
            averaged = {m.key: m for m in (*SCORES, *ROBUST, *PAIRS)}
            means[gradients(problem)] = {
                name: {key: statistics.fmean(values) for key, m in averaged.items() if (values := m.values(runs))}
                for name, runs in by_method.items()
            }
            if nlls := {labels[name]: row["nll"] for name, row in means[gradients(problem)].items() if "nll" in row}:
                lowest = min(nlls, key=nlls.__getitem__)
                parts.append(f"- Lowest NLL: {lowest}, {nlls[lowest]:.4f}.")
            if edges := [labels[name] for name in by_method if findings.tuning[problem, name].at_edge]:
                parts.append(f"- Tuned to the edge of what was tried: {', '.join(edges)}.")
        preset = PRESETS.get(self.options.preset or "")
        criterion = "" if preset is None or preset.criterion is None else preset.criterion(means)
        parts.append(corruptions.NOTE if self.options.corruptions else "")
        return "\n\n".join(filter(None, [*parts, criterion]))

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw the figures of each budget."""
        settings = self.options.settings
        for problem in findings.runs:
            results = {name: finished(by_seed) for name, by_seed in self.by_label(problem).items()}
            draw_all(results, f"{settings.dataset}, {settings.model}, {problem}", path.parent, gradients(problem))
