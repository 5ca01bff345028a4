"""Sample the posterior of a network on real images, beside ordinary training with the same budget.

    python tools/sample.py                                              # the demo: handwritten digits, a minute
    python tools/sample.py --dataset fashion_mnist --data ~/data --sampler sgd sghmc --epochs 50 --tune

Every method gets the same number of gradient evaluations. Prints one table and writes results.json, table.md,
results.png, tensorboard/, samples/ and predictions/ under --out. Finished runs are read back, not repeated.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from _methods import METHODS
from _report import figure, markdown, rows, write_json
from _runner import Result, run
from _settings import Settings
from _training import check

from meta_tasks.datasets import ImageData

MethodName = Literal["sgd", "adam", "deep_ensemble", "sgld", "psgld", "sghmc", "sgnht", "cyclical", "hmc"]


@dataclass(frozen=True)
class Options:
    """Sample the posterior of a network on real images, beside ordinary training with the same budget."""

    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Methods to compare, one or several.
    sampler: tuple[MethodName, ...] = ("sgd", "sghmc", "cyclical", "deep_ensemble")
    # Learning rate of every method, dimensionless, for the mean loss (the peak for cyclical SGMCMC, the start for
    # HMC, which adapts it); by default each method's own.
    lr: float | None = None
    # First seed: of the initial weights, the minibatches and the noise. The split of the data is always the same.
    seed: int = 0
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 2
    # Choose each method's learning rate by its validation NLL with the first seed, each over as many values.
    tune: bool = False
    # The values that --tune tries, as factors on the method's learning rate (--lr, or its own).
    lr_grid: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    # Device, such as cpu or cuda:0; auto takes a GPU where there is one.
    device: str = "auto"
    # CPU threads of torch; by default torch's own choice.
    threads: int | None = None
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Folder for the results; by default runs/<dataset>_<model>.
    out: Path | None = None
    # Run again what is already there with the same settings.
    fresh: bool = False

    def __post_init__(self) -> None:
        if not self.sampler or len(set(self.sampler)) < len(self.sampler):
            raise ValueError(f"sampler must name methods, each once, got {self.sampler}")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if not self.lr_grid or min(self.lr_grid) <= 0:
            raise ValueError(f"lr_grid must hold positive factors, got {self.lr_grid}")

    def learning_rate(self, method: str) -> float:
        return METHODS[method].lr if self.lr is None else self.lr

    def grid(self, method: str) -> list[float]:
        """The learning rates that --tune tries for a method."""
        return [float(f"{factor * self.learning_rate(method):.6g}") for factor in sorted(self.lr_grid)]

    def folder(self) -> Path:
        dataset = Path(self.settings.dataset.removeprefix("npz:")).stem
        return self.out or Path("runs") / f"{dataset}_{self.settings.model}"


def prepare(options: Options) -> tuple[ImageData, ImageData]:
    """The data on their device; raises whatever is wrong with the options before anything is trained."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    data, ood = options.settings.load(options.data)
    data, ood = data.to(device), ood.to(device)
    if options.tune and not len(data.val_y):
        raise ValueError(f"--tune needs validation images, which {options.settings.dataset} lacks")
    for method in options.sampler:
        check(METHODS[method], options.settings, options.learning_rate(method), data)
    return data, ood


def tune(options: Options, method: str, data: ImageData, ood: ImageData, label: str) -> list[Result]:
    """The runs over the learning-rate grid with the first seed, best validation NLL first.

    Raises:
        RuntimeError: every one of them diverged.
    """
    grid = options.grid(method)
    trials = [
        run(options.settings, method, lr, options.seed, data, ood, options.folder(), fresh=options.fresh,
            title=f"{label}, tuning lr={lr:g}")
        for lr in grid
    ]  # fmt: skip
    scored = [(trial.validation_nll, trial) for trial in trials if trial.validation_nll is not None]
    if not scored:
        raise RuntimeError(f"{method} diverged at every learning rate of {grid}")
    best = min(scored, key=lambda pair: pair[0])[1]
    print(f"{label}: validation NLL", ", ".join(f"{t.lr:g}: {_nll(t)}" for t in trials), f"→ lr={best.lr:g}", end="")
    print(" (at the edge of the grid: widen it)" if len(grid) > 1 and best.lr in (grid[0], grid[-1]) else "")
    return [best, *(trial for trial in trials if trial is not best)]


def _nll(trial: Result) -> str:
    return "diverged" if trial.validation_nll is None else f"{trial.validation_nll:.4f}"


def compare(
    options: Options, data: ImageData, ood: ImageData
) -> tuple[dict[str, list[Result]], dict[str, list[Result]]]:
    """All runs of each method, and the trials of its tuning."""
    runs: dict[str, list[Result]] = {}
    trials: dict[str, list[Result]] = {}
    for number, method in enumerate(options.sampler, start=1):
        label = f"[{number}/{len(options.sampler)}] {METHODS[method].label}"
        lr = options.learning_rate(method)
        fresh = options.fresh
        if options.tune:
            trials[method] = tune(options, method, data, ood, label)
            lr = trials[method][0].lr
        runs[method] = []
        for seed in range(options.seed, options.seed + options.seeds):
            # The first seed's run has just been made by the tuning.
            again = fresh and not (options.tune and seed == options.seed)
            result = run(options.settings, method, lr, seed, data, ood, options.folder(), fresh=again,
                         title=f"{label}, seed {seed}")  # fmt: skip
            if result.diverged:
                print(f"{label}, seed {seed} diverged: {result.diverged}")
            runs[method].append(result)
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
    steps = settings.epochs * settings.steps_per_epoch(data.num_data)
    print(
        f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test images "
        f"of {'×'.join(map(str, data.input_shape))}, {data.num_classes} classes; out of distribution: {ood.name}\n"
        f"{settings.model}: budget of {steps} minibatch gradients a run ({settings.epochs} epochs), T="
        f"{settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
    )
    try:
        runs, trials = compare(options, data, ood)
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished runs are kept in {out}, the same command goes on from there")
    table = markdown(rows(runs, out))
    command = shlex.join(["python", "tools/sample.py", *(sys.argv[1:] if arguments is None else arguments)])
    (out / "table.md").write_text(f"`{command}`\n\n{table}\n")
    write_json(out / "results.json", runs, trials, command)
    figure(out / "results.png", runs, f"{settings.dataset}, {settings.model}, {settings.epochs} epochs", out)
    print(f"\n{table}\n")
    print(f"mean ± standard deviation over {options.seeds} seed(s); ECE in 15 bins; seconds of training alone")
    for what, name in (("table", "table.md"), ("results", "results.json"), ("figure", "results.png"),
                       ("posterior samples", "samples"), ("predictions", "predictions")):  # fmt: skip
        print(f"{what + ':':20}{out / name}")
    print(f"{'TensorBoard:':20}{sys.executable} -m tensorboard.main --logdir {out / 'tensorboard'}")
    print(f"done in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
