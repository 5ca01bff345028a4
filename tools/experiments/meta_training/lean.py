"""Can a learned rule of 15 numbers predict better than `SGHMC` at its best prior? Written down before the first run.

*Rule*: `LeanRule`, T = 1, from zero (β = 5·r̂, a sampler with a law), at lr `LR`, momentum decay 0.1, and at λ the best
one of `SGHMC` on the task, so that a wider prior earns nothing.

*Training*: 64 fixed tasks, fresh random numbers in each iteration, common to the two of a pair; MLPs 64-20-10 (ReLU)
and 64-32-10 (tanh) on MNIST and notMNIST at 8×8, 10-16-3 (tanh) and 10-32-3 (ReLU) on six UCI tables in three classes
(ten of the columns, or all and columns of noise), sixteen tasks each; N log-uniform from 250 to 20,000, as far as there
are rows; batches of 32; 3,000 steps, ten samples 50 apart after 2,500. The objective is the log of the average's NLL on
rows held out, less that of `SGHMC` at its best λ and rate, which an antithetic difference does not see. One pair a
task, σ = 0.2 (in a first look no component of a gradient was above two standard errors at 0.1, and a quarter of the
runs diverged at 0.4), Adam at 0.05, running average of 0.95. No loss counts as more than 3 nats.

*Held out*, data that training never sees: digits (64-50-10), Fashion-MNIST at 8×8 with 2,000 and 20,000 images
(64-32-10), UCI's concrete and protein (10-32-3); their test rows, sixteen chains. `SGHMC` has on each the λ of
`PRECISIONS` and the rate of `RATES` that are best on the test rows themselves, by four of the chains; on the training
tasks it has the rate 0.1 and two chains.

*Stop* after five hours of a core if the digits are not 5 % below `SGHMC`; at the end if Fashion-MNIST is worse than
`SGHMC`. To be deleted with the verdict.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.harness import uci_data
from experiments.meta_training.lean_rule import LeanRule
from learned_samplers.base.files import write_atomically
from meta_tasks.datasets import ImageData, load
from meta_tasks.estimators import AntitheticES, Shaping
from meta_tasks.inner_loop import Horizon, Run, unrolls_of
from meta_tasks.objectives import BMALoss
from meta_tasks.random_streams import derive_seed, generator, log_uniform
from meta_tasks.rules.base import SamplerRule
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.tasks.task import ImageTask, TaskConfig
from meta_tasks.training import HeldOutEvaluation, Trainer, TrainerSettings
from meta_tasks.training.evaluation import Score

TASKS, STEPS, LR = 64, 3000, 0.05
PRECISIONS, RATES = (0.1, 0.3, 1.0, 3.0, 10.0), (0.03, 0.1, 0.3)
IMAGES = ("mnist", "notmnist")
TABLES = ("bostonHousing", "energy", "kin8nm", "naval-propulsion-plant", "power-plant", "wine-quality-red")
NETWORKS: tuple[dict[str, Any], ...] = (
    {"hidden": (20,), "activation": "relu"},
    {"hidden": (32,), "activation": "tanh"},
    {"hidden": (16,), "activation": "tanh"},
    {"hidden": (32,), "activation": "relu"},
)
#: Name → data set, images of it, network.
HELD_OUT: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "digits": ("digits", None, {"hidden": (50,), "activation": "relu"}),
    "Fashion-MNIST, 2,000": ("fashion_mnist", 2000, NETWORKS[1]),
    "Fashion-MNIST, 20,000": ("fashion_mnist", 20000, NETWORKS[1]),
    "concrete": ("concrete", None, NETWORKS[3]),
    "protein": ("protein-tertiary-structure", None, NETWORKS[3]),
}
FAILED = 3.0  # nats, the most that a run counts as
HORIZON = Horizon(STEPS, STEPS, 10, 2500 / 3000)
CHAINS, SEED = 16, 67


@cache
def data_of(name: str) -> ImageData:
    """Images at 8×8, or a table as images of one row of ten."""
    if name in uci_data.NAMES:
        return _table(name)
    data = load(name, size=8)
    if data.num_data:
        return data
    order = torch.randperm(len(data.test_y), generator=generator(name, "split"))
    train, held_out = ((data.test_x[part], data.test_y[part]) for part in (order[2000:], order[:2000]))
    return data.with_splits(train=train, val=held_out, test=held_out)


def _table(name: str) -> ImageData:
    table, stream = uci_data.load(name), generator(name, "table")
    order = torch.randperm(len(table.y), generator=stream)
    noise = torch.randn(len(order), max(0, 10 - table.x.shape[1]), generator=stream)
    x = torch.cat([table.x, noise], 1)[:, torch.randperm(table.x.shape[1] + noise.shape[1], generator=stream)[:10]]
    x = ((x - x.mean(0)) / x.std(0).clamp_min(1e-6)).float().clamp(-8, 8).view(-1, 1, 1, 10)
    rank = table.y.argsort(stable=True).argsort(stable=True)
    y = rank * 3 // len(rank)
    train, held_out = ((x[part], y[part]) for part in (order[256:], order[:256]))
    return ImageData(name, 3, *train, *held_out, *held_out)


def config_of(number: int) -> TaskConfig:
    """Training task ``number``, without its prior."""
    place, stream = number * 4 // TASKS, generator(SEED, number, "lean task")
    names = IMAGES if place < 2 else TABLES
    name = names[number % len(names)]
    most = min(20_000, data_of(name).num_data)
    size = round(log_uniform(min(250, most), most, stream))
    held_out = 512 if place < 2 else 256
    return TaskConfig(name, "mlp", NETWORKS[place], num_data=size, batch_size=32, validation_size=held_out, lr=LR)


def held_out_config(name: str) -> TaskConfig:
    dataset, size, network = HELD_OUT[name]
    sizes: dict[str, Any] = dict(num_data=size, batch_size=32, validation_size=2000)
    return TaskConfig(dataset, "mlp", network, **sizes, lr=LR, split="test")


def losses(rule: SamplerRule, weights: Tensor, configs: Sequence[TaskConfig], key: str, chains: int) -> Tensor:
    """NLL of the average of each configuration's chains, (configs, chains); at most `FAILED`."""
    ends = torch.empty(len(configs), chains, dtype=torch.float64)
    seeds = tuple(derive_seed(SEED, key, chain) for chain in range(chains))
    runs = [Run(ImageTask(c, data_of(c.dataset), SEED), rule, seeds) for c in configs]
    for numbers, unroll in unrolls_of(runs, BMALoss, HORIZON.schedule_of(STEPS), members_per_group=1):
        unroll.advance(weights.expand(len(unroll.parameter), -1))
        ends[numbers] = unroll.losses().view(-1, chains).nan_to_num(FAILED).clamp_max(FAILED)
    return ends


