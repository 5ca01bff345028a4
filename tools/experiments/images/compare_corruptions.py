"""Test images under the corruptions of CIFAR-10-C, re-created or published: a run's scores, their table and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from experiments.harness.figures import grid_lines, new_figure
from experiments.harness.tables import finished, markdown, spread
from learned_samplers import metrics
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ArrayData, ImageData, TokenData, load_corrupted
from meta_tasks.datasets.corruptions import LARGEST_SEVERITY, RECREATED, corrupt
from meta_tasks.random_streams import generator

if TYPE_CHECKING:
    from experiments.images.result import Result

#: key, heading, decimals
MEASURES = (("accuracy", "accuracy", 3), ("nll", "NLL [nats]", 3), ("ece", "ECE", 3))
SEVERITIES = range(1, LARGEST_SEVERITY + 1)
NONE = "none"  # the same images as they are, of severity 0


def check_images(data: ImageData) -> None:
    """ValueError for data that cannot be corrupted."""
    channels, *sides = data.input_shape if len(data.input_shape) == 3 else (0, 0)
    if isinstance(data, ArrayData | TokenData) or channels not in (1, 3) or min(sides) < 4 or not data.num_classes:
        raise ValueError(
            f"corruptions needs classes of images with one channel or three and at least 4×4 pixels, {data.name} has "
            f"inputs of shape {tuple(data.input_shape)}"
        )


#: Where corrupted images come from: as tables and figures say it.
SOURCES = {
    "recreated": "a re-creation by this project's own code (frost is made up, not photographed)",
    "published": "the published files",
}


class PublishedImages:
    """The corrupted test images of the published files, as the settings have the images.

    Args:
        name: "cifar10" or "cifar100".
        root: the folder of the data files, None for the usual one.
        size, grayscale: as for `load_corrupted`.
    """

    def __init__(self, name: str, root: str | None, size: int | None, grayscale: bool) -> None:
        self.name, self.root, self.form = name, root, {"size": size, "grayscale": grayscale}

    def under(self, corruption: str, severity: int, chosen: Tensor, labels: Tensor) -> Tensor:
        """The chosen images; ValueError where the files have other labels, and so other images, than the test set."""
        form: Any = self.form
        found = load_corrupted(self.name, corruption, severity, self.root, **form)
        kept = chosen.cpu()
        if len(found.test_y) <= int(kept.max()) or not torch.equal(found.test_y[kept], labels.cpu()):
            raise ValueError(
                f"the published images of {self.name} under {corruption} have other labels than its test images: "
                "corruption_files needs all of these, in the published order"
            )
        return found.test_x[kept].to(chosen.device)


class CorruptedImages:
    """So many of the test images, chosen at random once, under each corruption; the last one made is kept.

    Args:
        count: of images; all of them, where there are fewer.
        published: takes the place of corruptions made here.
    """

    def __init__(self, data: ImageData, count: int, published: PublishedImages | None = None) -> None:
        total = len(data.test_y)
        chosen = torch.randperm(total, generator=generator(0, "corrupted images"))[:count].sort().values
        chosen = chosen.to(data.test_y.device)
        self.images, self.labels, self._chosen = data.test_x[chosen], data.test_y[chosen], chosen
        self._published, self.source = published, "recreated" if published is None else "published"
        self._name, self._made = NONE, self.images

    def under(self, name: str) -> Tensor:
        """The images at severities 1 to 5, one after the other; under `NONE` as they are."""
        if name != self._name:
            levels = () if name == NONE else [self._corrupted(name, severity) for severity in SEVERITIES]
            self._name, self._made = name, torch.cat(levels) if levels else self.images
        return self._made

    def _corrupted(self, name: str, severity: int) -> Tensor:
        if self._published is None:
            return corrupt(self.images, name, severity)
        return self._published.under(name, severity, self._chosen, self.labels)

    def scores(self, samples: SampleCollection, name: str) -> dict[str, list[float]]:
        """Of each measure its values at the severities."""
        found = samples.predict(self.under(name)).split(len(self.labels))
        return {key: [getattr(metrics, key)(part, self.labels) for part in found] for key, *_ in MEASURES}

    def missing(self, result: Result) -> list[str]:
        """The corruptions of which a run has no scores on so many images of this source."""
        own = {"images": len(self.labels), "source": self.source}
        known = result.corruptions
        if known is None or own != {"images": known["images"], "source": source_of(known)}:
            known = result.corruptions = {**own, "scores": {}}
        return [name for name in (NONE, *RECREATED) if name not in known["scores"]]


def source_of(known: Mapping[str, Any]) -> str:
    """Of a run's scores; those that do not say it are older than the published files' place here."""
    return str(known.get("source", "recreated"))


def scored(results: Sequence[Result]) -> list[dict[str, Any]] | None:
    """`Result.corruptions` of the finished runs; None where not all of them have all scores, of the same images.

    An earlier command may have asked for fewer seeds, or have been ended in between.
    """
    known = [result.corruptions for result in finished(results) if result.corruptions is not None]
    whole = [each for each in known if {NONE, *RECREATED} <= set(each["scores"])]
    alike = len({images_of(each) for each in whole}) == 1
    return whole if alike and len(whole) == len(finished(results)) else None


def images_of(known: Mapping[str, Any]) -> tuple[int, str]:
    """How many images scores are of, and whose."""
    return known["images"], source_of(known)


def by_severity(results: Sequence[Result]) -> dict[str, np.ndarray] | None:
    """Of each measure the means over the corruptions at severities 0 to 5, a row a seed; None as `scored` says."""
    if (whole := scored(results)) is None:
        return None
    known = [each["scores"] for each in whole]
    return {
        key: np.array(
            [[*scores[NONE][key], *np.mean([scores[name][key] for name in RECREATED], axis=0)] for scores in known]
        )
        for key, *_ in MEASURES
    }


def corruption_numbers(results: Sequence[Result]) -> dict[str, Any]:
    """{"corruptions": …} of a method as JSON takes it: means over seeds, by severity and by corruption; {} without."""
    means, known = by_severity(results), scored(results)
    if means is None or known is None:
        return {}
    scores = [each["scores"] for each in known]
    return {
        "corruptions": {
            "images": known[0]["images"],
            "source": source_of(known[0]),
            "by_severity": {key: rows.tolist() for key, rows in means.items()},
            "by_corruption": {
                name: {key: np.mean([each[name][key] for each in scores], axis=0).tolist() for key, *_ in MEASURES}
                for name in RECREATED
            },
        }
    }


def corruption_tables(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table of each measure: a row a method, a column a severity; [] where none was measured.

    All rows are of the first one's images; methods that were scored on others are named below.
    """
    measured = {name: each["corruptions"] for name, each in methods.items() if "corruptions" in each}
    if not measured:
        return []
    one = next(iter(measured.values()))
    known = {name: each for name, each in measured.items() if images_of(each) == images_of(one)}
    tables = []
    for key, heading, decimals in MEASURES:
        rows = []
        for name, numbers in known.items():
            columns = np.array(numbers["by_severity"][key]).T
            cells = {str(severity): spread(values.tolist(), decimals) for severity, values in enumerate(columns)}
            rows.append({f"{heading} at severity": methods[name]["label"], **cells})
        tables.append(markdown(rows))
    note = (
        f"The {len(RECREATED)} corruptions of CIFAR-10-C, {SOURCES[one['source']]}, of {one['images']} test images; "
        "means over the corruptions, severity 0 are the images as they are."
    )
    for name in (name for name in measured if name not in known):
        count, source = images_of(measured[name])
        note += f" {methods[name]['label']} was scored on other images and has no row: {count} of {SOURCES[source]}."
    return [note, *tables]


