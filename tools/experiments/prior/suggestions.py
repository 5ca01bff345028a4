"""Does `suggest_prior`, or `suggest_temperature`, find what a grid of runs finds, at the price of one of them?

The protocol, written before the runs: `SGHMC` at a rate that trains the network, a = 0.1, T = 0.1; λ of the network's
usual decay. The grid: a whole run at every value, chosen by the NLL of the validation rows. The path: all values in as
many steps as one such run has, judged by the same rows. Both are scored by the test NLL of the whole run at the value
that they chose, so that a ratio of 1 is the same choice; beside it the value that the user began with.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.harness import uci_data
from experiments.harness.runs.networks import build_network
from experiments.harness.runs.settings import Settings
from learned_samplers import SGHMC, Sampler
from learned_samplers.checks import HeldOutReport, suggest_prior, suggest_temperature

FACTORS, TEMPERATURES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03), (1.0, 0.3, 0.1, 0.03, 0.01)
PRESENT, SAMPLES = 0.1, 30


@dataclass(frozen=True)
class Task:
    """Data, network and run: rate, λ, steps and rows of a step."""

    settings: dict[str, Any]
    lr: float
    prior_precision: float
    steps: int
    batch_size: int = 64


TASKS = {
    "digits, MLP": Task(dict(dataset="digits", model="mlp", hidden=(50,), validation=200), 0.1, 1.0, 5000),
    "concrete, MLP": Task({}, 0.01, 1.0, 5000),
    "Fashion-MNIST, CNN": Task(dict(dataset="fashion_mnist", size=14, channels=8, depth=1), 0.1, 20.0, 3000),
    "CIFAR-10, CNN": Task(dict(dataset="cifar10", size=16, channels=8, depth=2), 0.03, 20.0, 4000),
    "CIFAR-10, ResNet": Task(dict(dataset="cifar10", size=16, model="resnet20_frn", width=4), 0.03, 20.0, 1500),
    "reviews, CNN-LSTM": Task(
        dict(dataset="imdb", length=60, validation=5000, model="cnn_lstm", width=16, vocabulary=2000), 0.1, 10.0, 5000
    ),
}


@dataclass(frozen=True)
class Problem:
    """Rows to train on, to choose by and to score by; and what makes the network."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    network: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]


def gaussian_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood under a normal of mean and raw scale (softplus)."""
    mean, scale = outputs[:, 0], nn.functional.softplus(outputs[:, 1]) + 0.01
    return -torch.distributions.Normal(mean, scale).log_prob(targets).mean()


def problem(name: str, seed: int, root: str | None) -> Problem:
    """The task's data, with at most 2,000 rows to choose and to score by."""
    task = TASKS[name]
    if not task.settings:
        concrete = uci_data.load("concrete", root)
        order = np.random.default_rng(seed).permutation(len(concrete.y))
        x, y = concrete.x[order].float(), concrete.y[order].float()
        x, y = (x - x[:700].mean(0)) / x[:700].std(0), (y - y[:700].mean()) / y[:700].std()
        train, validation, test = ((x[i:j], y[i:j]) for i, j in ((0, 700), (700, 850), (850, None)))

        def perceptron() -> nn.Module:
            return nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 2))

        return Problem(train, validation, test, perceptron, gaussian_loss)
    settings = Settings(**task.settings)
    data = settings.load_data(root)
    validation, test = ((x[:2000], y[:2000]) for x, y in ((data.val_x, data.val_y), (data.test_x, data.test_y)))
    train = data.train_x, data.train_y
    return Problem(train, validation, test, lambda: build_network(settings, data), nn.functional.cross_entropy)


def densities(model: nn.Module, rows: tuple[Tensor, Tensor], loss: Callable[..., Tensor]) -> Tensor:
    """Log-likelihood of every row."""
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in rows[0].split(500)])
    return -torch.vmap(lambda output, target: loss(output[None], target[None]))(outputs, rows[1])


def sghmc(parameters: Any, task: Task, data: Problem, **settings: Any) -> SGHMC:
    """`SGHMC` at the task's rate."""
    return SGHMC(parameters, task.lr, len(data.train[1]), **settings)


