"""Tuning and running every method at every budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.compare.corruptions import NONE, CorruptedImages
from experiments.compare.options import CompareOptions
from experiments.compare.report import BudgetReport
from experiments.harness.devices import device_name
from experiments.harness.runs.methods import METHODS, Setting, proposal
from experiments.harness.runs.networks import own_network
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs, store_for
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import validate_run
from experiments.harness.tables import failed_of, finished, markdown, spread
from experiments.harness.tuning import Tuning, score_text, tune
from learned_samplers.base.files import write_atomically
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
        self.options, self.data, self.bar, self.reference = options, data, bar, reference
        ood = ood or {}
        store = store_for(options.folder(), data, ood, fresh=options.fresh)
        self.runs = {budget: Runs(data, ood, store.below(f"steps_{budget}")) for budget in options.all_budgets(data)}
        self.candidates = {method: options.candidates(method, data) for method in options.sampler}
        #: Methods that diverged at every setting, and at which budget.
        self.lost: dict[str, str] = {}
        self.alternatives = options.alternatives(data)
        bar.reset(total=len(options.sampler) * planned_gradients(options, data))

    def run(
        self, method: str, setting: Setting, budget: int, seed: int, *, test: bool, steps: int | None = None
    ) -> Result:
        """One run of a method at one of its settings, or a run of another length (`steps`) beside those of a budget."""
        variant = setting.variant if steps is None else f"{setting.variant}_steps{steps}"
        steps = budget if steps is None else steps
        return self.runs[budget].run(
            *(self.settings(steps, setting), method, setting.lr, seed),
            title=f"{steps} gradients, {method}, {self.describe(setting)}, seed {seed}",
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
        tuning = tune(
            self.candidates[method],
            lambda setting, seed: self.run(method, setting, budget, seed, test=False),
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
            *(budget, runs.store.folder, settings, self.data.num_data, self.data.num_classes),
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
                first = number == 0
                runs.measure(result, own, lines=first, convergence=options.convergence, plane=options.plane and first)
            for loser in losers(tuning):
                runs.discard_samples(loser)
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

    def at_equal_time(self, report: BudgetReport, method: str) -> list[Result]:
        """The final runs of a method over again with as many gradients as take the first method's seconds.

        [] where a run of either has diverged, or the method cannot be run so briefly.

        Raises:
            ValueError: runs that were read back are of another device or number of threads.
        """
        first = next(iter(report.runs.values()))
        own, setting = report.runs[method], report.tuning[method].chosen
        here = (device_name(str(self.data.train_x.device)), torch.get_num_threads())
        for result in (*first, *own):
            if (there := (result.device, result.threads)) != here:
                raise ValueError(
                    f"equal_time=True compares times, and {result.name} ran on {there[0]} with {there[1]} threads, "
                    f"this process on {here[0]} with {here[1]}: take the same --device and --threads, or --fresh"
                )
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
        return [self.run(method, setting, report.budget, seed, test=True, steps=steps) for seed in seeds]


def validation_nll(result: Result) -> float | None:
    """What is tuned by; None for a run that diverged."""
    return result.validation_nll


def losers(tuning: Tuning[Setting, Result]) -> Iterable[Result]:
    """The runs at settings that were not chosen."""
    chosen = tuning.chosen
    return (result for setting, results in tuning.trials.items() if setting != chosen for result in results)


def validation_tables(comparison: Comparison, budgets: Iterable[int]) -> str:
    """Tune every method at every budget, from the smallest; a table of each, a row a setting, each method's best first.

    A method that diverged everywhere is named above its table.
    """
    options, data, parts = comparison.options, comparison.data, []
    for budget in budgets:
        rows, lost = [], []
        for method in options.sampler:
            try:
                tuning = comparison.tune(method, budget)
            except RuntimeError as error:  # the others are worth their table
                lost.append(f"{method}: {error}")
                continue
            name, ranked = METHODS[method].weights_name(options.settings), tuning.ranked()
            for setting in (*ranked, *(each for each in tuning.trials if each not in ranked)):
                found = [tuning.score(run) for run in tuning.trials[setting]]
                scores = [score for score in found if score is not None]
                row = {"method": f"{method} [{Path(name).stem}]" if name else method, "lr": f"{setting.lr:g}"}
                row |= {"also tuned": setting.text(data.num_data) or "–"}
                nll = failed_of(spread(scores, 4), len(found) - len(scores), len(found))
                rows.append({**row, "validation NLL": nll})
            for loser in losers(tuning):
                comparison.runs[budget].discard_samples(loser)
        parts += [f"### {budget} gradients, validation NLL", *lost, *([markdown(rows)] if rows else [])]
    return "\n\n".join(parts)


def write_validation(out: Path, text: str, command: str) -> None:
    """Put the tables under their command in validation.md."""
    head = "Mean ± standard deviation over the tuning seeds; no test image has been looked at."
    write_atomically(out / "validation.md", f"`{command}`\n\n{head}\n\n{text}\n".encode())
