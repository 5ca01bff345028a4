"""Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets.

    python tools/compare.py --preset digits                              # needs no file; minutes of one core
    python tools/compare.py --preset cifar10 --data ~/data --sampler sghmc psgld l2e --l2e-network my.safetensors

Tuning, by validation NLL and never by test images: at the smallest budget every method tries a grid of learning rates
1, 2, 5, 10, 20, … around its own (SGHMC, SGNHT and cyclical SGMCMC each with several momentum decays, optimizers with
several weight decays); at every larger budget its best settings are tried again in full (successive halving). Where the
best learning rate is the smallest or the largest tried, the next one is tried too. The winner runs over all seeds. Runs
are kept, so that a command that was interrupted goes on where it was.

Under --out: table.md, results.json, for each budget figure1 (scores against the number of samples, and effective
samples a second), figure2 (losses on the lines between samples, and the samples' cosine similarities) and temperatures
as PNG, and steps_<budget>/ with every run, its samples and its TensorBoard curves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from experiments.common.checks import check_at_least_one
from experiments.common.output import command_line
from experiments.images.compare_figures import figure_1, figure_2, temperature_figure, validation_figure
from experiments.images.compare_report import BudgetReport, content, tables, write_results
from experiments.images.comparison import CommonOptions, RunStore, prepare_torch, ranked, text, validation_nll
from experiments.images.measures import modes
from experiments.images.methods import METHODS, MethodName
from experiments.images.presets import PRESETS
from experiments.images.runner import Result, load_samples, write_result
from experiments.images.settings import Settings
from experiments.images.training import check
from experiments.images.tuning import Setting, at_edge, grid, tune
from tqdm import tqdm

from meta_tasks.datasets import ImageData


@dataclass(frozen=True)
class Options(CommonOptions):
    """Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets."""

    # A whole experiment: its data, network, posterior and budgets. Options given beside it take their place.
    preset: Literal[*PRESETS] | None = None
    # Methods to compare, in the order of the tables.
    sampler: tuple[MethodName, ...] = (
        *("sghmc", "psgld", "cyclical", "l2e", "adam_average", "deep_ensemble", "adam_ensemble"),
    )  # fmt: skip
    # Budgets in minibatch gradients, each for every run; by default the one of --steps or --epochs.
    budgets: tuple[int, ...] | None = None
    # Learning rates that a method tries at the smallest budget, of 1, 2, 5, 10, …, around its own.
    grid: int = 6
    # Momentum decays that SGHMC, SGNHT and cyclical SGMCMC try with each of them, in (0, 1]; the learned samplers keep
    # that of their weights, the others --momentum-decay.
    momentum_decays: tuple[float, ...] = (0.05, 0.1, 0.3)
    # Weight decays that SGD, Adam, their ensembles and averages try with each of them, beside that of the posterior's
    # mode, λ/N: the mode of a deep network with a narrow prior can be useless where its posterior is not.
    weight_decays: tuple[float, ...] = (0.0, 5e-4)
    # Seeds over which the validation NLL of a setting is averaged.
    tune_seeds: int = 1
    # Settings of a method, the best ones of a budget, that are tried again at the next larger one.
    keep: int = 4
    # Times that a grid is extended at each budget when its best learning rate lies at an edge; 0 never does.
    extensions: int = 2
    # Times that a run's curves get the validation scores of its current weights.
    validations: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sampler or len(set(self.sampler)) < len(self.sampler):
            raise ValueError(f"sampler must name methods, each once, got {self.sampler}")
        check_at_least_one(self, "grid", "tune_seeds", "keep", "validations")
        if self.extensions < 0:
            raise ValueError(f"extensions must not be negative, got {self.extensions}")
        if not self.momentum_decays or not all(0 < decay <= 1 for decay in self.momentum_decays):
            raise ValueError(f"momentum_decays must lie in (0, 1], got {self.momentum_decays}")
        if any(not decay >= 0 for decay in self.weight_decays):
            raise ValueError(f"weight_decays must not be negative, got {self.weight_decays}")
        if self.budgets is not None:
            if not self.budgets or min(self.budgets) < 1 or len(set(self.budgets)) < len(self.budgets):
                raise ValueError(f"budgets must be positive and differ, got {self.budgets}")
            if self.settings.steps is not None:
                raise ValueError(f"budgets={self.budgets} and steps={self.settings.steps} exclude each other")
        if self.settings.ood is not None:
            raise ValueError(f"ood={self.settings.ood!r}: only tools/sample.py has out-of-distribution scores")

    def folder(self) -> Path:
        name = self.preset or super().folder().name
        return self.out or Path("runs") / f"compare_{name}"


class Comparison:
    """Tunes and runs every method, budget by budget."""

    def __init__(self, options: Options, data: ImageData, bar: tqdm) -> None:
        self.options, self.data, self.bar = options, data, bar
        self.store = RunStore(data, None, fresh=options.fresh)
        self.candidates = {
            method: grid(METHODS[method], options.grid, options.settings, alternatives(options, data))
            for method in options.sampler
        }
        bar.reset(total=planned(options, list(self.candidates.values()), budgets(options, data)))

    def run(self, method: str, setting: Setting, budget: int, seed: int, *, test: bool) -> Result:
        """One run of a method at one of its settings."""
        title = f"{budget} gradients, {METHODS[method].label}, {self.describe(method, setting)}, seed {seed}"
        return self.store.run(
            self.settings(budget, setting), method, setting.lr, seed, self.folder(budget),
            title=title, bar=self.bar, test=test, validations=self.options.validations,
            variant=setting.variant(METHODS[method]),
        )  # fmt: skip

    def settings(self, budget: int, setting: Setting) -> Settings:
        return replace(
            self.options.settings,
            steps=budget,
            momentum_decay=setting.momentum_decay,
            prior_precision=setting.prior_precision,
        )

    def describe(self, method: str, setting: Setting) -> str:
        return ", ".join(filter(None, (f"lr {setting.lr:g}", setting.also(METHODS[method], self.data.num_data))))

    def folder(self, budget: int) -> Path:
        return self.options.folder() / f"steps_{budget}"

    def tune(self, method: str, budget: int) -> tuple[Setting, dict[Setting, list[Result]]]:
        """The best of the method's candidates, and all trials; afterwards the candidates are those to be kept.

        Raises:
            RuntimeError: all of them diverged.
        """
        options, trials = self.options, dict[Setting, list[Result]]()

        def evaluate(setting: Setting) -> float | None:
            if setting not in self.candidates[method]:
                self.bar.total += budget * options.tune_seeds
            seeds = options.seed_list(options.tune_seeds)
            trials[setting] = [self.run(method, setting, budget, seed, test=False) for seed in seeds]
            return validation_nll(trials[setting])

        try:
            scores = tune(self.candidates[method], evaluate, options.extensions)
        except RuntimeError as error:
            raise RuntimeError(f"{METHODS[method].label}, {budget} gradients: {error}") from error
        self.candidates[method] = ranked(scores)[: options.keep]
        chosen = self.candidates[method][0]
        edge = ", at the edge of what was tried" if at_edge(chosen, scores) else ""
        tqdm.write(
            f"{budget} gradients, {METHODS[method].label}: {self.describe(method, chosen)} has the lowest validation "
            f"NLL, {text(scores[chosen])}, of {len(scores)} settings{edge}"
        )
        return chosen, trials

    def report(self, budget: int) -> BudgetReport:
        """Tuning and final runs of every method at one budget."""
        options = self.options
        report = BudgetReport(budget, self.folder(budget), replace(options.settings, steps=budget), self.data.num_data)
        for method in options.sampler:
            chosen, trials = self.tune(method, budget)
            seeds = options.seed_list(options.seeds)
            finals = [self.run(method, chosen, budget, seed, test=True) for seed in seeds]
            self.look_for_modes(finals[0], self.settings(budget, chosen), budget)
            self.discard_samples(trials, chosen, budget)
            report.chosen[method], report.trials[method], report.runs[method] = chosen, trials, finals
        return report

    def look_for_modes(self, result: Result, settings: Settings, budget: int) -> None:
        """Fill in a run's `modes`, once."""
        if result.diverged is None and result.num_samples > 1 and result.modes is None:
            result.modes = modes(load_samples(result, settings, self.data, self.folder(budget)), self.data)
            write_result(result, self.folder(budget))

    def discard_samples(self, trials: dict[Setting, list[Result]], chosen: Setting, budget: int) -> None:
        """Delete the weights of the settings that lost; their results stay."""
        for setting, results in trials.items():
            for result in results if setting != chosen else ():
                (self.folder(budget) / "samples" / f"{result.name}.safetensors").unlink(missing_ok=True)


