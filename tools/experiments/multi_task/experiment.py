"""Declaration: particles on two tasks, every method tuned on the first seed and run on every data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from experiments.harness import options as common
from experiments.harness.devices import prepare_torch
from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.options import (
    DataOptions,
    DeviceOptions,
    RunOptions,
    at_least,
    names_once,
    not_negative,
    one_of,
)
from experiments.harness.output import counted
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.harness.study import Experiment, Findings, Job, Measure, Stores
from experiments.harness.tables import markdown, rectangular
from experiments.harness.tuning import Choice, rates_around
from experiments.multi_task.methods import ENERGIES, METHODS, Settings
from experiments.multi_task.training import make_network, scores_of, train
from learned_samplers import plots
from meta_tasks.datasets import MultiTaskData, load_overlaid

Name = Literal["multi_fashion_mnist", "multi_mnist", "multi_fashion"]
DATASETS: tuple[Name, ...] = ("multi_fashion_mnist", "multi_mnist", "multi_fashion")
#: Score → heading, factor, decimals.
SCORES = {"accuracy": ("accuracy %", 100, 2), "brier": ("Brier", 1, 4), "ece": ("ECE %", 100, 2)}


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """A learning rate and the scale of the energies."""

    energy: str

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.energy}"


@dataclass(frozen=True)
class TaskOptions(DeviceOptions, DataOptions, RunOptions):
    """Particle samplers on two tasks: ensemble accuracy, Brier score and calibration error of each task."""

    # A preset of all options; options given beside it override its values.
    preset: Literal["cpu", "paper"] | None = None
    out: Path = Path("runs/multi_task")  # Folder for the results.
    # Data, network and training.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    dataset: tuple[Name, ...] = DATASETS  # Data sets, in the order of the tables.
    # Methods, in the order of the tables, in any letter case.
    method: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(n for n, m in METHODS.items() if not m.separate)
    grid: int = 3  # Number of learning rates to try, from 1, 2, 5, 10, …, around each method's own.
    # Learning rates to try instead, the same for all methods; a single one is not tuned.
    rates: tuple[float, ...] | None = None
    # Scales of the energies to try with each rate, where particles repel each other: "posterior" is N times the mean
    # loss, "mean_loss" the mean loss, as in the published code; its repulsion is N times stronger.
    energies: tuple[Annotated[str, one_of(ENERGIES)], ...] = ENERGIES
    extensions: int = 1  # How often the grid is extended while its best rate lies at an edge.
    tune_epochs: int = 1  # Epochs of a tuning run.

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "grid", "tune_epochs")
        not_negative(self, "extensions")
        names_once(self, "dataset", "method", "energies")
        if self.rates is not None and (not self.rates or min(self.rates) <= 0):
            raise ValueError(f"rates must be positive, got {self.rates}")


def parse(arguments: Sequence[str] | None, description: str | None = None) -> TaskOptions:
    """Options; those of the preset, if one is named, are the defaults of the others."""
    cpu = Settings(train=10_000, validation=2000, test=10_000, epochs=4, batch_size=32)
    paper: Any = {"rates": (1e-3,), "energies": ("mean_loss",), "out": Path("runs/multi_task_paper")}
    presets = {
        "cpu": TaskOptions(preset="cpu", settings=cpu),
        "paper": TaskOptions(preset="paper", settings=Settings(epochs=100, batch_size=256), **paper),
    }
    return common.parse(arguments, TaskOptions(), presets, description)


class MultiTask(Experiment):
    """Every method on every data set; the runs of the first seed that tune are short."""

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        self.device = prepare_torch(options.device, options.threads)
        self.tuning_seeds, self.extensions = options.seed_list(1), options.extensions
        self.sets: dict[str, MultiTaskData] = {}
        self.note = (
            f"Test scores of the ensemble of {options.settings.particles} particles, mean ± standard deviation over "
            f"{counted(options.seeds, 'seed')}; calibration error in 10 bins. Learning rates are tried on the first "
            f"seed, in {counted(options.tune_epochs, 'epoch')}, or given. Constant particles predict the same for "
            "every validation image. Seconds are of the clock, for training alone."
        )

    def problems(self) -> Sequence[str]:
        return self.options.dataset

    def methods(self, problem: str) -> Sequence[str]:
        return self.options.method

    def choices(self, problem: str, method: str) -> Sequence[Setting]:
        options = self.options
        rates = rates_around(METHODS[method].lr, options.grid) if options.rates is None else options.rates
        energies = options.energies if METHODS[method].repels else options.energies[:1]
        return [Setting(lr, energy) for lr in rates for energy in energies]

    def images(self, problem: str) -> MultiTaskData:
        """A data set with as many images as the settings say, on the device; the last one is kept."""
        if problem not in self.sets:
            images = self.options.settings
            limits: dict[str, Any] = {
                "limit": images.train,
                "limit_validation": images.validation,
                "limit_test": images.test,
            }
            self.sets = {problem: load_overlaid(problem, self.options.data, size=images.size, **limits).to(self.device)}
        return self.sets[problem]

    def data(self, problem: str) -> str:
        return data_fingerprint(self.images(problem))

    def settings(self, job: Job) -> Settings:
        settings = self.options.settings
        return replace(settings, epochs=self.options.tune_epochs) if job.tuning else settings

    def made_of(self, job: Job) -> dict[str, Any]:
        return asdict(self.settings(job))

    def run(self, job: Job, store: RunStore) -> dict[str, Any]:
        assert isinstance(job.choice, Setting)
        settings, data = self.settings(job), self.images(job.problem)
        network = make_network(settings, job.method, data, job.seed)
        how = (job.choice.lr, job.choice.energy, data, job.seed)
        numbers, best = train(network, settings, job.method, *how)
        if job.tuning:
            return numbers
        store.write_tensors(job.name, "particles", best)
        network.load_state(best)
        return {**numbers, **scores_of(network, data)}

    def report(self, findings: Findings) -> str:
        """Tables of the paper, a row a data set and task, and of the runs."""
        parts = []
        for score, (heading, factor, decimals) in SCORES.items():
            rows = []
            for problem, methods in findings.runs.items():
                for task in self.images(problem).tasks:
                    measure = Measure(f"{score} {task}", heading, decimals, factor)
                    rows.append(
                        {"data set, task": f"{problem}, {task}"} | {m: measure.cell(r) for m, r in methods.items()}
                    )
            parts.append(f"### {heading}\n\n{markdown(rectangular(rows))}")
        measures = (
            Measure("best_epoch", "best epoch", 1),
            Measure("constant", "constant particles", 1),
            Measure("score", "validation NLL", 4),
            Measure("accuracy_of_one", "accuracy % of one particle", 2, 100),
            Measure("overconfidence", "confidence − accuracy %", 1, 100),
            Measure("seconds", "seconds", 0),
        )
        parts += [f"### Runs, {problem}\n\n{findings.table(problem, measures)}" for problem in findings.runs]
        return "\n\n".join(filter(None, [*parts, findings.tuning_table()]))

    def figure(self, path: Path, findings: Findings, store: Stores) -> None:
        """Draw a row a score, a column a data set: a method's seeds as points, the tasks beside each other."""
        fig = new_figure(3.6 * len(findings.runs) + 2.4, 7.6)
        axes = fig.subplots(len(SCORES), len(findings.runs), squeeze=False, sharey="row")
        names = findings.methods()
        for row, (score, (heading, factor, decimals)) in zip(axes, SCORES.items(), strict=True):
            for ax, (problem, methods) in zip(row, findings.runs.items(), strict=True):
                tasks = self.images(problem).tasks
                for number, method in enumerate(names):
                    color = plots.PALETTE[number % len(plots.PALETTE)]
                    for k, task in enumerate(tasks):
                        values = Measure(f"{score} {task}", heading, decimals, factor).values(methods.get(method, []))
                        place = k + 0.8 * (number - (len(names) - 1) / 2) / len(names)
                        label = method if k == 0 else None
                        ax.plot([place] * len(values), values, "o", color=color, markersize=4, alpha=0.7, label=label)
                        if values:
                            ax.plot([place - 0.05, place + 0.05], [np.mean(values)] * 2, color=color, linewidth=2)
                ax.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
                grid_lines(ax, axis="y")
                ax.set_title(problem if score == "accuracy" else "")
            row[0].set_ylabel(heading)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside right upper", frameon=False)
        fig.savefig(path, dpi=110)
