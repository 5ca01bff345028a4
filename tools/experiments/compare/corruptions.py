"""Test images under the corruptions of CIFAR-10-C, re-created: a run's scores, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.harness.runs.result import Result
from experiments.harness.tables import finished, markdown, spread
from learned_samplers import metrics
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ArrayData, ImageData, TokenData
from meta_tasks.datasets.corruptions import LARGEST_SEVERITY, RECREATED, corrupt
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


def by_severity(results: Sequence[Result], key: str) -> np.ndarray:
    """Means of a measure over the corruptions at severities 0 to 5, (finished runs, 6)."""
    scores = [result.corruptions["scores"] for result in finished(results) if result.corruptions]
    rows = [[*run[NONE][key], *np.mean([run[name][key] for name in RECREATED], axis=0)] for run in scores]
    return np.array(rows).reshape(-1, LARGEST_SEVERITY + 1)


def corruption_tables(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """A table of each measure: a row a method, a column a severity, after a line on the images."""
    tables = []
    for key, heading, decimals in MEASURES:
        rows = []
        for name, results in runs.items():
            columns = enumerate(by_severity(results, key).T)
            cells = {str(severity): spread(values.tolist(), decimals) for severity, values in columns}
            rows.append({f"{heading} at severity": name, **cells})
        tables.append(markdown(rows))
    scored = next((r.corruptions for results in runs.values() for r in results if r.corruptions), None)
    if scored is None:
        return []
    note = (
        f"The {len(RECREATED)} corruptions of CIFAR-10-C, re-created (frost is made up, not photographed), of "
        f"{scored['images']} test images; means over them, severity 0 is none."
    )
    return [note, *tables]
