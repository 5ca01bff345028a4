"""Tuning and running every method at every budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from tqdm import tqdm

from experiments.compare.corruptions import NONE, CorruptedImages
from experiments.compare.options import CompareOptions
from experiments.compare.report import BudgetReport
from experiments.harness.runs.methods import METHODS, Setting, proposal
from experiments.harness.runs.networks import own_network
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs, store_for
from experiments.harness.runs.settings import Settings
from experiments.harness.tables import finished
from experiments.harness.tuning import Tuning, score_text, tune
from meta_tasks.datasets import ImageData
from meta_tasks.datasets.corruptions import RECREATED


def planned_gradients(options: CompareOptions, data: ImageData) -> int:
    """Gradients of all runs."""
    return sum(
        budget * (options.tries_at(budget, data, method) * options.tune_seeds + options.seeds)
        for budget in options.all_budgets(data)
        for method in options.sampler
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
        self.options, self.data, self.bar, self.reference = options, data, bar, reference
        ood = ood or {}
        store = store_for(options.folder(), data, ood, fresh=options.fresh)
        self.runs = {budget: Runs(data, ood, store.below(f"steps_{budget}")) for budget in options.all_budgets(data)}
        self.candidates = {method: options.candidates(method, data) for method in options.sampler}
        #: Methods that diverged at every setting, and at which budget.
        self.lost: dict[str, str] = {}
        self.alternatives = options.alternatives(data)
        bar.reset(total=planned_gradients(options, data))

    def run(self, method: str, setting: Setting, budget: int, seed: int, *, test: bool) -> Result:
        """One run of a method at one of its settings."""
        return self.runs[budget].run(
            *(self.settings(budget, setting), method, setting.lr, seed),
            title=f"{budget} gradients, {method}, {self.describe(setting)}, seed {seed}",
            bar=self.bar,
            test=test,
            variant=setting.variant,
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
        if METHODS[method].as_it_comes:
            self.candidates[method] = options.candidates(method, self.data, budget)
        tuning = tune(
            self.candidates[method],
            lambda setting, seed: self.run(method, setting, budget, seed, test=False),
            lambda result: result.validation_nll,
            seeds=options.tuning_seeds(),
            tries=options.tries_at(budget, self.data, method),
            propose=lambda tuning: proposal(tuning, self.alternatives),
        )
        self.candidates[method] = tuning.ranked()[: options.keep]
        edge = ", at the edge of what was tried" if len(tuning.trials) > 1 and tuning.edges() else ""
        tqdm.write(
            f"{budget} gradients, {method}: {self.describe(tuning.chosen)} has the lowest validation NLL, "
            f"{score_text(tuning.mean(tuning.chosen))}, of {len(tuning.trials)} settings{edge}"
        )
        return tuning

    def report(self, budget: int) -> BudgetReport:
        """Tuning and final runs of every method at one budget."""
        options, runs, settings = self.options, self.runs[budget], replace(self.options.settings, steps=budget)
        report = BudgetReport(
            *(budget, runs.store.folder, settings, self.data.num_data),
            convergence=options.convergence,
            corruptions=bool(options.corruptions),
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
            finals = [self.run(method, tuning.chosen, budget, seed, test=True) for seed in options.seed_list()]
            own = self.settings(budget, tuning.chosen)
            for number, result in enumerate(finals):
                runs.measure(result, own, lines=number == 0, convergence=options.convergence)
            for setting, tried in tuning.trials.items():
                for result in tried if setting != tuning.chosen else ():
                    runs.discard_samples(result)
            report.tuning[method], report.runs[method] = tuning, finals
        if not report.runs:
            raise RuntimeError(
                f"{budget} gradients: {'; '.join(f'{name}: {why}' for name, why in report.lost.items())}"
            )
        if options.corruptions:
            self.corrupt(report)
        report.other_code = bool(runs.store.of_other_code)
        return report

    def corrupt(self, report: BudgetReport) -> None:
        """Score the final runs of all methods on corrupted test images; each corruption is made once."""
        options, own, runs = self.options, self.options.settings, self.runs[report.budget]
        files = {"name": own.dataset, "root": options.data, "size": own.size} if options.corruption_files else None
        images = CorruptedImages(self.data, options.corruptions, files)
        for name in (NONE, *RECREATED):
            self.bar.set_description(f"{report.budget} gradients, test images under {name}")
            for method, results in report.runs.items():
                settings = self.settings(report.budget, report.tuning[method].chosen)
                for result in finished(results):
                    if name in images.missing(result):
                        assert result.corruptions is not None
                        found = images.scores(runs.samples(result, settings), name)
                        result.corruptions["scores"][name] = found
                        runs.keep(result)
