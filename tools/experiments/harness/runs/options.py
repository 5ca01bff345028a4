"""The options that the tools for networks and data sets share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro

from experiments.harness.devices import prepare_torch
from experiments.harness.options import DataOptions, DeviceOptions, RunOptions, names_once, refuse_changed
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.scoring import HALVES
from experiments.harness.runs.settings import Settings
from learned_samplers.base.validation import one_of as check_one_of
from meta_tasks.datasets import ImageData
from meta_tasks.datasets.files import read_npy


@dataclass(frozen=True)
class NetworkOptions(DeviceOptions, DataOptions, RunOptions):
    """The options of every tool that compares methods on a network and a data set."""

    # Data, network, posterior and budget.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # Predictive probabilities to compare with, HMC's for instance: an .npy file (test images, classes).
    reference: Path | None = None
    # Methods to compare, in any letter case.
    sampler: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names_once(self, "sampler")
        if (steps := self.settings.steps) is not None:
            refuse_changed(self.settings, "epochs", why=f"and steps={steps} exclude each other")
        learned = {name.lower(): name for name, method in METHODS.items() if method.network is not None}
        for name in self.settings.named_networks:
            check_one_of("networks", name, learned)

    def folder(self) -> Path:
        """Folder of the results."""
        dataset = Path(self.settings.dataset.removeprefix("npz:")).stem
        model = self.settings.model.rpartition(":")[2]
        return self.out or Path("runs") / f"{dataset}_{model}"

    def load_on_device(self) -> tuple[ImageData, dict[str, ImageData]]:
        """The data and the out-of-distribution images on their device, for which torch is set up."""
        device = prepare_torch(self.device, self.threads)
        data = self.settings.load_data(self.data)
        return data.to(device), {
            name: images.to(device) for name, images in self.settings.load_ood(self.data, data).items()
        }

    def load_reference(self, data: ImageData) -> torch.Tensor | None:
        """The probabilities of --reference, in double precision; None without it."""
        if self.reference is None:
            return None
        try:
            probabilities = torch.from_numpy(read_npy(self.reference)).double()
        except (ValueError, TypeError) as error:
            raise ValueError(f"reference {self.reference} is no .npy file of numbers: {error}") from error
        wanted = (len(data.test_y), data.num_classes)
        if (shape := tuple(probabilities.shape)) != wanted:
            raise ValueError(f"reference {self.reference} must have the shape {wanted}, got {shape}")
        # Half precision is how large predictions are handed round.
        sums = probabilities.sum(1, keepdim=True)
        if not probabilities.isfinite().all() or probabilities.min() < 0 or (sums - 1).abs().max() > 0.01:
            raise ValueError(f"reference {self.reference} must hold probabilities that sum to 1 for each image")
        return (probabilities / sums)[HALVES[self.settings.half]]

    def describe(self, data: ImageData) -> str:
        """Data, network and posterior, for the terminal."""
        settings = self.settings
        return (
            f"{settings.dataset}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test "
            f"examples of {'×'.join(map(str, data.input_shape))}, {data.num_classes} classes\n{settings.model}, "
            f"T={settings.temperature:g}, prior precision {settings.prior_precision:g}, {data.train_x.device}"
        )
