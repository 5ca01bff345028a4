"""How much could a prior by layer gain on small tables, and do a table's size and shape foretell it?

The protocol, written before the runs: an MLP of one hidden layer of 32, BAOA at lr = 0.05, 2,000 steps of 32 rows, the
average of the last two thirds; 25 settings of λ (first and second weights; biases have 1) at T = 1 and T = 0.1, side by
side; 64 and 512 rows of each table, four splits. A setting is chosen on two splits and scored on the other two. The
*oracle* knows the best setting of each table; *fixed* is the best for all; the *predictor* is a ridge regression of
each setting's log NLL on log rows, inputs and classes, for tables that it has not seen. A learned prior is worth
training if widths by layer give the oracle more than 6 % over the best fixed setting, and the predictor gains at all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets as tables_of_sklearn
from torch import Tensor

from experiments.harness import uci_data
from learned_samplers.classical.baoa import baoa_rule
from meta_tasks import datasets

GRID, TEMPERATURES = (0.1, 0.4, 1.6, 6.4, 25.0), (1.0, 0.1)
SETTINGS = tuple(itertools.product(GRID, GRID, TEMPERATURES))
SIZES, SPLITS = (64, 512), 4
STEPS, LR, HIDDEN, BATCH = 2000, 0.05, 32, 32

Table = tuple[np.ndarray, np.ndarray]


def tables(root: str | None) -> dict[str, Table]:
    """Inputs and classes by name: scikit-learn's sets, UCI's regressions in three classes, images of 7×7."""
    loaded: dict[str, Table] = {}
    for name in ("iris", "wine", "breast_cancer", "digits"):
        bunch = getattr(tables_of_sklearn, f"load_{name}")()
        loaded[name] = bunch.data, bunch.target
    for name in uci_data.NAMES:
        data = uci_data.load(name, root)
        rows = np.random.default_rng(0).permutation(len(data.y))[:4000]
        x, y = data.x.numpy()[rows], data.y.numpy()[rows]
        loaded[name] = x, np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    for name in ("mnist", "fashion_mnist"):
        images = datasets.load(name, root, size=7, grayscale=True)
        loaded[name] = images.test_x[:4000].flatten(1).numpy(), images.test_y[:4000].numpy()
    return loaded


def run(table: Table, rows: int, seed: int) -> list[float]:
    """NLL of the average on up to 1,000 other rows at each of `SETTINGS`, all of them in one batch."""
    x, y = table
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:rows], order[rows : rows + 1000]
    mean, scale = x[train].mean(0), x[train].std(0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    x_train, x_test = (
        torch.tensor(((x[part] - mean) / scale).clip(-8, 8), dtype=torch.float32) for part in (train, test)
    )
    y_train, y_test = torch.as_tensor(y[train]).long(), torch.as_tensor(y[test]).long()
    members, classes, inputs = len(SETTINGS), int(y.max()) + 1, x.shape[1]
    generator = torch.Generator().manual_seed(seed)
    first, second, temperature = torch.tensor(SETTINGS).T
    # Weights of a member lie in columns of the first layer, whose inputs all members share.
    shapes = ((inputs, members * HIDDEN), (members * HIDDEN,), (members, HIDDEN, classes), (members, 1, classes))
    in_columns, in_blocks = (lambda v: v.repeat_interleave(HIDDEN)), (lambda v: v.view(members, 1, 1))
    ones = torch.ones(members)
    precisions = (in_columns(first), in_columns(ones), in_blocks(second), in_blocks(ones))
    noises = [shape(temperature.sqrt()) for shape in (in_columns, in_columns, in_blocks, in_blocks)]
    weights = [
        (2 * torch.rand(shape, generator=generator) - 1) / fan**0.5
        for shape, fan in zip(shapes, (inputs, inputs, HIDDEN, HIDDEN), strict=True)
    ]
    momenta = [torch.zeros_like(w) for w in weights]

    def densities(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        hidden = (x @ weights[0] + weights[1]).relu().view(len(x), members, HIDDEN).transpose(0, 1)
        outputs = torch.baddbmm(weights[3], hidden, weights[2]).log_softmax(-1)
        return outputs.gather(-1, y.expand(members, -1)[..., None])[..., 0]

    total, kept = torch.full((members, len(test)), -torch.inf), 0
    for step in range(STEPS):
        batch = torch.randint(rows, (min(BATCH, rows),), generator=generator)
        leaves = [w.requires_grad_() for w in weights]
        loss = -densities(leaves, x_train[batch], y_train[batch]).mean(1).sum()
        slopes = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            for i, (w, slope, precision, noise) in enumerate(zip(leaves, slopes, precisions, noises, strict=True)):
                w = w.detach()
                target: dict[str, Any] = dict(lr=LR, num_data=rows, temperature=1.0, prior_precision=0.0)
                drawn = torch.randn(w.shape, generator=generator) * noise
                weights[i], momenta[i] = baoa_rule(
                    w, slope + precision * w / rows, drawn, momenta[i], momentum_decay=0.1, **target
                )
            if step >= STEPS // 3 and step % 25 == 24:
                total, kept = torch.logaddexp(total, densities(weights, x_test, y_test)), kept + 1
    return (-(total - np.log(kept)).clamp_min(-20).mean(1)).tolist()


def results(root: str | None, out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """NLL (splits, settings) of every table at every size, kept in files."""
    loaded = tables(root)
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    for seed, (name, table), rows in itertools.product(range(SPLITS), loaded.items(), SIZES):
        if rows > 0.7 * len(table[1]):
            continue
        file = out / f"headroom_{name}_{rows}_{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(run(table, rows, seed)))
        entry = entries.setdefault((name, rows), {"nll": [], "features": (rows, table[0].shape[1], table[1].max() + 1)})
        entry["nll"].append(json.loads(file.read_text()))
    return entries


def _with_error(values: np.ndarray) -> str:
    return f"{100 * values.mean():+.1f} ± {100 * values.std(ddof=1) / len(values) ** 0.5:.1f} %"


def report(entries: Mapping[tuple[str, int], dict[str, Any]]) -> list[str]:
    """Relative NLL, geometric means over tables, in percent of the best common λ; with standard errors over tables."""
    lines, fixed = list[str](), list[np.ndarray]()
    # Where both precisions are the same, among the settings of one temperature.
    same = np.array([k for k, (first, second) in enumerate(itertools.product(GRID, GRID)) if first == second])
    for temperature in TEMPERATURES:
        chosen = [i for i, setting in enumerate(SETTINGS) if setting[2] == temperature]
        logs = np.log(np.array([entry["nll"] for entry in entries.values()])[:, :, chosen])
        halves = logs[:, :2].mean(1), logs[:, 2:].mean(1)
        choices: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "fixed, one λ": lambda half: np.full(len(half), same[half[:, same].mean(0).argmin()]),
            "oracle, one λ": lambda half: same[half[:, same].argmin(1)],
            "fixed, by layer": lambda half: np.full(len(half), half.mean(0).argmin()),
            "oracle, by layer": lambda half: half.argmin(1),
        }
        scores = {
            name: np.mean([score[np.arange(len(score)), choose(half)] for half, score in (halves, halves[::-1])], 0)
            for name, choose in choices.items()
        }
        base = scores.pop("fixed, one λ")
        names, features = [name for name, _ in entries], np.log([entry["features"] for entry in entries.values()])
        design = np.c_[np.ones(len(features)), (features - features.mean(0)) / features.std(0)]
        surface, picks = logs.mean(1) - logs.mean((1, 2))[:, None], []
        for k, name in enumerate(names):
            others = [j for j, table in enumerate(names) if table != name]
            a = design[others]
            ridge = np.linalg.solve(a.T @ a + np.eye(a.shape[1]), a.T @ surface[others])
            best_of_others = surface[others].mean(0).argmin()
            picks.append(logs[k, :, (design[k] @ ridge).argmin()].mean() - logs[k, :, best_of_others].mean())
        fixed.append(scores["fixed, by layer"])
        lines += [f"T = {temperature:g}: {name} {_with_error(value - base)}" for name, value in scores.items()]
        best = tuple(SETTINGS[chosen[logs.mean((0, 1)).argmin()]][:2])
        lines.append(f"T = {temperature:g}: the best fixed λ by layer is {best}")
        lines.append(f"T = {temperature:g}: predictor against fixed by layer {_with_error(np.array(picks))}")
    return [*lines, f"T = 0.1 against T = 1, each fixed by layer: {_with_error(fixed[1] - fixed[0])}"]
