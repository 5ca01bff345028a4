"""What does a network not know? SGD, SGHMC, L2E and the recommended call with one prior, on known and unknown images.

    python tools/demo.py          # a minute or two; figure, TensorBoard curves and samples go into runs/demo

A network learns the digits 0 to 7. Then it is shown the digits 8 and 9, and patches of photographs. All methods have
the entropy of their prediction to tell such strangers by; a posterior has the disagreement of its samples, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from learned_samplers import L2E, SGHMC, AdaptedSGHMC, PosteriorSamples, SampleCollection
from learned_samplers.integrations.tensorboard import ChainLog
from learned_samplers.metrics import accuracy, nll
from learned_samplers.plots import PALETTE
from learned_samplers.posterior.verdict import Unsettled
from meta_tasks.datasets import keep_labels, load, match

PRIOR, SAMPLES = 1.0, 40
KNOWN, NEW, PHOTOS = "known digits", "new digits, 8 and 9", "photographs"
ENTROPY, DISAGREEMENT = "entropy", "disagreement"
RECOMMENDED = "AdaptedSGHMC"


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 8))


def images() -> tuple[Any, dict[str, Tensor]]:
    """The digits 0 to 7, and what the network is shown."""
    data = load("digits")
    digits = keep_labels(data, range(8))
    photos = match(load("photos"), data).test_x[:500]
    return digits, {KNOWN: digits.test_x, NEW: keep_labels(data, (8, 9)).test_x, PHOTOS: photos}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epochs: int, writer: SummaryWriter | None
) -> None:
    for epoch in tqdm(range(epochs), type(optimizer).__name__, leave=False, disable=writer is None):
        losses = []
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if writer is not None:
            writer.add_scalar("loss", torch.stack(losses).mean(), (epoch + 1) * len(losses))


def samplers(params: Any, num_data: int, steps: int) -> dict[str, Callable[[], tuple[Any, int, int]]]:
    """By name: what makes a sampler, its burn-in and its thinning."""
    settings: dict[str, Any] = {"num_data": num_data, "prior_precision": PRIOR}
    burn_in, thinning = steps // 3, max(1, steps // 60)

    def recommended() -> tuple[Any, int, int]:
        sampler = AdaptedSGHMC(params, temperature=0.1, total_steps=steps, warmup=L2E, **settings)
        return sampler, 0, sampler.thinning(min(SAMPLES, steps // 10))

    return {
        "SGHMC": lambda: (SGHMC(params, lr=0.05, **settings), burn_in, thinning),
        RECOMMENDED: recommended,
        "L2E": lambda: (L2E(params, **settings), burn_in, thinning),
    }


def run(seed: int, epochs: int, out: Path | None) -> dict[str, dict[str, Any]]:
    """By method: "accuracy" and "NLL" on the known digits, and by statistic an uncertainty for each input of each sort.

    Curves and samples go into the folder ``out``.
    """
    torch.set_num_threads(1)  # for so small a network several threads only wait for each other
    warnings.simplefilter("ignore", Unsettled)  # the table says what it comes to
    digits, inputs = images()
    x, y = digits.train_x, digits.train_y
    steps = epochs * -(-len(x) // 64)
    curves = [None if out is None else SummaryWriter(str(out / "tensorboard" / name)) for name in ("SGD", *METHODS)]
    model = network(seed)
    train(model, torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=PRIOR / len(x)), x, y, epochs, curves[0])
    with torch.no_grad():
        probs = {name: model(rows).softmax(1) for name, rows in inputs.items()}
    doubts = {name: torch.special.entr(p).sum(1).numpy() for name, p in probs.items()}
    rows = {"SGD": {ENTROPY: doubts, **scores(probs[KNOWN], digits.test_y)}}
    for method, writer in zip(METHODS, curves[1:], strict=True):
        model = network(seed)
        sampler, burn_in, thinning = samplers(model.parameters(), len(x), steps)[method]()
        posterior = PosteriorSamples(model, sampler, burn_in=burn_in, thinning=thinning)
        if writer is not None:
            ChainLog(sampler, writer, every=max(1, steps // 300), posterior=posterior, total_steps=steps)
        train(model, sampler, x, y, epochs, writer)
        if out is not None:
            (out / "samples").mkdir(parents=True, exist_ok=True)
            posterior.save(out / "samples" / f"{method}.safetensors")
        parts = {name: posterior.uncertainty(rows) for name, rows in inputs.items()}
        rows[method] = {
            ENTROPY: {name: part.total.numpy() for name, part in parts.items()},
            DISAGREEMENT: {name: part.epistemic.numpy() for name, part in parts.items()},
            **scores(parts[KNOWN].mean, digits.test_y),
        }
    for curve in filter(None, curves):
        curve.close()
    return rows


METHODS = ("SGHMC", RECOMMENDED, "L2E")


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {"accuracy": accuracy(probs, labels), "NLL": nll(probs, labels)}


def auroc(row: dict[str, np.ndarray], strangers: str) -> float:
    """Share of pairs in which a stranger has a larger uncertainty than a known digit."""
    both = np.concatenate([row[KNOWN], row[strangers]])
    return float(roc_auc_score(np.arange(len(both)) >= len(row[KNOWN]), both))


def flagged(row: dict[str, np.ndarray], inputs: str) -> float:
    """The share of inputs that are less sure than 95 of 100 known digits."""
    return float((row[inputs] > np.quantile(row[KNOWN], 0.95)).mean())


def rows_of(runs: list[dict[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Methods and the statistics that they have."""
    return [(method, kind) for method, row in runs[0].items() for kind in (ENTROPY, DISAGREEMENT) if kind in row]


