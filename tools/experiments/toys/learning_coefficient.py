"""The local learning coefficient of products of matrices, where it is known in closed form, by several samplers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.harness.options import at_least, at_least_one
from experiments.harness.output import settings_of, write_outputs
from experiments.harness.tables import markdown
from learned_samplers import BAOA, PSGLD, SGLD
from learned_samplers.diagnostics import LearningCoefficient, local_learning_coefficient

#: Widths of the layers and rank of the truth.
NETWORKS = (((5, 3, 5), 1), ((4, 4, 4), 1), ((3, 5, 2), 2), ((4, 4, 4, 4), 1))
#: n and γ: so large and so small that neither is seen in the closed form's digits.
NUM_DATA, LOCALIZATION = 10_000_000, 1.0
#: Each with three learning rates, of which the best at each budget counts; None is the one that is suggested.
SAMPLERS: dict[str, tuple[Any, tuple[float | None, ...]]] = {
    "SGLD, lr as suggested": (SGLD, (None,)),
    "BAOA, lr as suggested": (BAOA, (None,)),
    "SGLD": (SGLD, (0.1, 0.3, 1.0)),
    "BAOA": (BAOA, (0.3, 1.0, 2.0)),
    "RMSprop-SGLD, eps 0.1 (devinterp's)": (partial(PSGLD, eps=0.1), (0.01, 0.03, 0.1)),
    "RMSprop-SGLD, eps 1e-4": (partial(PSGLD, eps=1e-4), (1e-4, 3e-4, 1e-3)),
}


@dataclass(frozen=True)
class Coefficients:
    """Error of the local learning coefficient of deep linear networks against the closed form, by gradients spent."""

    # Gradients of each chain, a quarter of them burn-in.
    budgets: tuple[int, ...] = (500, 2000)
    # Chains of each estimate.
    chains: int = 2
    # Networks, of those in the table of this experiment.
    networks: int = len(NETWORKS)
    # Seed of the chains.
    seed: int = 0
    # Folder for the table.
    out: Path = Path("runs/learning_coefficient")

    def __post_init__(self) -> None:
        at_least_one(self, "networks")
        at_least(2, self, "chains")
        if not self.budgets or min(self.budgets) < 40:
            raise ValueError(f"budgets must hold integers of at least 40, got {self.budgets}")


def known_coefficient(widths: tuple[int, ...], rank: int) -> float:
    """λ of a product of matrices of these widths at a truth of this rank (Aoyagi, Neural Networks 2024, Theorem 1)."""
    excess = [width - rank for width in widths]
    for size in range(2, len(widths) + 1):
        for chosen in itertools.combinations(range(len(widths)), size):
            inside = [excess[i] for i in chosen]
            outside = [excess[i] for i in range(len(widths)) if i not in chosen]
            length = size - 1
            if sum(inside) < length * max(inside) or (outside and sum(inside) >= length * min(outside)):
                continue
            if outside and max(inside) >= min(outside):
                continue
            a = sum(inside) - length * (math.ceil(sum(inside) / length) - 1)
            pairs = sum(x * y for x, y in itertools.combinations(inside, 2))
            regular = (rank * (widths[0] + widths[-1]) - rank**2) / 2
            squares = length * (length - 1) / 4 * (sum(inside) / length) ** 2
            return regular + a * (length - a) / (4 * length) - squares + pairs / 2
    raise ValueError(f"widths {widths} and rank {rank} fit no case of the theorem")


def deep_linear(widths: tuple[int, ...], rank: int) -> nn.Sequential:
    """A network at the most degenerate of its minima: ``rank`` units carry the truth, the others are zero."""
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.zero_()
            layer.weight[:rank, :rank] = torch.eye(rank)
    return nn.Sequential(*layers).double()


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of unit Gaussian noise, without its constant."""
    return 0.5 * ((output - target) ** 2).sum(1).mean()


def estimate(
    network: tuple[tuple[int, ...], int], sampler: Any, lr: float | None, gradients: int, options: Coefficients
) -> LearningCoefficient | None:
    """λ̂ at that network, None where the chains diverge."""
    model = deep_linear(*network)
    x = torch.eye(network[0][0], dtype=torch.float64) * network[0][0] ** 0.5  # second moments are the identity
    try:
        return local_learning_coefficient(
            model,
            squared,
            (x, model(x).detach()),
            num_data=NUM_DATA,
            localization=LOCALIZATION,
            sampler=sampler,
            lr=lr,
            num_chains=options.chains,
            burn_in=gradients // 4,
            steps=gradients - gradients // 4,
            seed=options.seed,
        )
    except FloatingPointError:
        return None


def coefficients(options: Coefficients, command: str) -> None:
    """Measure, and write the table."""
    torch.set_num_threads(1)
    networks = NETWORKS[: options.networks]
    known = [known_coefficient(*each) for each in networks]
    rows, numbers = [], []
    for name, (sampler, rates) in SAMPLERS.items():
        row: dict[str, Any] = {"sampler": name}
        for budget in options.budgets:
            tried = []
            for lr in tqdm(rates, desc=f"{name}, {budget}", leave=False):
                found = [estimate(each, sampler, lr, budget, options) for each in networks]
                errors = [math.inf if f is None else f.value / k - 1 for f, k in zip(found, known, strict=True)]
                settled = [f for f in found if f is not None and f.settled]
                tried.append((root_mean_square(errors), lr, len(settled)))
                estimates = [None if f is None else f.value for f in found]
                numbers.append({"sampler": name, "lr": lr, "gradients": budget, "known": known, "estimates": estimates})
            error, lr, settled_count = min(tried, key=lambda each: each[0])
            rate = "" if lr is None else f", lr {lr:g}"
            row[f"{budget} gradients"] = f"{100 * error:.1f} % ({settled_count} of {len(networks)} settled{rate})"
        rows.append(row)
    text = markdown(rows)
    write_outputs(options.out, command, text, {"settings": settings_of(options), "estimates": numbers})
    print(f"{text}\nwritten to {options.out}")


def root_mean_square(errors: list[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / len(errors))
