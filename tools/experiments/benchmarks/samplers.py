"""The samplers of the benchmarks: how each is made, and a step of it on gradients that are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learned_samplers import (
    BAOA,
    L2E,
    MCLMC,
    PSGLD,
    SGHMC,
    SGLD,
    SGLRW,
    SGNHT,
    AdaptedSGHMC,
    CyclicalSGMCMC,
    EntropyMCMC,
    KineticL2E,
    MetaSGMCMC,
    Sampler,
    WhitenedSGHMC,
)
from learned_samplers.approximations import IVON
from learned_samplers.learned.native.kernel import ENVIRONMENT_VARIABLE

NUM_DATA = 50_000
LR = 1e-9


#: Name in the tables → the sampler of some parameters. (Masses are frozen before they are timed.)
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "SGLD": lambda params: SGLD(params, LR, NUM_DATA),
    "pSGLD": lambda params: PSGLD(params, LR, NUM_DATA),
    "SGLRW": lambda params: SGLRW(params, LR, NUM_DATA),
    "SGHMC": lambda params: SGHMC(params, LR, NUM_DATA),
    "BAOA": lambda params: BAOA(params, LR, NUM_DATA),
    "AdaptedSGHMC": lambda params: AdaptedSGHMC(params, LR, NUM_DATA, warmup_steps=2),
    "SGNHT": lambda params: SGNHT(params, LR, NUM_DATA),
    "cyclical SGMCMC": lambda params: CyclicalSGMCMC(params, LR, NUM_DATA, cycle_length=100, exploration_ratio=0.0),
    "EntropyMCMC": lambda params: EntropyMCMC(params, LR, NUM_DATA, guide_variance=0.1),
    "MCLMC": lambda params: MCLMC(params, LR, NUM_DATA),
    "IVON": lambda params: IVON(params, 1e-3, NUM_DATA),
    "WhitenedSGHMC": lambda params: WhitenedSGHMC(params, LR, NUM_DATA),
    "L2E": lambda params: L2E(params, LR, NUM_DATA),
    "L2E, network l2e": lambda params: L2E(params, LR, NUM_DATA, network="l2e"),
    "KineticL2E without the Hessian": lambda params: KineticL2E(params, LR, NUM_DATA, hessian="none"),
    "MetaSGMCMC": lambda params: MetaSGMCMC(params, LR, NUM_DATA),
}
#: Those that have compiled code.
COMPILED = (
    "L2E",
    "L2E, network l2e",
    "KineticL2E without the Hessian",
    "MetaSGMCMC",
)


def step_of(sampler: Sampler) -> Callable[[], object]:
    """A step on the gradients that are there; where the sampler needs a closure it computes nothing."""
    if not sampler.needs_closure and not isinstance(sampler, IVON):
        return sampler.step
    loss = torch.tensor(1.0)
    slopes = [(p, p.grad) for group in sampler.param_groups for p in group["params"]]

    def closure() -> Tensor:
        for p, slope in slopes:  # IVON's are to be those of the weights that it has drawn
            p.grad = slope
        return loss

    return lambda: sampler.step(closure)


def uncompiled(step: Callable[[], object]) -> Callable[[], object]:
    """The step with the compiled code turned off."""

    def slow() -> object:
        before = os.environ.get(ENVIRONMENT_VARIABLE)
        os.environ[ENVIRONMENT_VARIABLE] = "0"
        try:
            return step()
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]
            if before is not None:
                os.environ[ENVIRONMENT_VARIABLE] = before

    return slow
