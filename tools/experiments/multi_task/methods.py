"""The methods of `multi_task.py`, and the settings that all runs of a comparison share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.harness.options import at_least, not_negative, share_below_one
from learned_samplers import MOOSVGD, MTSGD
from learned_samplers.particles import MGDA, LinearScalarisation, ParetoMTL
from learned_samplers.particles.base import ParticleSampler


@dataclass(frozen=True)
class Settings:
    """Data and budget; the same for every method."""

    size: int = 28  # Side of the images in pixels. They are made at 36 and resized.
    train: int | None = None  # Training images; by default all that there are.
    validation: int | None = None  # Validation images; by default all that there are.
    test: int | None = None  # Test images; by default all that there are.
    particles: int = 5  # Number of particles.
    epochs: int = 5  # Epochs of a run that counts.
    batch_size: int = 64  # Images in a minibatch.
    momentum: float = 0.9  # Momentum of the SGD that takes the direction.
    # Share of a run in which the learning rate rises to its value; without it some particles never leave the plateau.
    warm_up: float = 0.1
    # Share of a run after which the learning rate is halved, again and again: 15 of 100 epochs in the paper.
    halve_every: float = 0.15
    # MTSGD: U of the paper, or its first term alone, the published code's rule.
    target_weights: Literal["exact", "gradients"] = "exact"
    # MTSGD: the scores that U is made of are divided by their norm: of each task and particle, or of each task and
    # coordinate.
    gradient_normalisation: Literal["none", "particle", "coordinate"] = "none"
    # MOOSVGD: the kernel acts on the losses, as in its paper, or on parameters.
    moo_svgd_kernel_on: Literal["losses", "parameters"] = "losses"
    temperature: float = 1.0  # Temperature of the repulsion between particles; at 0 there is none.

    def __post_init__(self) -> None:
        at_least(1, self, "size", "particles", "epochs", "batch_size", "train", "validation", "test")
        share_below_one(self, "momentum", "warm_up")
        if not 0 < self.halve_every <= 1:
            raise ValueError(f"halve_every must lie in (0, 1], got {self.halve_every}")
        not_negative(self, "temperature")


@dataclass(frozen=True)
class TaskMethod:
    """Row of the comparison.

    Attributes:
        sampler: its class.
        lr: centre of the grid of learning rates.
        fixed: settings that it has whatever the options say.
        taken: settings that it takes from the options, by the options' names.
        repels: the particles repel each other, so that the scale of the energies matters.
        separate: each task has a network of its own, with nothing shared.
        features: the closure returns the logits beside the losses, for the kernel.
    """

    sampler: Callable[..., ParticleSampler]
    lr: float
    fixed: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    repels: bool = False
    separate: bool = False
    features: bool = False


class SingleTasks(LinearScalarisation):
    """Networks that share nothing: the gradient of the losses' sum is for each parameter that of its own task."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every task's particles on its own loss; the losses (K, M)."""
        assert closure is not None
        losses: list[Tensor] = []

        def total() -> Tensor:
            losses.append(closure())
            return losses[0].sum(0, keepdim=True)

        super().step(total)
        self.weights = None  # there is nothing to weigh
        return losses[0].detach()


_CODE = {"target_weights": "gradients", "kernel_on": "features", "gradient_normalisation": "coordinate"}
_RULE = {name: name for name in ("target_weights", "gradient_normalisation")}
#: In the order of the paper's tables; MTSGDCode is the rule of the published code, SVGD has equal weights. SingleTask,
#: of Table 2, has an ensemble of independent networks for each task.
METHODS: dict[str, TaskMethod] = {
    "SingleTask": TaskMethod(SingleTasks, 0.1, separate=True),
    "LinearScalarisation": TaskMethod(LinearScalarisation, 0.1),
    "MGDA": TaskMethod(MGDA, 0.1),
    "ParetoMTL": TaskMethod(ParetoMTL, 0.1),
    "MOOSVGD": TaskMethod(MOOSVGD, 0.2, taken={"moo_svgd_kernel_on": "kernel_on"}, repels=True),
    "MTSGD": TaskMethod(MTSGD, 0.2, taken=_RULE, repels=True),
    "MTSGDCode": TaskMethod(MTSGD, 0.2, _CODE, repels=True, features=True),
    "SVGD": TaskMethod(MTSGD, 0.2, {"target_weights": "equal"}, repels=True),
}

#: Scales of the energies: N times the mean loss, the Bayesian posterior; or the mean loss itself, as in the published
#: code, which makes the repulsion N times stronger beside the gradients.
ENERGIES = ("posterior", "mean_loss")


def make_sampler(
    method: str, groups: Any, lr: float, energy: str, num_data: int, settings: Settings
) -> ParticleSampler:
    """The sampler of a method, which hands its direction to SGD with momentum."""
    row = METHODS[method]
    more: dict[str, Any] = {name: getattr(settings, option) for option, name in row.taken.items()} | dict(row.fixed)
    if row.repels:
        more["temperature"] = settings.temperature
    base = partial(torch.optim.SGD, momentum=settings.momentum)
    return row.sampler(groups, lr, num_data if energy == "posterior" else 1, base_optimizer=base, **more)