def alternatives(options: Options, data: ImageData) -> dict[str, tuple[float, ...]]:
    """What is tried beside learning rates: values of the settings that `Method.tunes` names."""
    precisions = (options.settings.prior_precision, *(decay * data.num_data for decay in options.weight_decays))
    return {"momentum_decay": options.momentum_decays, "prior_precision": tuple(dict.fromkeys(precisions))}


def budgets(options: Options, data: ImageData) -> list[int]:
    """From the smallest to the largest."""
    return sorted(options.budgets or (options.settings.budget(data.num_data),))


def planned(options: Options, candidates: Sequence[Sequence[Setting]], steps: Sequence[int]) -> int:
    """Gradients of all runs together, if no grid is extended; a final run that the tuning has done costs nothing."""
    finals = options.seeds - min(options.seeds, options.tune_seeds)
    total = 0
    for number, budget in enumerate(steps):
        tried = [len(own) if number == 0 else min(len(own), options.keep) for own in candidates]
        total += budget * sum(count * options.tune_seeds + finals for count in tried)
    return total


def prepare(options: Options) -> ImageData:
    """The data on their device; raises whatever is wrong with the options before anything is trained."""
    device = prepare_torch(options.device, options.threads)
    data = options.settings.load_data(options.data).to(device)
    if not len(data.val_y):
        raise ValueError(f"tuning needs validation images, which {options.settings.dataset} lacks")
    for budget in budgets(options, data):
        for method in options.sampler:
            settings = replace(options.settings, steps=budget)
            check(METHODS[method], settings, METHODS[method].lr, data)
    return data