def corruption_figure(
    path: Path, runs: Mapping[str, Sequence[Result]], styles: Mapping[str, dict[str, Any]], title: str
) -> None:
    """Accuracy, NLL and ECE against severity, a line a method, with a band of one standard deviation over seeds."""
    known = {name: images_of(own[0]) for name in styles if (own := scored(runs[name]))}
    if not known:
        return
    images = next(iter(known.values()))  # as in the table, all lines are of the first one's
    curves = {name: means for name in known if known[name] == images and (means := by_severity(runs[name]))}
    fig = new_figure(14, 5.2)
    axes = fig.subplots(1, 3)
    x = np.arange(LARGEST_SEVERITY + 1)
    for ax, (key, heading, _) in zip(axes, MEASURES):
        for name, means in curves.items():
            mean, std = means[key].mean(0), means[key].std(0, ddof=int(len(means[key]) > 1))
            ax.plot(x, mean, **styles[name], marker="o", markersize=3)
            if len(means[key]) > 1:
                ax.fill_between(x, mean - std, mean + std, color=styles[name]["color"], alpha=0.12, linewidth=0)
        ax.set(xlabel="severity", ylabel=heading, xticks=x)
        grid_lines(ax)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False)
    whose = {"recreated": "as in CIFAR-10-C, a re-creation", "published": "of CIFAR-10-C"}[images[1]]
    fig.suptitle(f"{title}; corruptions {whose}; means over {len(RECREATED)}")
    fig.savefig(path, dpi=120)