def run(
    task: Task, data: Problem, prior: Any, temperature: float, seed: int, make: Callable[..., Sampler] = sghmc
) -> tuple[float, float]:
    """NLL of a whole run's average on the validation and on the test rows."""
    torch.manual_seed(seed)
    model, rows = data.network(), data.train
    sampler = make(model.named_parameters(), task, data, prior_precision=prior, temperature=temperature)
    kept: list[tuple[Tensor, Tensor]] = []
    every = task.steps // 2 // SAMPLES
    for step in range(1, task.steps + 1):
        batch = torch.randint(len(rows[1]), (task.batch_size,))
        sampler.zero_grad()
        data.loss(model(rows[0][batch]), rows[1][batch]).backward()
        sampler.step()
        if step > task.steps // 2 and step % every == 0:
            kept.append((densities(model, data.validation, data.loss), densities(model, data.test, data.loss)))
    averages = (torch.stack(part).logsumexp(0) - np.log(len(kept)) for part in zip(*kept, strict=True))
    validation, test = (-average.mean().item() for average in averages)
    return validation, test


def path_of(task: Task, data: Problem, seed: int, suggest: Any, **values: Any) -> HeldOutReport:
    """The report of a path on this task."""
    torch.manual_seed(seed)

    def make(named: Any) -> SGHMC:
        return sghmc(named, task, data, prior_precision=task.prior_precision, temperature=PRESENT)

    options = dict(held_out=data.validation, steps=task.steps, batch_size=task.batch_size, seed=seed)
    return suggest(data.network(), data.loss, data.train, make, **options, **values)


def compare(name: str, seed: int, root: str | None, out: Path) -> Iterator[dict[str, Any]]:
    """The path and the grid of λ, then of T, each kept in a file."""
    task, data = TASKS[name], None
    for quantity, values in (("prior", FACTORS), ("temperature", TEMPERATURES)):
        file = out / f"suggestions_{name.replace(', ', '_')}_{quantity}_{seed}.json"
        if not file.exists():
            data = data or problem(name, seed, root)
            started = time.process_time()
            suggest, key = (suggest_prior, "factors") if quantity == "prior" else (suggest_temperature, "temperatures")
            report = path_of(task, data, seed, suggest, **{key: values})
            seconds = time.process_time() - started
            pairs = [(value, PRESENT) if quantity == "prior" else (1.0, value) for value in values]
            grid = [run(task, data, factor * task.prior_precision, t, seed) for factor, t in pairs]
            of_grid = time.process_time() - started - seconds
            result = dict(values=values, grid=grid, suggested=report.suggested, decided=report.decided)
            result |= dict(present=report.present, settled=report.settled, seconds=seconds, grid_seconds=of_grid)
            file.write_text(json.dumps(result))
        yield {"task": name, "quantity": quantity, **json.loads(file.read_text())}


def table(root: str | None, out: Path, seeds: int) -> list[str]:
    """Test NLL of the path's choice, and of your own value, over that of the grid's choice, by task and quantity."""
    results = [one for seed in range(seeds) for name in TASKS for one in compare(name, seed, root, out)]
    lines = [
        "| task | of | test NLL: path / grid | kept / grid | settled | seconds of a path, of a run |",
        "|" + "---|" * 6,
    ]
    ratios: dict[str, list[float]] = {}
    for name in TASKS:
        for quantity in ("prior", "temperature"):
            rows = [one for one in results if (one["task"], one["quantity"]) == (name, quantity)]
            logs: dict[str, list[float]] = {"suggested": [], "present": []}
            for one in rows:
                validation, test = zip(*one["grid"], strict=True)
                base = test[validation.index(min(validation))]
                for key, values in logs.items():
                    values.append(math.log(test[one["values"].index(one[key])] / base))
            texts = [_ratio(values) for values in logs.values()]
            for key, values in logs.items():
                ratios.setdefault(f"{quantity}, {key}", []).append(float(np.mean(values)))
            seconds = [
                np.mean([one["seconds"] for one in rows]),
                np.mean([one["grid_seconds"] / len(one["grid"]) for one in rows]),
            ]
            settled = f"{sum(one['settled'] for one in rows)} of {len(rows)}"
            times = f"{seconds[0]:.0f}, {seconds[1]:.0f}"
            lines.append(f"| {name} | {quantity} | {texts[0]} | {texts[1]} | {settled} | {times} |")
    return lines + [f"geometric mean over tasks, {key}: {_ratio(values)}" for key, values in ratios.items()]


def _ratio(logs: list[float]) -> str:
    error = np.std(logs, ddof=1) / len(logs) ** 0.5 if len(logs) > 1 else math.nan
    return f"{math.exp(np.mean(logs)):.2f} ± {error:.2f}"