def parse(arguments: Sequence[str] | None) -> Options:
    """The options; those of the preset, if one is named, are the defaults of the others."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    name = first.parse_known_args(arguments)[0].preset
    default = Options()
    if name in PRESETS:
        settings, steps = PRESETS[name]
        default = Options(settings=settings, budgets=steps, preset=name)
    return tyro.cli(Options, args=arguments, default=default, description=__doc__)


def draw(report: BudgetReport, out: Path) -> None:
    """The figures of one budget."""
    title = f"{report.settings.dataset}, {report.settings.model}, {report.budget} gradients"
    figure_1(out / f"figure1_{report.budget}.png", report, title)
    figure_2(out / f"figure2_{report.budget}.png", report, title)
    temperature_figure(out / f"temperatures_{report.budget}.png", report, title)
    validation_figure(out / f"validation_{report.budget}.png", report, title)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    try:
        options = parse(arguments)
        data = prepare(options)
    except (ValueError, TypeError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    settings, out = options.settings, options.folder()
    command = command_line("compare", arguments)
    print(
        f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test images "
        f"of {'×'.join(map(str, data.input_shape))}, {data.num_classes} classes\n"
        f"{settings.model}: budgets of {', '.join(map(str, budgets(options, data)))} minibatch gradients a run, T="
        f"{settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
    )
    reports: list[BudgetReport] = []
    try:
        with tqdm(unit="grad", smoothing=0.05) as bar:
            comparison = Comparison(options, data, bar)
            for budget in budgets(options, data):
                reports.append(comparison.report(budget))
                write_results(out, reports, command)
                draw(reports[-1], out)
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished runs are kept in {out}, the same command goes on from there")
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    for report in reports:
        print(f"\n{tables(report, content(report))}")
    print(f"\nin {out}: table.md, results.json, the figures, and every run under steps_<budget>/")
    print(f"TensorBoard: {sys.executable} -m tensorboard.main --logdir {out}")


if __name__ == "__main__":
    main()