def best_sghmc(config: TaskConfig, key: str, rates: Sequence[float], chains: int) -> TaskConfig:
    """The task at the λ and the rate at which `SGHMC` has the lowest mean NLL of some chains."""
    grid = [replace(config, prior_precision=p, lr=lr) for p, lr in itertools.product(PRECISIONS, rates)]
    return grid[int(losses(SGHMCRule(), torch.zeros(0), grid, key, chains).mean(1).argmin())]


def baselines(path: Path) -> dict[str, Any]:
    """`SGHMC` at its best on every task, by number or name, kept in a file."""
    if not path.exists():
        entries: dict[str, Any] = {}
        for number in tqdm(range(TASKS), desc="SGHMC on training tasks"):
            best = best_sghmc(config_of(number), str(number), (0.1,), 2)
            entries[str(number)] = {"prior_precision": best.prior_precision}
        for name in tqdm(HELD_OUT, desc="SGHMC on held-out tasks"):
            best = best_sghmc(held_out_config(name), name, RATES, 4)
            theirs = losses(SGHMCRule(), torch.zeros(0), [best], name, CHAINS)[0].tolist()
            entries[name] = {"prior_precision": best.prior_precision, "lr": best.lr, "losses": theirs}
        write_atomically(path, json.dumps(entries, indent=1).encode())
    return dict(json.loads(path.read_text()))


