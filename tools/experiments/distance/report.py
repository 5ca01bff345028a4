"""The table and the figure of `distance.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.figures import band, grid_lines, logarithmic_labels, new_figure
from experiments.harness.tables import markdown, rectangular, spread, with_error
from learned_samplers import plots

Found = Mapping[str, Mapping[str, Any]]  # part → what `Experiment.all` gives
RIVALS = ("SGHMC", "BAOA")


def table(found: Found) -> str:
    """A table a part: distance at each budget with the best rate, gradients to the target, and test NLL at the last."""
    return "\n\n".join(f"### {name}\n\n{_one(part)}" for name, part in found.items())


def _one(part: Mapping[str, Any]) -> str:
    own = part["hmc"]
    rows = [{"method": "HMC, a chain", "test NLL": spread(own["nll"], 3), "gradients": "–"}]
    rivals = [part["rows"][name]["gradients"] for name in RIVALS if name in part["rows"]]
    best = min((each for each in rivals if each is not None), default=None)
    for name, row in part["rows"].items():
        cells = {"method": name}
        for budget, numbers in row["budgets"].items():
            cells[f"{int(budget):,}"] = f"{with_error(numbers['distances'], 4)} (lr {numbers['lr']:g})"
        reached = row["gradients"]
        share = "" if None in (reached, best) or name in RIVALS else f" ({reached / best:.2f})"
        cells["gradients"] = "not reached" if reached is None else f"{float(f'{reached:.2g}'):,.0f}{share}"
        cells["test NLL"] = spread(list(row["budgets"].values())[-1]["nll"], 3)
        rows.append(cells)
    budgets = sorted({int(b) for row in part["rows"].values() for b in row["budgets"]})
    order = ["method", *(f"{budget:,}" for budget in budgets), "gradients", "test NLL"]
    every = rectangular(rows)
    text = markdown([{heading: row[heading] for heading in order if heading in row} for row in every])
    few, whole = spread(own["distances"], 4), spread(own["all_states"], 4)
    said = f"100 states of a chain of HMC are {few} from the other chains (all its states {whole})"
    return f"{said}; the target is {part['target']:.4f}.\n\n{text}"


def figure(found: Found, path: Path) -> None:
    """Distance from HMC against gradients, a panel a part; the target is the dotted line."""
    shown = {name: part for name, part in found.items() if any(len(r["budgets"]) > 1 for r in part["rows"].values())}
    if not shown:
        return
    fig = new_figure(1.0 + 4.4 * len(shown), 4.2)
    axes: Sequence[Any] = fig.subplots(1, len(shown), squeeze=False)[0]
    names = list(dict.fromkeys(row for part in shown.values() for row in part["rows"]))
    dashes = {"BAOA": "--"}  # it lies on SGHMC
    looks = {
        name: {"color": color, "label": name, "linestyle": dashes.get(name, "-")}
        for name, color in zip(names, plots.PALETTE)
    }
    for ax, (title, part) in zip(axes, shown.items()):
        logarithmic_labels(ax)
        ax.set(xscale="log", xlabel="gradients", title=title)
        ticks = sorted({int(budget) for row in part["rows"].values() for budget in row["budgets"]})
        ax.set_xticks(ticks, [f"{each:,}" for each in ticks])
        for name, row in part["rows"].items():
            budgets = [int(budget) for budget in row["budgets"]]
            values = [numbers["distances"] for numbers in row["budgets"].values()]
            band(ax, budgets, list(zip(*values)), looks[name], marker="o", markersize=3)
        ax.axhline(part["target"], color="0.3", linestyle=":", label="target: 1.1 × 100 states of HMC")
        low = min(part["target"], *(min(n["distances"]) for r in part["rows"].values() for n in r["budgets"].values()))
        ax.set_ylim(bottom=10 ** (math.log10(low) - 0.08))
        grid_lines(ax)
    axes[0].set_ylabel("total variation to HMC's predictions")
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels())}
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=min(3, len(shown) + 1), frameon=False)
    fig.savefig(path, dpi=130)
