"""The runs of `compare.py`: every method tuned and run, budget by budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from tqdm import tqdm

from experiments.harness.tables import finished
from experiments.harness.tuning import Tuning, score_text, tune
from experiments.images.compare_corruptions import NONE, CorruptedImages, PublishedImages
from experiments.images.compare_places import check_equal_time
from experiments.images.compare_report import BudgetReport
from experiments.images.methods import METHODS, Setting, proposal
from experiments.images.options import CompareOptions
from experiments.images.result import Result
from experiments.images.runner import ImageRuns, store_for
from experiments.images.settings import Settings
from experiments.images.training import own_network, validate_run
from meta_tasks.datasets import ImageData
from meta_tasks.datasets.corruptions import RECREATED


def planned_gradients(options: CompareOptions, data: ImageData) -> int:
    """Gradients of all runs of one method, but for those at equal time."""
    final = 0 if options.tune_only else options.seeds
    return sum(
        budget * (options.tries_at(budget, data) * options.tune_seeds * (not options.nothing_to_tune()) + final)
        for budget in options.all_budgets(data)
    )


class Comparison:
    """Tunes and runs every method at one budget after the other.

    Args:
        bar: of all runs together, in gradients.
        ood: out-of-distribution images by name.
        reference: probabilities (test images, classes) to compare with.
    """

    def __init__(
        self,
        options: CompareOptions,
        data: ImageData,
        bar: Any,
        ood: Mapping[str, ImageData] | None = None,
        reference: Tensor | None = None,
    ) -> None:
        self.options = options = options.on(data)
        self.data, self.bar, self.reference = data, bar, reference
        ood = ood or {}
        store = store_for(options.folder(), data, ood, fresh=options.fresh)
        self.runs = {
            budget: ImageRuns(data, ood, store.below(f"steps_{budget}")) for budget in options.all_budgets(data)
        }
        self.candidates = {method: options.candidates(method, data) for method in options.sampler}
        #: Methods that diverged at every setting, and at which budget.
        self.lost: dict[str, str] = {}
        self.alternatives = options.alternatives(data)
        for name, value in (pair for each in self.candidates.values() for setting in each for pair in setting.also):
            if value not in self.alternatives.setdefault(name, ()):  # of another comparison
                self.alternatives[name] += (value,)
        bar.reset(total=len(options.sampler) * planned_gradients(options, data))

    def run(
        self, method: str, setting: Setting, budget: int, seed: int, *, test: bool, steps: int | None = None
    ) -> Result:
        """One run of a method at one of its settings, or a run of another length (`steps`) beside those of a budget."""
        variant = setting.variant if steps is None else f"{setting.variant}_steps{steps}"
        steps = budget if steps is None else steps
        title = f"{steps} gradients, {method}, {self.describe(setting)}, seed {seed}"
        return self.runs[budget].run(
            self.settings(steps, setting),
            method,
            setting.lr,
            seed,
            title=title,
            bar=self.bar,
            test=test,
            validations=self.options.validations,
            variant=variant.strip("_"),
        )

    def settings(self, budget: int, setting: Setting) -> Settings:
        """Of a run: those of the comparison, with the budget and what is tuned."""
        own: dict[str, Any] = dict(setting.also)
        return replace(self.options.settings, steps=budget, **own)

    def describe(self, setting: Setting) -> str:
        return ", ".join(filter(None, (f"lr {setting.lr:g}", setting.text(self.data.num_data))))

    def tune(self, method: str, budget: int) -> Tuning[Setting, Result]:
        """All trials of a method at a budget; afterwards its candidates are those to be tried at the next.

        Raises:
            RuntimeError: all of them diverged, here or at a smaller budget; the method has had its tries then.
        """
        if method in self.lost:
            raise RuntimeError(self.lost[method])
        try:
            return self._tune(method, budget)
        except RuntimeError as error:
            self.lost[method] = f"at {budget} gradients {error}"
            tqdm.write(f"{budget} gradients, {method}: {error}")
            raise

    def _tune(self, method: str, budget: int) -> Tuning[Setting, Result]:
        options = self.options
        if options.nothing_to_tune():
            return Tuning(validation_nll, {self.candidates[method][0]: []})

        def attempt(setting: Setting, seed: int) -> Result:
            return self.run(method, setting, budget, seed, test=False)

        tuning = tune(
            self.candidates[method],
            attempt,
            validation_nll,
            seeds=options.tuning_seeds(),
            tries=options.tries_at(budget, self.data),
            propose=lambda tuning: proposal(tuning, self.alternatives),
        )
        self.candidates[method] = tuning.ranked()[: options.keep]
        edge = ", at the edge of what was tried" if tuning.edges() else ""
        tqdm.write(
            f"{budget} gradients, {method}: {self.describe(tuning.chosen)} has the lowest validation NLL, "
            f"{score_text(tuning.mean(tuning.chosen))}, of {len(tuning.trials)} settings{edge}"
        )
        return tuning

    def report(self, budget: int) -> BudgetReport:
        """Tuning and final runs of every method at one budget."""
        options, runs, settings = self.options, self.runs[budget], replace(self.options.settings, steps=budget)
        report = BudgetReport(
            budget,
            runs.store.folder,
            settings,
            self.data.num_data,
            self.data.num_classes,
            reference=self.reference,
            data=runs.store.data,
            network=own_network(settings, self.data),
        )
        for method in options.sampler:
            try:
                tuning = self.tune(method, budget)
            except RuntimeError as error:  # the others are worth their table
                report.lost[method] = str(error)
                continue
            chosen = tuning.chosen
            finals = [self.run(method, chosen, budget, seed, test=True) for seed in options.seed_list()]
            runs.add_modes(finals[0], self.settings(budget, chosen))
            for loser in losers(tuning):
                runs.discard_samples(loser)
            self.measure(runs, finals, self.settings(budget, chosen))
            report.tuning[method], report.runs[method] = tuning, finals
        if not report.runs:
            raise RuntimeError(
                f"{budget} gradients: {'; '.join(f'{name}: {why}' for name, why in report.lost.items())}"
            )
        if options.corruptions:
            self.corrupt(report)
        if options.equal_time:
            report.equal_time = {method: self.at_equal_time(report, method) for method in report.runs}
        report.other_code = bool(runs.store.of_other_code)
        return report

    def measure(self, runs: ImageRuns, finals: Sequence[Result], settings: Settings) -> None:
        """What the options ask for of a method's final runs beside their scores."""
        options = self.options
        for result in finals if options.convergence or options.layers else ():
            runs.add_convergence(result, settings, layers=options.layers)
        if options.plane:
            runs.add_plane(finals[0], settings)

    def corrupt(self, report: BudgetReport) -> None:
        """Score the final runs of all methods on corrupted test images; each corruption is made once."""
        options, own, runs = self.options, self.options.settings, self.runs[report.budget]
        files = (
            PublishedImages(own.dataset, options.data, own.size, own.grayscale) if options.corruption_files else None
        )
        images = CorruptedImages(self.data, options.corruption_images, files)
        finals = {
            method: (finished(results), self.settings(report.budget, report.tuning[method].chosen))
            for method, results in report.runs.items()
        }
        for name in (NONE, *RECREATED):
            self.bar.set_description(f"{report.budget} gradients, test images under {name}")
            for results, settings in finals.values():
                for result in results:
                    if name in images.missing(result):
                        assert result.corruptions is not None
                        found = images.scores(runs.samples(result, settings), name)
                        result.corruptions["scores"][name] = found
                        runs.keep(result)

    def at_equal_time(self, report: BudgetReport, method: str) -> list[Result]:
        """The final runs of a method over again with as many gradients as take the first method's seconds.

        [] where a run of either has diverged, or the method cannot be run so briefly.

        Raises:
            ValueError: runs that were read back are of another device or number of threads.
        """
        first = next(iter(report.runs.values()))
        own, setting = report.runs[method], report.tuning[method].chosen
        check_equal_time(self.data.train_x.device, (*first, *own))
        if own is first or any(result.diverged for result in (*own, *first)):
            return own if own is first else []
        ratio = sum(result.seconds for result in first) / sum(result.seconds for result in own)
        steps = max(1, round(report.budget * ratio))
        try:
            validate_run(METHODS[method], self.settings(steps, setting), setting.lr, self.data)
        except ValueError:
            return []
        self.bar.total += steps * len(own)
        seeds = self.options.seed_list()
        found = [self.run(method, setting, report.budget, seed, test=True, steps=steps) for seed in seeds]
        check_equal_time(self.data.train_x.device, found)
        return found


def validation_nll(result: Result) -> float | None:
    """What is tuned by; None for a run that diverged."""
    return result.validation_nll


def losers(tuning: Tuning[Setting, Result]) -> Iterable[Result]:
    """The runs at settings that were not chosen."""
    chosen = tuning.chosen
    return (result for setting, results in tuning.trials.items() if setting != chosen for result in results)
