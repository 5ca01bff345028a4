"""The methods that the tools compare: how each makes its optimizer, and its usual learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from learned_samplers import HMC, PSGLD, SGHMC, SGLD, SGNHT, CyclicalSGMCMC

if TYPE_CHECKING:
    from _settings import Settings

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes:
        label: what tables and figures call it.
        kind: "optimizer" gives its last weights, with the learning rate going to zero along half a cosine; "ensemble"
            those of several such runs, which share the budget; "sampler" gives posterior samples; "full_batch"
            likewise, from gradients over the whole training set.
        lr: default learning rate, dimensionless, in the library's one parametrisation.
        build: (parameter groups, settings, lr, number of training images, steps) → optimizer.
    """

    label: str
    kind: Literal["optimizer", "ensemble", "sampler", "full_batch"]
    lr: float
    build: Callable[[Groups, Settings, float, int, int], torch.optim.Optimizer]


def _posterior(settings: Settings) -> dict[str, Any]:
    return {"temperature": settings.temperature, "prior_precision": settings.prior_precision}


def _sgd(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # Weight decay λ/N on the mean loss makes it the maximum a posteriori of the model that the samplers sample.
    return torch.optim.SGD(groups, lr, momentum=1 - s.momentum_decay, weight_decay=s.prior_precision / num_data)


def _adam(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr, weight_decay=s.prior_precision / num_data)


def _sgld(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGLD(groups, lr, num_data, **_posterior(s))


def _psgld(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return PSGLD(groups, lr, num_data, **_posterior(s))


def _sghmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGHMC(groups, lr, num_data, momentum_decay=s.momentum_decay, **_posterior(s))


def _sgnht(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGNHT(groups, lr, num_data, momentum_decay=s.momentum_decay, **_posterior(s))


def _cyclical(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    if steps < s.cycles:
        raise ValueError(f"cycles={s.cycles} exceeds the budget of {steps} steps")
    return CyclicalSGMCMC(
        groups,
        lr,
        num_data,
        cycle_length=steps // s.cycles,
        exploration_ratio=s.exploration_ratio,
        momentum_decay=s.momentum_decay,
        **_posterior(s),
    )


def _hmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # `steps` are trajectories here; the step size is adapted during burn-in.
    adapt_steps = int(s.burn_in * steps)
    return HMC(groups, lr, num_data, leapfrog_steps=s.leapfrog_steps, adapt_steps=adapt_steps, **_posterior(s))


METHODS: dict[str, Method] = {
    "sgd": Method("SGD", "optimizer", 0.05, _sgd),
    "adam": Method("Adam", "optimizer", 3e-3, _adam),
    "deep_ensemble": Method("deep ensemble", "ensemble", 0.05, _sgd),
    "sgld": Method("SGLD", "sampler", 0.1, _sgld),
    "psgld": Method("pSGLD", "sampler", 3e-3, _psgld),
    "sghmc": Method("SGHMC", "sampler", 0.05, _sghmc),
    "sgnht": Method("SGNHT", "sampler", 0.05, _sgnht),
    "cyclical": Method("cyclical SGMCMC", "sampler", 0.07, _cyclical),
    "hmc": Method("HMC", "full_batch", 0.01, _hmc),
}
