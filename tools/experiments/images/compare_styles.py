"""How every method is drawn in all figures of a comparison."""

from __future__ import annotations

import itertools
from typing import Any

from experiments.harness.tables import finished
from experiments.images.compare_report import BudgetReport
from experiments.images.report import label
from learned_samplers import plots


def styles(report: BudgetReport) -> dict[str, dict[str, Any]]:
    """How every method is drawn in all figures: those with several samples in a run before the single networks.

    Where there are more methods than looks, the first ones come again.
    """
    ended = {name: finished(results) for name, results in report.runs.items()}
    names = sorted((name for name in ended if ended[name]), key=lambda name: ended[name][0].num_samples == 1)
    looks = itertools.cycle((color, dash) for dash in plots.DASHES for color in plots.PALETTE)
    return {
        name: {"color": color, "linestyle": dash, "label": label(report.runs[name])}
        for name, (color, dash) in zip(names, looks)
    }
