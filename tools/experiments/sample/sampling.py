"""`sample.py`: its options, and the runs of one call."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.harness.options import positive
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.options import MethodName, NetworkOptions
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs, store_for
from experiments.harness.runs.training import validate_run
from meta_tasks import datasets
from meta_tasks.datasets import ArrayData, ImageData


@dataclass(frozen=True)
class SampleOptions(NetworkOptions):
    """Sample the posterior of a network on real images, beside ordinary training with the same budget."""

    # Methods, in the order of the table.
    sampler: tuple[MethodName, ...] = ("SGD", "DeepEnsemble", "SGHMC", "AdaptedSGHMC", "WhitenedSGHMC")
    # Learning rate of every method, for the mean loss (the start for HMC); by default each one's own.
    lr: float | None = None
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")

    def learning_rate(self, method: str, data: ImageData) -> float:
        return METHODS[method].rate_at(self.settings, data.num_data) if self.lr is None else self.lr

    def load(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data on their device, and out-of-distribution images of one data set at least (of images that have a
        name); raises whatever is wrong with the options before anything is trained."""
        settings = self.settings
        data, ood = self.load_on_device(settings.ood)
        if not ood and not isinstance(data, ArrayData | datasets.TokenData):
            names = (datasets.out_of_distribution(settings.dataset),)
            ood = {n: x.to(data.train_x.device) for n, x in settings.load_ood(self.data, data, names).items()}
        for method in self.sampler:
            validate_run(METHODS[method], settings, self.learning_rate(method, data), data)
        return data, ood


def all_runs(options: SampleOptions, data: ImageData, ood: dict[str, ImageData]) -> dict[str, list[Result]]:
    """The runs of each method, one a seed; those that are there already are read back, unless --fresh forbids it."""
    runs = Runs(data, ood, store_for(options.folder(), data, ood, fresh=options.fresh))
    found: dict[str, list[Result]] = {}
    for number, method in enumerate(options.sampler, start=1):
        lr, done = options.learning_rate(method, data), found.setdefault(method, [])
        for seed in options.seed_list():
            title = f"[{number}/{len(options.sampler)}] {method}, seed {seed}"
            done.append(result := runs.run(options.settings, method, lr, seed, title=title))
            runs.measure(result, options.settings, lines=True)
            if result.diverged:
                print(f"{title} diverged: {result.diverged}")
    return found
