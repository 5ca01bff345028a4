"""README's loop on small tables of scikit-learn: does the posterior predict at least as well as the SGD it replaces?

    python tools/newcomer.py                        # five tables, four seeds, eleven minutes of a core
    python tools/newcomer.py --tables wine --seeds 1

A network of one hidden layer of 50, 2,000 steps of 64 rows, standardised inputs, three fifths of the rows to train on.
The table is NLL on the other rows (of diabetes the mean squared error in units of the targets' variance), and how often
`PosteriorSamples.verdict` calls the chain settled.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from tqdm import tqdm

from learned_samplers import L2E, SGHMC, AdaptedSGHMC, PosteriorSamples
from learned_samplers.metrics import nll
from learned_samplers.priors import GammaHyperprior

STEPS, HIDDEN = 2000, 50
TABLES: dict[str, Callable[[], Any]] = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
    "iris": datasets.load_iris,
    "diabetes": datasets.load_diabetes,
}
METHODS: dict[str, Callable[[nn.Module, int], torch.optim.Optimizer]] = {
    "SGD, the prior as its decay": lambda model, n: torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=1 / n
    ),
    "SGHMC, λ = 1": lambda model, n: SGHMC(model.parameters(), lr=0.05, num_data=n, prior_precision=1.0),
    "SGHMC, λ = 1, T = 0.1": lambda model, n: SGHMC(
        model.parameters(), lr=0.05, num_data=n, prior_precision=1.0, temperature=0.1
    ),
    "SGHMC, λ sampled": lambda model, n: SGHMC(
        model.parameters(), lr=0.05, num_data=n, prior_precision=GammaHyperprior()
    ),
    "AdaptedSGHMC(warmup=L2E), λ = 1": lambda model, n: _adapted(model, n, 1.0, 1.0),
    "AdaptedSGHMC(warmup=L2E), λ sampled": lambda model, n: _adapted(model, n, GammaHyperprior(), 1.0),
    "AdaptedSGHMC(warmup=L2E), λ = 1, T = 0.1": lambda model, n: _adapted(model, n, 1.0, 0.1),
    "AdaptedSGHMC(warmup=L2E), λ sampled, T = 0.1": lambda model, n: _adapted(model, n, GammaHyperprior(), 0.1),
}


def _adapted(model: nn.Module, num_data: int, prior: Any, temperature: float) -> AdaptedSGHMC:
    run = dict(num_data=num_data, prior_precision=prior, temperature=temperature)
    return AdaptedSGHMC(model.parameters(), total_steps=STEPS, warmup=L2E, **run)


def split(table: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and targets to train on and to test on; inputs, and targets that are numbers, are standardised."""
    bunch = TABLES[table]()
    inputs, targets = bunch.data.astype(np.float32), bunch.target
    classes = table != "diabetes"
    x, other_x, y, other_y = train_test_split(
        inputs, targets, test_size=0.4, random_state=seed, stratify=targets if classes else None
    )
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    if not classes:
        y, other_y = (((part - y.mean()) / y.std()).astype(np.float32)[:, None] for part in (y, other_y))
    x, other_x = ((part - mean) / deviation for part in (x, other_x))
    return tuple(map(torch.from_numpy, (x, y, other_x, other_y)))  # type: ignore[return-value]


def score(table: str, method: str, seed: int) -> tuple[float, bool | None]:
    """Loss on the test rows, and whether the verdict calls the chain settled (None of SGD)."""
    x, y, other_x, other_y = split(table, seed)
    classes = y.dtype == torch.int64
    torch.manual_seed(seed)
    outputs = int(y.max()) + 1 if classes else 1
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
    loss = nn.functional.cross_entropy if classes else lambda f, t: 0.5 * (f - t).square().mean()
    optimizer = METHODS[method](model, len(x))
    posterior = None
    if not isinstance(optimizer, torch.optim.SGD):
        posterior = PosteriorSamples(model, optimizer, burn_in=STEPS // 2, thinning=20)
    batches = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (64,), generator=batches)
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    output = "softmax" if classes else "regression"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict stands in the table
        if posterior is None:
            predicted, settled = (model(other_x).softmax(1) if classes else model(other_x)), None
        else:
            predicted = posterior.predict(other_x, output=output)
            settled = bool(posterior.verdict(other_x, output=output).settled)  # None: too few samples to tell
    error = nll(predicted, other_y) if classes else float((predicted - other_y).square().mean())
    return float(error), settled


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), metavar="TABLE")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=4, help="how many")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Run every method on every table, and print the table of losses."""
    options = parse(arguments)
    torch.set_num_threads(1)
    heads = [f"{table} ±, settled" for table in options.tables]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    with tqdm(total=len(options.tables) * len(options.methods) * options.seeds, unit="run") as bar:
        for method in options.methods:
            cells = []
            for table in options.tables:
                scores = []
                for seed in range(options.seeds):
                    scores.append(score(table, method, seed))
                    bar.update()
                losses = np.array([loss for loss, _ in scores])
                error = losses.std(ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")
                settled = [verdict for _, verdict in scores if verdict is not None]
                share = f", {sum(settled)} of {len(settled)}" if settled else ""
                cells.append(f"{losses.mean():.3f} ± {error:.3f}{share}")
            lines.append(f"| {method} | {' | '.join(cells)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
