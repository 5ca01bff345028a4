"""A chain of Meta-SGMCMC on MNIST, block by block."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from experiments.harness.options import at_least_one
from experiments.harness.tables import markdown
from experiments.images.likelihood import Classification, evaluate
from experiments.images.minibatches import batches
from experiments.images.settings import Settings
from experiments.images.training import build_network
from learned_samplers import MetaSGMCMC
from meta_tasks.datasets import ImageData


@dataclass(frozen=True)
class Options:
    """A long chain of Meta-SGMCMC on MNIST."""

    # Weights: a path or the name of shipped ones.
    network: str = "meta-sgmcmc-mnist"
    # Widths of the hidden layers.
    hidden: tuple[int, ...] = (20,)
    # Passes over the training images.
    epochs: int = 20
    # Passes in one row of the table; the last row may have fewer.
    block: int = 2
    # Images in a minibatch.
    batch_size: int = 500
    # Learning rate; by default that of the weights' card.
    lr: float | None = None
    # Precision λ of the normal prior on every weight, in 1/weight².
    prior_precision: float = 1.0
    # Seed of the initial weights, the minibatches and the noise.
    seed: int = 0
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # File for the table.
    out: Path | None = None

    def __post_init__(self) -> None:
        at_least_one(self, "epochs", "block", "batch_size")
        if self.out is not None and self.out.is_dir():
            raise ValueError(f"out must name a file, got the folder {self.out}")


@dataclass(frozen=True)
class Block:
    """Means over a block of steps: minibatch loss (nats) and kinetic temperature; at its end the scores of the current
    weights on validation images, the root mean square of the weights, and the process's memory (MB)."""

    step: int
    loss: float
    kinetic: float
    validation_nll: float
    accuracy: float
    weight: float
    memory: float


def resident_memory() -> float:
    """The process's resident memory in MB; NaN where the system does not tell it as Linux does."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def chain(options: Options, data: ImageData) -> list[Block]:
    """The blocks of one chain."""
    if options.batch_size > data.num_data:
        raise ValueError(f"batch_size={options.batch_size} exceeds the {data.num_data} training images")
    torch.manual_seed(options.seed)
    model = build_network(Settings(dataset="mnist", model="mlp", hidden=options.hidden), data)
    sampler = MetaSGMCMC(
        model.parameters(),
        options.lr,
        data.num_data,
        network=options.network,
        prior_precision=options.prior_precision,
    )
    order, blocks = batches(data.num_data, options.batch_size, data.train_x.device), list[Block]()
    for first in range(0, options.epochs, options.block):
        steps = min(options.block, options.epochs - first) * (data.num_data // options.batch_size)
        total = kinetic = 0.0
        for _ in range(steps):
            index = next(order)
            sampler.zero_grad(set_to_none=True)
            loss = cross_entropy(model(data.train_x[index]), data.train_y[index])
            loss.backward()
            kinetic += sampler.temperatures()[0]["kinetic"] if sampler.step_count else 1.0
            sampler.step(loss.detach)  # a closure that has the loss already
            total += loss.item()
        nll, accuracy = evaluate(model, data.val_x, data.val_y, Classification())
        weight = torch.cat([p.detach().flatten() for p in model.parameters()]).square().mean().sqrt().item()
        means = total / steps, kinetic / steps
        blocks.append(Block(sampler.step_count, *means, nll, accuracy, weight, resident_memory()))
    return blocks


def table(blocks: Sequence[Block]) -> str:
    return markdown(
        [
            {
                "steps": str(each.step),
                "minibatch loss": f"{each.loss:.4f}",
                "kinetic T": f"{each.kinetic:.3f}",
                "validation NLL": f"{each.validation_nll:.4f}",
                "accuracy": f"{each.accuracy:.4f}",
                "rms weight": f"{each.weight:.4f}",
                "memory (MB)": f"{each.memory:.0f}",
            }
            for each in blocks
        ]
    )
