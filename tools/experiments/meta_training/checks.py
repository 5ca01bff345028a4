"""What `meta_train.py` finds out before it trains: a sampler or a task that cannot be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from learned_samplers.learned.registry import registered
from meta_tasks.rules.learned import NetworkRule
from meta_tasks.tasks.family import ImageTaskFamily
from meta_tasks.tasks.gaussians import GaussianFamily


def check_sampler(rule: NetworkRule, seed: int, lr: float, momentum_decay: float) -> None:
    """Make the sampler that the weight card will describe, once; ValueError is what its users would get."""
    sampler: Any = registered(rule.name)
    of_a_run: Any = rule.for_run(1)  # ScaleAdaptedL2E wants to know how long it explores
    sampler(
        [torch.zeros(1, requires_grad=True)],
        lr,
        1000,
        network=rule.network(rule.initial_weights(seed)),
        momentum_decay=momentum_decay,
        settings=of_a_run.settings,
    )


def check_tasks(family: ImageTaskFamily | GaussianFamily, seed: int, *, every: bool) -> None:
    """Draw one task, or one of every data set with all of the family's labels.

    Raises:
        ValueError, FileNotFoundError: a data set has no such labels, no training images, or no files.
    """
    if not (every and isinstance(family, ImageTaskFamily)):
        family.task(seed, 0, 0)
        return
    for name in dict.fromkeys(family.dataset_names):
        try:
            replace(family, dataset_names=(name,), label_subset_share=0.0).task(seed, 0, 0)
        except ValueError as error:
            raise ValueError(f"datasets={family.dataset_names}, labels={family.labels}: {error}") from error
