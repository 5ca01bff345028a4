"""Test images under the corruptions of CIFAR-10-C, re-created: a run's scores, and their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.compare.cifar10_c import LARGEST_SEVERITY, RECREATED, corrupt
from experiments.harness.runs.result import Result
from experiments.harness.study import Measure
from learned_samplers import metrics
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ArrayData, ImageData, TokenData
from meta_tasks.random_streams import generator

#: key, heading, decimals
MEASURES = (("accuracy", "accuracy", 3), ("nll", "NLL [nats]", 3), ("ece", "ECE", 3))
NONE = "none"  # the same images as they are, of severity 0


def check_images(data: ImageData) -> None:
    """ValueError for data that cannot be corrupted."""
    channels, *sides = data.input_shape if len(data.input_shape) == 3 else (0, 0)
    if isinstance(data, ArrayData | TokenData) or channels not in (1, 3) or min(sides) < 4 or not data.num_classes:
        raise ValueError(
            f"corruptions needs classes of images with one channel or three and at least 4×4 pixels, {data.name} has "
            f"inputs of shape {tuple(data.input_shape)}"
        )


class CorruptedImages:
    """Test images, chosen at random once, under each corruption; the last one made is kept."""

    def __init__(self, data: ImageData, count: int) -> None:
        total = len(data.test_y)
        chosen = torch.randperm(total, generator=generator(0, "corrupted images"))[:count].sort().values
        chosen = chosen.to(data.test_y.device)
        self.images, self.labels = data.test_x[chosen], data.test_y[chosen]
        self._name, self._made = NONE, self.images

    def under(self, name: str) -> Tensor:
        """The images at severities 1 to 5, one after the other; under `NONE` as they are."""
        if name != self._name:
            levels = range(1, LARGEST_SEVERITY + 1)
            made = self.images if name == NONE else torch.cat([corrupt(self.images, name, level) for level in levels])
            self._name, self._made = name, made
        return self._made

    def scores(self, samples: SampleCollection, name: str) -> dict[str, list[float]]:
        """Values of each measure at the severities."""
        parts = samples.predict(self.under(name)).split(len(self.labels))
        return {key: [getattr(metrics, key)(part, self.labels) for part in parts] for key, *_ in MEASURES}

    def missing(self, result: Result) -> list[str]:
        """The corruptions of which a run has no scores on so many images."""
        scored = result.corruptions
        if scored is None or scored["images"] != len(self.labels):
            scored = result.corruptions = {"images": len(self.labels), "scores": {}}
        return [name for name in (NONE, *RECREATED) if name not in scored["scores"]]


def numbers(scored: Mapping[str, Any]) -> dict[str, float]:
    """Means of each measure over the corruptions, by the keys of `COLUMNS`."""
    scores = scored["scores"]
    means = {
        key: [*scores[NONE][key], *np.mean([scores[name][key] for name in RECREATED], axis=0)] for key, *_ in MEASURES
    }
    return {f"{key} at {severity}": float(value) for key, by in means.items() for severity, value in enumerate(by)}


#: Columns of a table of each measure.
COLUMNS = [
    [Measure(f"{key} at {severity}", f"{heading} at {severity}", decimals) for severity in range(LARGEST_SEVERITY + 1)]
    for key, heading, decimals in MEASURES
]
NOTE = (
    f"Test images under the {len(RECREATED)} corruptions of CIFAR-10-C, re-created (frost is made up, not "
    "photographed), at severities 1 to 5; means over the corruptions, 0 is none."
)
