"""The options of `sample.py`."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.harness.devices import prepare_torch
from experiments.harness.options import at_least_one, each_once
from experiments.images.methods import METHODS
from experiments.images.option_checks import refuse_changed
from experiments.images.options import ImageOptions, MethodName
from experiments.images.training import validate_run
from meta_tasks.datasets import ImageData


@dataclass(frozen=True)
class SampleOptions(ImageOptions):
    """Sample the posterior of a network on real images, beside ordinary training with the same budget."""

    # Methods to compare, one or several, in any letter case.
    sampler: tuple[MethodName, ...] = ("SGD", "DeepEnsemble", "SGHMC", "ScaleAdaptedSGHMC", "L2E")
    # Learning rate of every method, dimensionless, for the mean loss (the peak for CyclicalSGMCMC, the start for
    # HMC, which adapts it); by default each method's own.
    lr: float | None = None
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 2
    # Independent chains of each method, in the place of --seeds: chain k has the seed --seed + k and the folder
    # chain_<k>. The tables have all chains' samples together, and R̂ over the chains. Under torchrun its processes share
    # the chains, one or several each.
    chains: int | None = None
    # Choose each method's learning rate by its validation NLL, all methods over as many values.
    tune: bool = False
    # Number of seeds over which --tune averages the validation NLL of a value, counted up from --seed; a value that
    # suits one seed can collapse with the next.
    tune_seeds: int = 2
    # The values that --tune tries, as factors on the method's learning rate (--lr, or its own).
    lr_grid: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        each_once(self, "sampler")
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
        """The data on their device; raises whatever is wrong with the options before anything is trained."""
        device = prepare_torch(self.device, self.threads)
        data, ood = self.settings.load(self.data)
        data, ood = data.to(device), {name: each.to(device) for name, each in ood.items()}
        if self.tune and not len(data.val_y):
            raise ValueError(f"--tune needs validation images, which {self.settings.dataset} lacks")
        for method in self.sampler:
            validate_run(METHODS[method], self.settings, self.learning_rate(method), data)
        return data, ood
