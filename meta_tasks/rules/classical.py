"""Hand-designed update rules as the inner loop runs them."""

from __future__ import annotations

from learned_samplers.classical.cycles import cyclical_phase
from learned_samplers.classical.psgld import psgld_rule
from learned_samplers.classical.sghmc import sghmc_rule
from meta_tasks.rules.base import SamplerRule, arguments_of

__all__ = ["CyclicalRule", "PSGLDRule", "SGHMCRule"]


class SGHMCRule(SamplerRule):
    """`learned_samplers.SGHMC`."""

    name = "SGHMC"
    state_names = ("momentum",)

    def update(self, prepared, at):
        parameter, momentum = sghmc_rule(*at.tensors, **arguments_of(at.hyper))
        return parameter, (momentum,)


class CyclicalRule(SamplerRule):
    """`learned_samplers.CyclicalSGMCMC` over SGHMC; the task's lr is the peak.

    Args:
        cycle_length: K, in steps.
        exploration_ratio: share of a cycle without noise.
    """

    name = "CyclicalSGMCMC"
    state_names = ("momentum",)

    def __init__(self, cycle_length: int, exploration_ratio: float = 0.8) -> None:
        self.cycle_length, self.exploration_ratio = cycle_length, exploration_ratio

    def draws_noise(self, hyper, step):
        return hyper.temperature > 0 and cyclical_phase(step + 1, self.cycle_length, self.exploration_ratio)[1]

    def update(self, prepared, at):
        factor, _ = cyclical_phase(at.step + 1, self.cycle_length, self.exploration_ratio)
        parameter, momentum = sghmc_rule(*at.tensors, **arguments_of(at.hyper, lr=at.hyper.lr * factor))
        return parameter, (momentum,)


class PSGLDRule(SamplerRule):
    """`learned_samplers.PSGLD` with RMSprop's decay of 0.99, without the correction, at a twentieth of the task's lr.

    That lr is on the scale of SGD's.
    """

    name = "PSGLD"
    state_names = ("second_moment",)

    def update(self, prepared, at):
        arguments = arguments_of(at.hyper, lr=0.05 * at.hyper.lr)
        del arguments["momentum_decay"]
        # RMSprop's eps, as in the held-out scores of the cards; `PSGLD`'s default is larger.
        parameter, second_moment = psgld_rule(*at.tensors, decay=0.99, eps=1e-8, **arguments)
        return parameter, (second_moment,)
