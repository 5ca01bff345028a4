"""`compare.py` at work: every method tuned and run, budget by budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from experiments.common.tuning import Tuning, score_text, tune
from experiments.images.compare_report import BudgetReport
from experiments.images.methods import Setting, proposal
from experiments.images.options import CompareOptions
from experiments.images.runner import ImageRuns, Result, store_for
from experiments.images.settings import Settings
from meta_tasks.datasets import ImageData


class Comparison:
    """Tunes and runs every method at one budget after the other.

    Args:
        bar: of all runs together, in gradients.
    """

    def __init__(self, options: CompareOptions, data: ImageData, bar: Any) -> None:
        self.options, self.data, self.bar = options, data, bar
        store = store_for(options.folder(), data, fresh=options.fresh)
        self.runs = {
            budget: ImageRuns(data, None, store.below(f"steps_{budget}")) for budget in options.all_budgets(data)
        }
        self.alternatives = options.alternatives(data)
        self.candidates = {method: options.candidates(method, data) for method in options.sampler}
        bar.reset(total=self.planned())

    def tries(self, budget: int) -> int:
        """Settings that every method tries at a budget."""
        options = self.options
        first = budget == min(self.runs)
        return (options.tries if first else min(options.tries, options.keep)) + options.extensions

    def planned(self) -> int:
        """Gradients of all runs, but for those at equal time."""
        options = self.options
        each = [budget * (self.tries(budget) * options.tune_seeds + options.seeds) for budget in self.runs]
        return len(options.sampler) * sum(each)

    def run(self, method: str, setting: Setting, budget: int, seed: int, *, test: bool) -> Result:
        """One run of a method at one of its settings."""
        title = f"{budget} gradients, {method}, {self.describe(setting)}, seed {seed}"
        return self.runs[budget].run(
            self.settings(budget, setting), method, setting.lr, seed,
            title=title, bar=self.bar, test=test, validations=self.options.validations, variant=setting.variant,
        )  # fmt: skip

    def settings(self, budget: int, setting: Setting) -> Settings:
        """Of a run: those of the comparison, with the budget and what is tuned."""
        own: dict[str, Any] = dict(setting.also)
        return replace(self.options.settings, steps=budget, **own)

    def describe(self, setting: Setting) -> str:
        return ", ".join(filter(None, (f"lr {setting.lr:g}", setting.text(self.data.num_data))))

    def tune(self, method: str, budget: int) -> Tuning[Setting, Result]:
        """All trials of a method at a budget; afterwards its candidates are those to be tried at the next.

        Raises:
            RuntimeError: all of them diverged.
        """
        options = self.options

        def attempt(setting: Setting, seed: int) -> Result:
            return self.run(method, setting, budget, seed, test=False)

        try:
            tuning = tune(
                self.candidates[method], attempt, lambda result: result.validation_nll,
                seeds=options.tuning_seeds(), tries=self.tries(budget),
                propose=lambda tuning: proposal(tuning, self.alternatives),
            )  # fmt: skip
        except RuntimeError as error:
            raise RuntimeError(f"{method}, {budget} gradients: {error}") from error
        self.candidates[method] = tuning.ranked()[: options.keep]
        edge = ", at the edge of what was tried" if tuning.edges() else ""
        tqdm.write(
            f"{budget} gradients, {method}: {self.describe(tuning.chosen)} has the lowest validation NLL, "
            f"{score_text(tuning.mean(tuning.chosen))}, of {len(tuning.trials)} settings{edge}"
        )
        return tuning

    def report(self, budget: int) -> BudgetReport:
        """Tuning and final runs of every method at one budget."""
        runs, settings = self.runs[budget], replace(self.options.settings, steps=budget)
        report = BudgetReport(budget, runs.store.folder, settings, self.data.num_data)
        for method in self.options.sampler:
            tuning = self.tune(method, budget)
            chosen = tuning.chosen
            finals = [self.run(method, chosen, budget, seed, test=True) for seed in self.options.seed_list()]
            runs.add_modes(finals[0], self.settings(budget, chosen))
            for loser in losers(tuning):
                runs.discard_samples(loser)
            report.tuning[method], report.runs[method] = tuning, finals
        return report


def losers(tuning: Tuning[Setting, Result]) -> Iterable[Result]:
    """The runs at settings that were not chosen."""
    chosen = tuning.chosen
    return (result for setting, results in tuning.trials.items() if setting != chosen for result in results)
