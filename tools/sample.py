"""Sample the posterior of a network on real images, beside ordinary training with the same budget.

    python tools/sample.py                                              # the demo: handwritten digits, a minute
    python tools/sample.py --dataset fashion_mnist --data ~/data --sampler sgd sghmc --epochs 50 --tune

Every method gets the same number of gradient evaluations. Prints one table and writes results.json, table.md,
results.png, tensorboard/, samples/ and predictions/ under --out. Finished runs are read back, not repeated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import tyro
from experiments.common.output import command_line, counted
from experiments.images.comparison import CommonOptions, RunStore, best, prepare_torch, text, validation_nll
from experiments.images.methods import METHODS, MethodName
from experiments.images.report import figure, markdown, rows, write_json
from experiments.images.runner import Result
from experiments.images.training import check

from meta_tasks.datasets import ImageData


@dataclass(frozen=True)
class Options(CommonOptions):
    """Sample the posterior of a network on real images, beside ordinary training with the same budget."""

    # Methods to compare, one or several.
    sampler: tuple[MethodName, ...] = ("sgd", "sghmc", "cyclical", "deep_ensemble")
    # Learning rate of every method, dimensionless, for the mean loss (the peak for cyclical SGMCMC, the start for
    # HMC, which adapts it); by default each method's own.
    lr: float | None = None
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 2
    # Choose each method's learning rate by its validation NLL, all methods over as many values.
    tune: bool = False
    # Number of seeds over which --tune averages the validation NLL of a value, counted up from --seed; a value that
    # suits one seed can collapse with the next.
    tune_seeds: int = 2
    # The values that --tune tries, as factors on the method's learning rate (--lr, or its own).
    lr_grid: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sampler or len(set(self.sampler)) < len(self.sampler):
            raise ValueError(f"sampler must name methods, each once, got {self.sampler}")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.tune_seeds < 1:
            raise ValueError(f"tune_seeds must be at least 1, got {self.tune_seeds}")
        if not self.lr_grid or min(self.lr_grid) <= 0:
            raise ValueError(f"lr_grid must hold positive factors, got {self.lr_grid}")

    def learning_rate(self, method: str) -> float:
        return METHODS[method].lr if self.lr is None else self.lr

    def grid(self, method: str) -> list[float]:
        """The learning rates that --tune tries for a method."""
        return [float(f"{factor * self.learning_rate(method):.6g}") for factor in sorted(self.lr_grid)]


def prepare(options: Options) -> tuple[ImageData, ImageData]:
    """The data on their device; raises whatever is wrong with the options before anything is trained."""
    device = prepare_torch(options.device, options.threads)
    data, ood = options.settings.load(options.data)
    data, ood = data.to(device), ood.to(device)
    if options.tune and not len(data.val_y):
        raise ValueError(f"--tune needs validation images, which {options.settings.dataset} lacks")
    for method in options.sampler:
        check(METHODS[method], options.settings, options.learning_rate(method), data)
    return data, ood


Trials = dict[float, list[Result]]  # learning rate → its runs, one a seed


class Comparison:
    """The runs of one call, method by method; runs made for the tuning are not repeated."""

    def __init__(self, options: Options, data: ImageData, ood: ImageData) -> None:
        self.options = options
        self.runs = RunStore(data, ood, fresh=options.fresh)

    def run(self, method: str, lr: float, seed: int, label: str) -> Result:
        """One run, read back where it is already there, unless --fresh forbids it."""
        return self.runs.run(self.options.settings, method, lr, seed, self.options.folder(), title=label)

    def tune(self, method: str, label: str) -> Trials:
        """The runs over the learning-rate grid.

        Raises:
            RuntimeError: none of them ended well.
        """
        grid = self.options.grid(method)
        seeds = self.options.seed_list(self.options.tune_seeds)
        trials = {lr: [self.run(method, lr, seed, f"{label}, lr {lr:g}, seed {seed}") for seed in seeds] for lr in grid}
        scores = {lr: validation_nll(runs) for lr, runs in trials.items()}
        print(f"{label}: mean validation NLL", ", ".join(f"lr {lr:g}: {text(nll)}" for lr, nll in scores.items()))
        chosen = best(scores)
        if chosen is None:
            raise RuntimeError(f"{method} diverged at every learning rate of {grid}")
        edge = " (at the edge of the grid: widen it)" if len(grid) > 1 and chosen in (grid[0], grid[-1]) else ""
        print(f"{label}: chosen lr {chosen:g}{edge}")
        return trials

    def all(self) -> tuple[dict[str, list[Result]], dict[str, Trials]]:
        """The runs of each method at its learning rate, and the trials of its tuning."""
        options = self.options
        runs: dict[str, list[Result]] = {}
        trials: dict[str, Trials] = {}
        for number, method in enumerate(options.sampler, start=1):
            label = f"[{number}/{len(options.sampler)}] {METHODS[method].label}"
            lr = options.learning_rate(method)
            if options.tune:
                trials[method] = self.tune(method, label)
                chosen = best({value: validation_nll(runs) for value, runs in trials[method].items()})
                assert chosen is not None
                lr = chosen
            seeds = options.seed_list(options.seeds)
            runs[method] = [self.run(method, lr, seed, f"{label}, seed {seed}") for seed in seeds]
            for result in runs[method]:
                if result.diverged:
                    print(f"{label}, seed {result.seed} diverged: {result.diverged}")
        return runs, trials


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    start = time.perf_counter()
    try:
        options = tyro.cli(Options, args=arguments, description=__doc__)
        data, ood = prepare(options)
    except (ValueError, TypeError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    settings, out = options.settings, options.folder()
    steps = settings.budget(data.num_data)
    print(
        f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test images "
        f"of {'×'.join(map(str, data.input_shape))}, {data.num_classes} classes; out of distribution: {ood.name}\n"
        f"{settings.model}: budget of {steps} minibatch gradients a run, T="
        f"{settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
    )
    try:
        runs, trials = Comparison(options, data, ood).all()
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished runs are kept in {out}, the same command goes on from there")
    table = markdown(rows(runs, out))
    command = command_line("sample", arguments)
    (out / "table.md").write_text(f"`{command}`\n\n{table}\n")
    write_json(out / "results.json", runs, trials, command)
    figure(out / "results.png", runs, f"{settings.dataset}, {settings.model}, {steps} gradients", out)
    print(f"\n{table}\n")
    seeds = counted(options.seeds, "seed")
    print(f"mean ± standard deviation over {seeds}; ECE in 15 bins; seconds of training alone")
    for what, name in (("table", "table.md"), ("results", "results.json"), ("figure", "results.png"),
                       ("posterior samples", "samples"), ("predictions", "predictions")):  # fmt: skip
        print(f"{what + ':':20}{out / name}")
    print(f"{'TensorBoard:':20}{sys.executable} -m tensorboard.main --logdir {out / 'tensorboard'}")
    print(f"done in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
