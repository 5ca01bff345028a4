"""The one table of samplers: shared tests, benchmarks, figures, command lines and the lists on pages are made from it.

A sampler is one line here. A user's own joins by `register`, and then has what all have: ``check_sampler`` by name, the
benchmark, its line in ``python -m learned_samplers --all``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from learned_samplers.approximations.ivon import IVON
from learned_samplers.base.sampler import Sampler
from learned_samplers.classical.adapted import AdaptedSGHMC
from learned_samplers.classical.baoa import BAOA
from learned_samplers.classical.cyclical import CyclicalSGMCMC
from learned_samplers.classical.entropy_mcmc import EntropyMCMC
from learned_samplers.classical.hmc import HMC
from learned_samplers.classical.mclmc import MCLMC
from learned_samplers.classical.psgld import PSGLD
from learned_samplers.classical.sghmc import SGHMC
from learned_samplers.classical.sgld import SGLD
from learned_samplers.classical.sglrw import SGLRW
from learned_samplers.classical.sgnht import SGNHT
from learned_samplers.classical.whitened import WhitenedSGHMC
from learned_samplers.learned.kinetic import KineticL2E
from learned_samplers.learned.l2e import L2E
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMC
from learned_samplers.learned.preconditioned import PrecondL2E
from learned_samplers.learned.sampler import LearnedSampler


@dataclass(frozen=True)
class Entry:
    """A sampler, the settings with which it runs on anything, and what it can do.

    Called with parameters it makes the sampler: ``SAMPLERS["HMC"](model.parameters(), lr=0.01, num_data=N)``.

    Args:
        sampler: the class.
        settings: keywords that it needs beside ``lr`` and ``num_data``, at values that suit a run of some steps.
        recommended: whether it is one of the few that most people need.
    """

    sampler: type[Sampler]
    settings: Mapping[str, Any] = field(default_factory=dict)
    recommended: bool = False

    def __call__(self, params: Any, lr: float = 0.05, num_data: float = 100, **settings: Any) -> Sampler:
        return self.sampler(params, lr, num_data, **{**self.settings, **settings})

    @property
    def name(self) -> str:
        """Name of the class, which is the sampler's name everywhere."""
        return self.sampler.__name__

    @property
    def summary(self) -> str:
        """First sentence of the docstring."""
        return (inspect.getdoc(self.sampler) or "").split("\n")[0]

    @property
    def is_learned(self) -> bool:
        """True if its update holds a network."""
        return issubclass(self.sampler, LearnedSampler)

    @cached_property
    def example(self) -> Sampler:
        """The sampler of one small matrix: some of what it can do depends on its settings."""
        return self(torch.nn.Linear(2, 2).parameters())

    @property
    def law(self) -> str:
        """Its badge at these settings: "exact", "O(h)" or "heuristic"."""
        return self.example.badge

    @property
    def needs_closure(self) -> bool:
        """True if ``step`` works only with a closure."""
        return self.example.needs_closure

    @property
    def stacked(self) -> bool:
        """True if several networks may lie along a leading axis of its parameters (`Chains`)."""
        return "stacked" in self.example.side_by_side

    @property
    def sharded(self) -> bool:
        """True if its parameters may be sharded over processes."""
        return not self.example.not_sharded

    @property
    def differentiable(self) -> bool:
        """True if gradients pass through its steps (``higher``)."""
        return not self.example.not_differentiable


#: Name of a sampler → its line of the table.
SAMPLERS: dict[str, Entry] = {}


def register(sampler: type[Sampler], *, recommended: bool = False, **settings: Any) -> Entry:
    """Add a sampler to the table, and give its line.

    Args:
        sampler: a subclass of `Sampler`. One of the same name takes the place of an earlier one.
        recommended: whether ``python -m learned_samplers`` shows it without ``--all``.
        settings: keywords that it needs beside ``lr`` and ``num_data``.

    Raises:
        TypeError: it is no subclass of `Sampler`.
    """
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        raise TypeError(f"sampler must be a subclass of Sampler, got {sampler!r:.60}")
    entry = SAMPLERS[sampler.__name__] = Entry(sampler, settings, recommended)
    return entry


register(SGLD)
register(SGHMC, recommended=True)
register(BAOA, recommended=True)
register(AdaptedSGHMC, recommended=True, warmup_steps=4, eps=0.1)
register(WhitenedSGHMC, recommended=True)
register(PSGLD)
register(SGLRW)
register(SGNHT)
register(CyclicalSGMCMC, recommended=True, cycle_length=5, exploration_ratio=0.4)
register(EntropyMCMC, guide_variance=0.1)
register(HMC, leapfrog_steps=3)
register(MCLMC)
register(IVON)
register(L2E, recommended=True)
register(KineticL2E)
register(PrecondL2E)
register(MetaSGMCMC)
