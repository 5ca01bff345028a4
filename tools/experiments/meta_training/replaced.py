"""Are newly trained weights worse than those that they replace? On tasks that no training draws, pair by pair."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from learned_samplers.learned import weights
from meta_tasks.rules.learned import rule_from_card
from meta_tasks.tasks import FAMILIES, family_named
from meta_tasks.training import HeldOutEvaluation
from meta_tasks.training.process import one_core

SEED = 10_000  # of the tasks: no training and no evaluation within one has it
#: The fields of a task family that a command of `tools/meta_train.py` can change.
CHANGEABLE = ("dataset_names", "sizes", "small_data_share", "small_data", "labels", "lrs", "momentum_decays")


@dataclass(frozen=True)
class Difference:
    """Mean held-out NLL in nats of the new weights and of the former ones, and of their difference, with its error."""

    new: float
    former: float
    difference: float
    error: float
    tasks: int

    @property
    def worse(self) -> bool:
        """True if the new ones lose by more than two standard errors."""
        return self.difference > 2 * self.error

    def __str__(self) -> str:
        return (
            f"held-out NLL {self.new:.4f}, of the former weights {self.former:.4f}; difference {self.difference:+.4f} "
            f"± {self.error:.4f} over {self.tasks} tasks"
        )


def held_out_losses(source: Path, protocol: dict[str, Any], tasks: int, data: str | None = None) -> Tensor:
    """NLL of a weight file's sampler on held-out tasks, (tasks,), at the best learning rate of each.

    A run that predicts worse than chance counts as chance, or one collapse would hide itself in the standard error.
    """
    family, horizon = protocol.get("tasks"), protocol.get("horizon")
    if family is None or horizon is None:
        raise ValueError(f"{source}: the card does not say on which tasks it was trained")
    if family["name"] not in FAMILIES:
        raise ValueError(f"weights trained on {family['name']!r} have no held-out tasks, only {', '.join(FAMILIES)}")
    changes = {name: family[name] for name in CHANGEABLE if family.get(name) is not None}
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    one_core()
    network, card = weights.load(source)
    evaluation = HeldOutEvaluation(
        family_named(family["name"], root=data, **changes),
        horizon["longest"],
        samples=horizon["samples"],
        tasks=tasks,
        chains=1,
        lrs=family["lrs"],
        seed=SEED,
        burn_in=horizon["burn_in"],
    )
    losses = evaluation.losses(rule_from_card(card), parameters_to_vector(network.parameters()).detach())
    made = [evaluation.family.make(config, "held-out") for config in evaluation.configs]
    return losses.minimum(torch.tensor([task.num_classes for task in made]).log())


def difference(new: Path, former: Path, tasks: int, data: str | None = None) -> Difference:
    """Runs both, a process each, with the same initial weights, minibatches and noise, by the training of ``new``."""
    measure = partial(held_out_losses, protocol=weights.load_card(new)["meta_training"], tasks=tasks, data=data)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return difference_of(*pool.map(measure, (new, former)))


def difference_of(new: Tensor, former: Tensor) -> Difference:
    """The same, of the losses (tasks,) of both."""
    differences = new - former
    error = differences.std().item() / math.sqrt(len(differences))
    return Difference(new.mean().item(), former.mean().item(), differences.mean().item(), error, len(differences))
