"""Tuning and running every row at every budget."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from tqdm import tqdm

from experiments.compare.corruptions import NONE, CorruptedImages
from experiments.compare.options import CompareOptions
from experiments.compare.report import BudgetReport
from experiments.harness.run_store import RunStore
from experiments.harness.runs.checkpoint import TimeIsUp
from experiments.harness.runs.networks import own_network
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Resume, Runs, predictions, store_for
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.trials import Setting, proposal
from experiments.harness.tables import finished
from experiments.harness.tuning import Tuning, score_text, tune
from learned_samplers import metrics
from meta_tasks.datasets import ImageData
from meta_tasks.datasets.corruptions import RECREATED


def planned_gradients(options: CompareOptions, data: ImageData) -> int:
    """Gradients of all runs."""
    budgets, tuned = options.all_budgets(data), options.tune_budget
    every = [*budgets, tuned] if tuned is not None else budgets
    trials = sum(b * options.tries_at(b, data, name) * options.tune_seeds for b in every for name in options.sampler)
    finals = sum(b * options.row(name).times * len(options.seeds_of(name)) for b in budgets for name in options.sampler)
    return trials + finals


@dataclass(frozen=True)
class Job:
    """A run of a row; ``test``: it is scored on the test images."""

    name: str
    setting: Setting
    budget: int
    seed: int
    test: bool


class Comparison:
    """Tunes and runs every row at one budget after the other."""

    def __init__(
        self,
        options: CompareOptions,
        data: ImageData,
        bar: Any,
        ood: Mapping[str, ImageData] | None = None,
        reference: Tensor | None = None,
        store: RunStore | None = None,
    ) -> None:
        self.options, self.data, self.bar, self.reference = options, data, bar, reference
        ood = ood or {}
        store = store or store_for(options.folder(), data, ood, fresh=options.fresh)
        end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        resume = Resume(options.state or options.folder() / "state", options.state_minutes, end)
        budgets = dict.fromkeys((*options.all_budgets(data), options.tune_budget or 0))
        self.runs = {b: Runs(data, ood, store.below(f"steps_{b}"), resume) for b in budgets if b}
        self.candidates: dict[str, list[Setting]] = {}
        self.tuned: dict[tuple[str, int], Tuning[Setting, Result]] = {}
        #: Rows that diverged at every setting, and at which budget.
        self.lost: dict[str, str] = {}
        self.report_of: dict[int, BudgetReport] = {}
        self.alternatives = options.alternatives(data)
        if bar is not None:
            bar.reset(total=planned_gradients(options, data))

    def run(self, job: Job) -> Result:
        """A run of a row at one of its settings."""
        method, described = self.options.row(job.name).method, self.describe(job.setting)
        return self.runs[job.budget].run(
            *(self.settings(job.name, job.budget, job.setting), method, job.setting.lr, job.seed),
            title=f"{job.budget} gradients, {job.name}, {described}, seed {job.seed}",
            bar=self.bar,
            test=job.test,
            variant=job.setting.variant,
            row=job.name,
        )

    def settings(self, name: str, budget: int, setting: Setting) -> Settings:
        """Settings of a run: those of the comparison and its row, with the budget and what is tuned."""
        tuned: dict[str, Any] = dict(setting.also)
        return replace(self.options.run_settings(name, budget), **tuned)

    def describe(self, setting: Setting) -> str:
        return ", ".join(filter(None, (f"lr {setting.lr:g}", setting.text(self.data.num_data))))

    def beside(self, jobs: Sequence[Job]) -> None:
        """Make runs side by side, if the options say so; they are read back afterwards, one after the other."""
        jobs = [job for job in jobs if job.budget in self.runs]
        if self.options.jobs == 1 or len(jobs) < 2:
            return
        # The store of this process locks the folder for all of them.
        self.runs[jobs[0].budget].store.begin("none")
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(self.options.jobs, len(jobs)), _prepare, (self.options,)) as pool:
            for job, error in zip(jobs, pool.imap(_work, jobs)):
                if error:
                    tqdm.write(f"{job.name}, {self.describe(job.setting)}, seed {job.seed}: {error}")

    def tune(self, name: str, budget: int) -> Tuning[Setting, Result]:
        """All trials of a row at a budget; afterwards its candidates are those to be tried at the next."""
        if name in self.lost:
            raise RuntimeError(self.lost[name])
        at = budget if self.options.is_given(name) else self.options.tune_budget or budget
        try:
            if (name, at) not in self.tuned:
                self.tuned[name, at] = self._tune(name, at)
        except RuntimeError as error:
            self.lost[name] = f"at {at} gradients {error}"
            tqdm.write(f"{at} gradients, {name}: {error}")
            raise
        return self.tuned[name, at]

    def _tune(self, name: str, budget: int) -> Tuning[Setting, Result]:
        options = self.options
        if options.is_given(name):
            (setting,) = options.candidates(name, self.data, budget)
            if rate_of := options.row(name).rate_of:
                chosen = self.tune(rate_of, budget).chosen
                setting = replace(chosen, also=())
            return Tuning(lambda result: result.validation_nll, {setting: []}, fixed=setting)
        tries = options.tries_at(budget, self.data, name)
        tuning = tune(
            self._settings_to_try(name, budget),
            lambda setting, seed: self.run(Job(name, setting, budget, seed, test=options.tune_by == "distance")),
            lambda result: self.score(result, budget),
            seeds=options.tuning_seeds(),
            tries=tries,
            propose=lambda tuning: proposal(tuning, self.alternatives),
        )
        self.candidates[name] = tuning.ranked()[: options.keep]
        measure = "validation NLL" if options.tune_by == "validation" else "distance"
        edge = ", at the edge of what was tried" if len(tuning.trials) > 1 and tuning.edges() else ""
        tqdm.write(
            f"{budget} gradients, {name}: {self.describe(tuning.chosen)} has the lowest {measure}, "
            f"{score_text(tuning.mean(tuning.chosen))}, of {len(tuning.trials)} settings{edge}"
        )
        return tuning

    def score(self, result: Result, budget: int) -> float | None:
        """Validation NLL of a run, or its distance from HMC; None if it diverged."""
        if self.options.tune_by == "validation" or result.diverged is not None:
            return result.validation_nll
        reference = self.report_of[budget].reference_for(result)
        if reference is None:
            raise ValueError("tune_by='distance' needs a --reference, or the row HMC before the others")
        return metrics.total_variation(predictions(result, self.runs[budget].store.folder)["test"], reference)

    def _settings_to_try(self, name: str, budget: int) -> list[Setting]:
        return self.candidates.get(name) or self.options.candidates(name, self.data, budget)

    def reports(self, budget: int) -> Iterator[BudgetReport]:
        """Tuning and final runs of every row at one budget, after each row."""
        options, runs, settings = self.options, self.runs[budget], replace(self.options.settings, steps=budget)
        report = BudgetReport(
            *(budget, runs.store.folder, settings, self.data.num_data),
            convergence=options.convergence,
            corruptions=bool(options.corruptions),
            reference=self.reference,
            data=runs.store.data,
            network=own_network(settings, self.data),
            preset=options.preset or "",
        )
        self.report_of[budget] = report
        at, seeds = options.tune_budget or budget, options.tuning_seeds()
        tuned = [name for name in options.sampler if not options.is_given(name) and (name, at) not in self.tuned]
        first = [
            (name, setting, at, seed) for name in tuned for setting in self._settings_to_try(name, at) for seed in seeds
        ]
        self.beside([Job(*place, test=False) for place in first])
        chosen = {}
        for name in options.sampler if options.jobs > 1 else ():
            if name not in self.lost:
                try:
                    chosen[name] = self.tune(name, budget).chosen
                except RuntimeError:
                    continue
        self.beside(
            [Job(name, s, budget, seed, test=True) for name, s in chosen.items() for seed in options.seeds_of(name)]
        )
        for name in options.sampler:
            try:
                tuning = self.tune(name, budget)
            except RuntimeError as error:  # the others are worth their table
                report.lost[name] = str(error)
                continue
            finals = [self.run(Job(name, tuning.chosen, budget, seed, test=True)) for seed in options.seeds_of(name)]
            run_settings = self.settings(name, budget, tuning.chosen)
            every = options.is_given(name)  # of rows that are tuned the first seed's modes are measured
            for number, result in enumerate(finals):
                runs.measure(result, run_settings, lines=every or number == 0, convergence=options.convergence)
            if options.tune_budget is None:
                for setting, tried in tuning.trials.items():
                    for result in tried if setting != tuning.chosen else ():
                        runs.discard_samples(result)
            report.tuning[name], report.runs[name] = tuning, finals
            report.other_code = bool(runs.store.of_other_code)
            yield report
        if not report.runs:
            raise RuntimeError(f"{budget} gradients: {'; '.join(f'{n}: {why}' for n, why in report.lost.items())}")
        if options.corruptions:
            self.corrupt(report)
        yield report

    def corrupt(self, report: BudgetReport) -> None:
        """Score the final runs of all rows on corrupted test images; each corruption is made once."""
        options, runs = self.options, self.runs[report.budget]
        images = CorruptedImages(self.data, options.corruptions)
        for corruption in (NONE, *RECREATED):
            self.bar.set_description(f"{report.budget} gradients, test images under {corruption}")
            for name, results in report.runs.items():
                settings = self.settings(name, report.budget, report.tuning[name].chosen)
                for result in finished(results):
                    if corruption in images.missing(result):
                        assert result.corruptions is not None
                        scores = images.scores(runs.samples(result, settings), corruption)
                        result.corruptions["scores"][corruption] = scores
                        runs.keep(result)


# The comparison of a worker process.
_worker: list[Comparison] = []


def _prepare(options: CompareOptions) -> None:
    data, ood = options.load_on_device()
    store = store_for(options.folder(), data, ood, fresh=options.fresh)
    store.locked = False
    _worker.append(Comparison(options, data, None, ood, store=store))


def _work(job: Job) -> str:
    """Make a run; why it could not be made, or nothing."""
    try:
        _worker[0].run(job)
    except TimeIsUp:
        return "the time is up"
    except Exception as error:  # the others go on; this process meets it again
        return f"{type(error).__name__}: {error}"
    return ""
