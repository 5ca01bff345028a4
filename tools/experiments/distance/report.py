"""The table and the figure of `distance.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.figures import band, grid_lines, logarithmic_labels, new_figure
from experiments.harness.tables import markdown, rectangular, spread, with_error
from learned_samplers import plots

Findings = Mapping[str, Mapping[str, Any]]  # part → numbers of `Experiment.all`
RIVALS = ("SGHMC", "BAOA")


def table(findings: Findings) -> str:
    """A table a part: distance at each budget with the best rate, gradients to the target, and test NLL at the last."""
    return "\n\n".join(f"### {name}\n\n{_one(part)}" for name, part in findings.items())


def _one(part: Mapping[str, Any]) -> str:
    hmc = part["hmc"]
    rows = [{"method": "HMC, a chain", "test NLL": spread(hmc["nll"], 3), "gradients": "–"}]
    rivals = [part["rows"][name]["gradients"] for name in RIVALS if name in part["rows"]]
    best = min((gradients for gradients in rivals if gradients is not None), default=None)
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
    text = markdown([{h: row[h] for h in order if h in row} for row in rectangular(rows)])
    few, every_state = spread(hmc["distances"], 4), spread(hmc["all_states"], 4)
    sentence = f"100 states of a chain of HMC are {few} from the other chains (all its states {every_state})"
    return f"{sentence}; the target is {part['target']:.4f}.\n\n{text}"


def figure(findings: Findings, path: Path) -> None:
    """Distance from HMC against gradients, a panel a part; the target is the dotted line."""
    shown = {name: part for name, part in findings.items() if any(len(r["budgets"]) > 1 for r in part["rows"].values())}
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
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
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
