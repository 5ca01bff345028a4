"""The learned samplers by name: from a weight card to its sampler and its settings."""

from __future__ import annotations

import os
from typing import Any

from learned_samplers.learned import weights
from learned_samplers.learned.sampler import REGISTRY, LearnedSampler
from learned_samplers.learned.settings import LearnedSettings


def registered(name: str) -> type[LearnedSampler]:
    """The learned sampler of that name.

    Raises:
        ValueError: there is none, or its module has not been imported.
    """
    if name not in REGISTRY:
        known = ", ".join(map(repr, REGISTRY))
        raise ValueError(f"sampler must be one of {known} or of an imported module of your own, got {name!r}")
    return REGISTRY[name]


def settings_from_card(card: dict[str, Any]) -> LearnedSettings:
    """The settings that the weights of a card were trained with.

    Raises:
        ValueError: the card is of no learned sampler, or has settings that its sampler has not.
    """
    return registered(card["sampler"]).settings_class.from_card(card)


def sampler_from_card(
    source: str | os.PathLike[str], params: Any, lr: float | None = None, num_data: float | None = None, **keywords: Any
) -> LearnedSampler:
    """Make the sampler that a weight file belongs to, with its settings and its recommended learning rate.

    Args:
        source: name of shipped weights, or path of a weight file with its card beside it.
        params, lr, num_data: of the sampler.
        keywords: further ones of that sampler.

    Raises:
        ValueError, FileNotFoundError, TypeError: the weights cannot be read or are of no learned sampler; and what the
            sampler raises.
    """
    path = weights.find(source)
    sampler = registered(weights.load_card(path)["sampler"])
    return sampler(params, lr, num_data, network=path, **keywords)  # type: ignore[call-arg, arg-type]
