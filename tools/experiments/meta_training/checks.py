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


def check_tasks(family: ImageTaskFamily | GaussianFamily, seed: int) -> None:
    """Draw a task of every data set with all of the family's labels, so that none turns out to be missing hours later.

    Raises:
        ValueError: a data set has no such labels, or no training images.
        FileNotFoundError: data sets have no files; names all of them, and those that are there.
    """
    if not isinstance(family, ImageTaskFamily):
        family.task(seed, 0, 0)
        return
    missing: dict[str, FileNotFoundError] = {}
    names = tuple(dict.fromkeys(family.dataset_names))
    for name in names:
        try:
            replace(family, dataset_names=(name,), label_subset_share=0.0).task(seed, 0, 0)
        except FileNotFoundError as error:
            missing[name] = error
        except ValueError as error:
            raise ValueError(f"datasets={family.dataset_names}, labels={family.labels}: {error}") from error
    if missing:
        there = " ".join(name for name in names if name not in missing)
        without = f"; without {'it' if len(missing) == 1 else 'them'}: --datasets {there}" if there else ""
        reasons = "; ".join(str(error) for error in missing.values())
        raise FileNotFoundError(f"family {family.name!r} needs {', '.join(missing)}{without}; {reasons}")
