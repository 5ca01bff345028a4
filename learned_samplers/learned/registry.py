"""The learned samplers by name: from a weight card to its sampler, its settings, and its update as a pure function."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from learned_samplers.learned import weights
from learned_samplers.learned.kinetic.optimizer import KineticL2E
from learned_samplers.learned.kinetic.rule import l2e_kinetic_rule
from learned_samplers.learned.l2e.optimizer import L2E
from learned_samplers.learned.l2e.rule import l2e_rule
from learned_samplers.learned.meta_sgmcmc.optimizer import MetaSGMCMC
from learned_samplers.learned.meta_sgmcmc.rule import meta_sgmcmc_rule
from learned_samplers.learned.preconditioned.optimizer import PrecondL2E
from learned_samplers.learned.preconditioned.rule import l2e_precond_rule
from learned_samplers.learned.sampler import LearnedSampler
from learned_samplers.learned.settings import LearnedSettings


@dataclass(frozen=True)
class Registered:
    """A learned sampler, and what belongs to it."""

    sampler: type[LearnedSampler]
    #: The update, a pure function that takes ``settings=``.
    rule: Callable[..., tuple[Tensor, ...]]

    @property
    def settings(self) -> type[LearnedSettings]:
        """The dataclass of its settings, which also knows the network's inputs (``features``)."""
        return self.sampler.settings_class


#: By the name of the sampler's class, which is its name in cards and on the command line too.
REGISTRY: dict[str, Registered] = {
    each.settings.sampler: each
    for each in (
        Registered(L2E, l2e_rule),
        Registered(PrecondL2E, l2e_precond_rule),
        Registered(KineticL2E, l2e_kinetic_rule),
        Registered(MetaSGMCMC, meta_sgmcmc_rule),
    )
}


def registered(name: str) -> Registered:
    """The learned sampler of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in REGISTRY:
        raise ValueError(f"sampler must be one of {', '.join(map(repr, REGISTRY))}, got {name!r}")
    return REGISTRY[name]


def settings_from_card(card: dict[str, Any]) -> LearnedSettings:
    """The settings that the weights of a card were trained with.

    Raises:
        ValueError: the card is of no learned sampler, or has settings that its sampler has not.
    """
    return registered(card["sampler"]).settings.from_card(card)


def sampler_from_card(
    source: str | os.PathLike[str], params: Any, lr: float | None = None, num_data: float | None = None, **keywords: Any
) -> LearnedSampler:
    """The sampler that a weight file belongs to, with its settings and its recommended learning rate.

    Args:
        source: name of shipped weights, or path of a weight file with its card beside it.
        params, lr, num_data: of the sampler.
        keywords: further ones of that sampler.

    Raises:
        ValueError, FileNotFoundError, TypeError: the weights cannot be read or are of no learned sampler; and what the
            sampler raises.
    """
    path = weights.find(source)
    sampler = registered(weights.load_card(path)["sampler"]).sampler
    return sampler(params, lr, num_data, network=path, **keywords)  # type: ignore[call-arg, arg-type]
