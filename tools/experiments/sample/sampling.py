"""`sample.py`: its options, and the runs of one call."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.harness.options import at_least_one, refuse_changed
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.options import MethodName, NetworkOptions
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs, store_for
from experiments.harness.runs.training import validate_run
from experiments.harness.tuning import Choice, Tuning, score_text, tune
from meta_tasks import datasets
from meta_tasks.datasets import ArrayData, ImageData

Trials = Tuning[Choice, Result]


@dataclass(frozen=True)
class SampleOptions(NetworkOptions):
    """Sample the posterior of a network on real images, beside ordinary training with the same budget."""

    # Methods, in the order of the table.
    sampler: tuple[MethodName, ...] = ("SGD", "DeepEnsemble", "SGHMC", "AdaptedSGHMC", "WhitenedSGHMC")
    # Learning rate of every method, for the mean loss (the start for HMC); by default each one's own.
    lr: float | None = None
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 2
    # Independent chains of each method, averaged, in the place of --seeds; torchrun's processes share them.
    chains: int | None = None
    # Choose each method's learning rate by its validation NLL, all methods over as many values.
    tune: bool = False
    # Number of seeds over which --tune averages the validation NLL of a value.
    tune_seeds: int = 2
    # The values that --tune tries, as factors on the method's learning rate.
    lr_grid: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "tune_seeds", "chains")
        if self.chains is not None:
            why = f"and chains={self.chains} exclude each other: chain k has the seed --seed + k"
            refuse_changed(self, "seeds", why=why)
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not self.lr_grid or min(self.lr_grid) <= 0:
            raise ValueError(f"lr_grid must hold positive factors, got {self.lr_grid}")

    def learning_rate(self, method: str) -> float:
        """Of a method that is not tuned."""
        return METHODS[method].rate(self.settings) if self.lr is None else self.lr

    def grid(self, method: str) -> list[float]:
        """The learning rates that --tune tries for a method."""
        return [float(f"{factor * self.learning_rate(method):.6g}") for factor in sorted(self.lr_grid)]

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data on their device, and out-of-distribution images of one data set at least (of images that have a
        name); raises whatever is wrong with the options before anything is trained."""
        settings = self.settings
        data, ood = self.load_on_device(settings.ood)
        if not ood and not isinstance(data, ArrayData | datasets.TokenData):
            names = (datasets.out_of_distribution(settings.dataset),)
            ood = {n: x.to(data.train_x.device) for n, x in settings.load_ood(self.data, data, names).items()}
        if self.tune and not len(data.val_y):
            raise ValueError(f"--tune needs validation images, which {settings.dataset} lacks")
        for method in self.sampler:
            validate_run(METHODS[method], settings, self.learning_rate(method), data)
        return data, ood


class Sampling:
    """The runs of one call, method by method; runs made for the tuning are not repeated."""

    def __init__(self, options: SampleOptions, data: ImageData, ood: dict[str, ImageData]) -> None:
        self.options, self.data = options, data
        self.runs = Runs(data, ood, store_for(options.folder(), data, ood, fresh=options.fresh))

    def run(self, method: str, lr: float, seed: int, title: str) -> Result:
        """One run, read back where it is already there, unless --fresh forbids it."""
        return self.runs.run(self.options.settings, method, lr, seed, title=title)

    def rate(self, method: str, title: str, trials: dict[str, Trials]) -> float:
        """A method's learning rate; if it is tuned, the best of the grid, and its trials are put with the others.

        Raises:
            RuntimeError: none of them ended well.
        """
        options = self.options
        if not options.tune:
            return options.learning_rate(method)
        grid = options.grid(method)
        try:
            tuning = tune(
                [Choice(lr) for lr in grid],
                lambda choice, seed: self.run(method, choice.lr, seed, f"{title}, {choice}, seed {seed}"),
                lambda result: result.validation_nll,
                seeds=options.seed_list(options.tune_seeds),
            )
        except RuntimeError as error:
            raise RuntimeError(f"{method}: {error}") from error
        scores = ", ".join(f"{choice}: {score_text(tuning.mean(choice))}" for choice in tuning.trials)
        print(f"{title}: mean validation NLL {scores}")
        edge = " (at the edge of the grid: widen it)" if len(grid) > 1 and tuning.edges() else ""
        print(f"{title}: chosen {tuning.chosen}{edge}")
        trials[method] = tuning
        return tuning.chosen.lr

    def all(self) -> tuple[dict[str, list[Result]], dict[str, Trials]]:
        """The runs of each method at its learning rate, and the trials of its tuning."""
        options = self.options
        runs: dict[str, list[Result]] = {}
        trials: dict[str, Trials] = {}
        for number, method in enumerate(options.sampler, start=1):
            title = f"[{number}/{len(options.sampler)}] {method}"
            lr = self.rate(method, title, trials)
            runs[method] = [self.run(method, lr, seed, f"{title}, seed {seed}") for seed in options.seed_list()]
            for result in runs[method]:
                self.runs.measure(result, options.settings, lines=True, convergence=False, plane=False)
                if result.diverged:
                    print(f"{title}, seed {result.seed} diverged: {result.diverged}")
        return runs, trials