def table(runs: list[dict[str, dict[str, Any]]]) -> str:
    columns: dict[str, Callable[[dict[str, Any], str], float]] = {
        "accuracy": lambda row, kind: float(row["accuracy"]),
        "NLL": lambda row, kind: float(row["NLL"]),
        "new: flagged": lambda row, kind: flagged(row[kind], NEW),
        "AUROC": lambda row, kind: auroc(row[kind], NEW),
        "photos: flagged": lambda row, kind: flagged(row[kind], PHOTOS),
        "AUROC ": lambda row, kind: auroc(row[kind], PHOTOS),
    }
    lines = [" " * 26 + "".join(name.rjust(16) for name in columns)]
    for method, kind in rows_of(runs):
        values = [[score(one[method], kind) for one in runs] for score in columns.values()]
        cells = [f"{np.mean(v):.3f}" + (f" ± {np.std(v, ddof=1):.3f}" if len(v) > 1 else "") for v in values]
        lines.append(f"{method:13}{kind:13}" + "".join(cell.rjust(16) for cell in cells))
    return "\n".join(lines)


def figure(runs: list[dict[str, dict[str, Any]]]) -> Figure:
    """Bars of what is flagged: one panel a sort of images, a bar a method and statistic."""
    fig = Figure(figsize=(5.4, 5.0), layout="constrained")
    methods, kinds = list(runs[0]), (ENTROPY, DISAGREEMENT)
    titles = {KNOWN: "Known digits, 0 to 7", NEW: "New digits, 8 and 9", PHOTOS: "Photographs"}
    for ax, (name, title) in zip(fig.subplots(3, 1, sharex=True), titles.items(), strict=True):
        for place, (kind, color) in enumerate(zip(kinds, PALETTE, strict=False)):
            at = [k for k, method in enumerate(methods) if kind in runs[0][method]]
            shares = [np.mean([flagged(one[methods[k]][kind], name) for one in runs]) for k in at]
            where = [k + (0.2 if place else -0.2) if DISAGREEMENT in runs[0][methods[k]] else k for k in at]
            bars = ax.barh(where, shares, 0.38, color=color, label=kind)
            ax.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2, fontsize=9)
        ax.set(xlim=(0, 1.1), yticks=range(len(methods)), yticklabels=methods, xticks=[])
        ax.set_title(title, loc="left", fontsize=11)
        ax.invert_yaxis()
        ax.spines[["top", "right", "bottom"]].set_visible(False)
    fig.axes[0].legend(title="flagged by", frameon=False, loc="center right")
    return fig


EXPLANATION = """
Every method has the same prior and {epochs} epochs; mean ± standard deviation over {seeds} runs. Flagged: the share
that is less sure than 95 of 100 known digits. AUROC: how often a stranger is less sure than a known digit. Less sure
by the entropy of the (averaged) prediction, or by how far the samples of a posterior disagree. AdaptedSGHMC is the
recommended call, with temperature=0.1, total_steps=n, warmup=L2E; the others sample at temperature 1.
"""


def opens(out: Path) -> str:
    """The three lines that open what a run has left."""
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    return "\n".join(
        (
            "The figure, the curves and the samples of the first run:",
            f"  {python} -m webbrowser {(out / 'uncertainty.png').resolve().as_uri()}",
            f"  {python} -m tensorboard.main --logdir {out / 'tensorboard'}",
            f"  {python} tools/demo.py --show {out / 'samples' / RECOMMENDED}.safetensors",
        )
    )


def show(file: Path) -> None:
    """Load samples, predict with them, and draw the chain beside the file."""
    digits, _ = images()
    samples = SampleCollection.load(file, network(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unsettled)  # the next line says it
        probs = samples.predict(digits.test_x)
    print(f"{len(samples)} samples: {scores(probs, digits.test_y)}", samples.verdict().text, sep="\n")
    samples.plot().savefig(file.with_suffix(".png"), dpi=150)
    print(f"chain: {file.with_suffix('.png')}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="runs from different first weights (default: 2)")
    parser.add_argument("--epochs", type=int, default=280, help="of 649 images (default: 280)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--show", type=Path, metavar="FILE", help="look at samples that a run has saved, and stop")
    options = parser.parse_args(arguments)
    if options.show:
        if not options.show.is_file():
            parser.error(f"--show must be a file that a run has saved, got {options.show}")
        show(options.show)
        return
    if options.seeds < 1 or options.epochs < 2:
        parser.error(f"--seeds must be at least 1 and --epochs 2, got {options.seeds} and {options.epochs}")
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = [(seed, options.epochs, None if seed else options.out) for seed in range(options.seeds)]
    if len(tasks) == 1:
        runs = [run(*tasks[0])]
    else:
        workers = min(len(tasks), os.cpu_count() or 1)  # a core each
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            runs = list(pool.map(run, *zip(*tasks, strict=True)))
    figure(runs).savefig(options.out / "uncertainty.png", dpi=150)
    print(EXPLANATION.format(epochs=options.epochs, seeds=options.seeds), table(runs), sep="\n")
    print("", opens(options.out), sep="\n")


if __name__ == "__main__":
    main()