def log_ratio(rule: SamplerRule, weights: Tensor, config: TaskConfig, key: str, sghmc: dict[str, Any]) -> Tensor:
    """log NLL less that of `SGHMC` with the same random numbers, (chains,)."""
    config, theirs = replace(config, prior_precision=sghmc["prior_precision"]), torch.tensor(sghmc["losses"])
    return losses(rule, weights, [config], key, len(theirs))[0].log() - theirs.double().log()


@dataclass(frozen=True)
class LeanFamily:
    """The training tasks, in their order; whatever the iteration."""

    best: dict[str, Any]
    name: str = "lean"
    has_validation = True

    def task(self, *keys: int | str) -> ImageTask:
        return _task(int(keys[-1]), self.best[str(keys[-1])]["prior_precision"])

    def specification(self) -> dict[str, Any]:
        return {"name": self.name, "lr": LR, "precisions": [b["prior_precision"] for b in self.best.values()]}

    def data_fingerprints(self) -> dict[str, str]:
        return {}


@cache
def _task(number: int, precision: float) -> ImageTask:
    config = replace(config_of(number), prior_precision=precision)
    return ImageTask(config, data_of(config.dataset), SEED)


class LeanES(AntitheticES):
    """Antithetic ES in which a run that diverges has the loss `FAILED`."""

    def gradient(self, seed: int, names: Sequence[tuple[int, int]], losses: Tensor, size: int) -> Tensor:
        return super().gradient(seed, names, losses.nan_to_num(FAILED).clamp_max(FAILED), size)


class LeanEvaluation(HeldOutEvaluation):
    """The held-out tasks of the protocol: log NLL less that of `SGHMC`, with its standard error over chains."""

    def __init__(self, best: dict[str, Any]) -> None:
        self.best = best

    def check(self, rule: SamplerRule) -> None:
        pass

    def specification(self) -> dict[str, Any]:
        return {name: self.best[name]["prior_precision"] for name in HELD_OUT}

    def record(self, scores: dict[str, Any], rule: SamplerRule, weights: Tensor, iteration: int) -> Score:
        ratios = {n: log_ratio(rule, weights, held_out_config(n), n, self.best[n]) for n in HELD_OUT}
        of_task = {n: (x.mean().item(), x.std().item() / math.sqrt(len(x))) for n, x in ratios.items()}
        scores.setdefault("baselines", {})
        scores["specification"] = self.specification()
        score = {"iteration": iteration, "nll": of_task["digits"][0], "tasks": of_task, "weights": weights.tolist()}
        scores.setdefault("sampler", []).append(score)
        tqdm.write(f"{iteration}: " + ", ".join(f"{n} {m:+.3f} ± {e:.3f}" for n, (m, e) in of_task.items()))
        return Score(of_task["digits"][0], 0.0, 0.0)


def trainer(folder: Path, iterations: int) -> Trainer:
    """The run in a folder, which goes on from its checkpoint."""
    best = baselines(folder / "sghmc.json")
    estimator = LeanES(0.2, TASKS, HORIZON, tasks_per_job=TASKS // 4, shaping=Shaping("mean", 1.0))
    settings = TrainerSettings(
        iterations, 0.05, averaging=0.95, seed=SEED, evaluate_every=25, figures_every=0, keep_checkpoints=1
    )
    return Trainer(LeanFamily(best), LeanRule(), estimator, settings, folder=folder, evaluation=LeanEvaluation(best))
