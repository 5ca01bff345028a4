"""Hand-designed update rules as the inner loop runs them."""

from __future__ import annotations

from dataclasses import replace

import torch

from learned_samplers.base.operations import FUNCTIONAL, IN_PLACE
from learned_samplers.classical.cycles import cyclical_phase
from learned_samplers.classical.psgld import psgld_rule
from learned_samplers.classical.sghmc import sghmc_rule
from meta_tasks.rules.base import Hyperparameters, SamplerRule, arguments_of

__all__ = ["CyclicalRule", "PSGLDRule", "SGHMCRule"]


class SGHMCRule(SamplerRule):
    """`learned_samplers.SGHMC`."""

    name = "SGHMC"
    state_names = ("momentum",)
    by_member = True

    def update(self, prepared, at):
        ops = FUNCTIONAL if torch.is_grad_enabled() else IN_PLACE
        parameter, momentum = sghmc_rule(*at.tensors, **arguments_of(at.hyper), ops=ops)
        return parameter, (momentum,)


class CyclicalRule(SGHMCRule):
    """`learned_samplers.CyclicalSGMCMC` over SGHMC; the task's lr is the peak.

    Args:
        cycle_length: K, in steps.
        exploration_ratio: share of a cycle without noise.
    """

    name = "CyclicalSGMCMC"

    def __init__(self, cycle_length: int, exploration_ratio: float = 0.8) -> None:
        self.cycle_length, self.exploration_ratio = cycle_length, exploration_ratio

    def _now(self, hyper: Hyperparameters, step: int) -> Hyperparameters:
        factor, sampling = cyclical_phase(step + 1, self.cycle_length, self.exploration_ratio)
        return replace(hyper, lr=hyper.lr * factor, temperature=hyper.temperature if sampling else 0.0)

    def draws_noise(self, hyper, step):
        return super().draws_noise(self._now(hyper, step), step)

    def update(self, prepared, at):
        return super().update(prepared, replace(at, hyper=self._now(at.hyper, at.step)))


class PSGLDRule(SamplerRule):
    """`learned_samplers.PSGLD` with RMSprop's decay of 0.99, without the correction, at a twentieth of the task's lr.

    That lr is on the scale of SGD's.
    """

    name = "PSGLD"
    state_names = ("second_moment",)
    by_member = True

    def update(self, prepared, at):
        arguments = arguments_of(at.hyper, lr=0.05 * at.hyper.lr)
        del arguments["momentum_decay"]
        # RMSprop's eps, as in the held-out scores of the cards; `PSGLD`'s default is larger.
        parameter, second_moment = psgld_rule(*at.tensors, decay=0.99, eps=1e-8, **arguments)
        return parameter, (second_moment,)
