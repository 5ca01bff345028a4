"""What does a network not know? SGD, SGHMC and L2E with one prior, on known digits, new digits and photographs.

    python tools/demo.py          # a minute or two; the figure goes into runs/demo

A network learns the digits 0 to 7. Then it is shown the digits 8 and 9, and patches of photographs. SGD has the
largest probability to tell such strangers by; a posterior has the disagreement of its samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from tqdm import tqdm

from learned_samplers import L2E, SGHMC, PosteriorSamples
from learned_samplers.metrics import accuracy, nll
from learned_samplers.plots import PALETTE
from meta_tasks.datasets import keep_labels, load, match

PRIOR = 1.0
KNOWN, NEW, PHOTOS = "known digits", "new digits, 8 and 9", "photographs"


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 8))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epochs: int) -> None:
    for _ in tqdm(range(epochs), type(optimizer).__name__, leave=False):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def run(seed: int, epochs: int) -> dict[str, dict[str, np.ndarray]]:
    """By method: "accuracy" and "NLL" on the known digits, and an uncertainty for each input of each sort."""
    data = load("digits")
    digits = keep_labels(data, range(8))
    photos = match(load("photos"), data).test_x[:500]
    inputs = {KNOWN: digits.test_x, NEW: keep_labels(data, (8, 9)).test_x, PHOTOS: photos}
    x, y = digits.train_x, digits.train_y

    model = network(seed)
    train(model, torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=PRIOR / len(x)), x, y, epochs)
    with torch.no_grad():
        probs = {name: model(images).softmax(1) for name, images in inputs.items()}
    doubts = {name: 1 - p.max(1).values for name, p in probs.items()}
    rows = {"SGD": doubts | scores(probs[KNOWN], digits.test_y)}
    for method in ("SGHMC", "L2E"):
        model = network(seed)
        params = model.parameters()
        if method == "SGHMC":
            sampler: SGHMC | L2E = SGHMC(params, lr=0.05, num_data=len(x), prior_precision=PRIOR)
        else:
            sampler = L2E(params, num_data=len(x), prior_precision=PRIOR)
        steps = epochs * -(-len(x) // 64)
        posterior = PosteriorSamples(model, sampler, burn_in=steps // 3, thinning=max(1, steps // 60))
        train(model, sampler, x, y, epochs)
        parts = {name: posterior.uncertainty(images) for name, images in inputs.items()}
        doubts = {name: u.epistemic for name, u in parts.items()}
        rows[method] = doubts | scores(parts[KNOWN].mean, digits.test_y)
    return {method: {key: np.asarray(value) for key, value in row.items()} for method, row in rows.items()}


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {"accuracy": accuracy(probs, labels), "NLL": nll(probs, labels)}


def auroc(row: dict[str, np.ndarray], strangers: str) -> float:
    """Share of pairs in which a stranger has a larger uncertainty than a known digit."""
    both = np.concatenate([row[KNOWN], row[strangers]])
    return float(roc_auc_score(np.arange(len(both)) >= len(row[KNOWN]), both))


def flagged(row: dict[str, np.ndarray], inputs: str) -> float:
    """The share of inputs that are less sure than 95 of 100 known digits."""
    return float((row[inputs] > np.quantile(row[KNOWN], 0.95)).mean())


def table(runs: list[dict[str, dict[str, np.ndarray]]]) -> str:
    columns = {
        "accuracy": lambda row: float(row["accuracy"]),
        "NLL": lambda row: float(row["NLL"]),
        "new: flagged": lambda row: flagged(row, NEW),
        "AUROC": lambda row: auroc(row, NEW),
        "photos: flagged": lambda row: flagged(row, PHOTOS),
        "AUROC ": lambda row: auroc(row, PHOTOS),
    }
    lines = [" " * 6 + "".join(name.rjust(16) for name in columns)]
    for method in runs[0]:
        values = [[score(one[method]) for one in runs] for score in columns.values()]
        cells = [f"{np.mean(v):.3f}" + (f" ± {np.std(v, ddof=1):.3f}" if len(v) > 1 else "") for v in values]
        lines.append(f"{method:6}" + "".join(cell.rjust(16) for cell in cells))
    return "\n".join(lines)


def figure(runs: list[dict[str, dict[str, np.ndarray]]]) -> Figure:
    fig = Figure(figsize=(9, 3.2), layout="constrained")
    for ax, method in zip(fig.subplots(1, len(runs[0]), sharey=True), runs[0]):
        shares = [np.mean([flagged(one[method], name) for one in runs]) for name in (KNOWN, NEW, PHOTOS)]
        bars = ax.bar(["known\ndigits", "new\ndigits", "photo-\ngraphs"], shares, color=PALETTE[:3])
        ax.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
        ax.set(title=method, ylim=(0, 1.1), yticks=[0, 0.5, 1], yticklabels=["0", "50 %", "100 %"])
        ax.spines[["top", "right"]].set_visible(False)
    fig.axes[0].set_ylabel("flagged as unsure")
    return fig


EXPLANATION = """
Every method has the same prior and {epochs} epochs; mean ± standard deviation over {seeds} runs. Flagged: the share
that is less sure than 95 of 100 known digits. AUROC: how often a stranger is less sure than a known digit. SGD's
uncertainty is 1 - its largest probability, a sampler's is epistemic: how far its samples disagree.
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="runs from different first weights (default: 2)")
    parser.add_argument("--epochs", type=int, default=280, help="of 649 images (default: 280)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for so small a network several threads only wait for each other
    runs = [run(seed, options.epochs) for seed in range(options.seeds)]
    options.out.mkdir(parents=True, exist_ok=True)
    figure(runs).savefig(options.out / "uncertainty.png", dpi=150)
    print(EXPLANATION.format(epochs=options.epochs, seeds=options.seeds), table(runs), sep="\n")
    print(f"\nfigure: {options.out / 'uncertainty.png'}")


if __name__ == "__main__":
    main()
