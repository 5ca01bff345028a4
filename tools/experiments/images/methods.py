"""The methods that the tools compare: how each makes its optimizer, and its usual learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from learned_samplers import (
    HMC,
    L2E,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    CyclicalSchedule,
    CyclicalSGMCMC,
    KineticL2E,
    MetaSGMCMC,
)
from learned_samplers.learned import weights

if TYPE_CHECKING:
    from experiments.images.settings import Settings

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes:
        label: what tables and figures call it.
        kind: "optimizer" gives its last weights, with the learning rate going to zero along half a cosine; "ensemble"
            those of several such runs, which share the budget; "average" gives snapshots of one run of an optimizer
            at a constant rate, when a sampler would give its samples; "sampler" gives posterior samples; "full_batch"
            likewise, from gradients over the whole training set.
        lr: default learning rate, dimensionless, in the library's one parametrisation.
        build: (parameter groups, settings, lr, number of training images, steps) → optimizer.
        tunes: the setting of which a comparison tries several values beside its learning rates.
        network: of a learned sampler, the setting that names its weights.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: the rate follows the cyclical schedule, and samples are taken in its sampling phases: what
            `CyclicalSGMCMC` has of itself, and any other sampler by `CyclicalSchedule`.
    """

    label: str
    kind: Literal["optimizer", "ensemble", "average", "sampler", "full_batch"]
    lr: float
    build: Callable[[Groups, Settings, float, int, int], torch.optim.Optimizer]
    tunes: Literal["momentum_decay", "prior_precision"] | None = None
    network: str | None = None
    gradients_per_step: int = 1
    cyclical: bool = False

    def schedule(self, optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> CyclicalSchedule | None:
        """The cyclical schedule of an optimizer that has none of its own; None where none is wanted."""
        if not self.cyclical or isinstance(optimizer, CyclicalSGMCMC):
            return None
        return CyclicalSchedule(optimizer, _cycle_length(settings, steps), settings.exploration_ratio)  # type: ignore[arg-type]

    def network_digest(self, settings: Settings) -> str | None:
        """Fingerprint of the weights and rule of a learned sampler, from their card; None for other methods.

        Raises:
            ValueError, FileNotFoundError: there are no such weights.
        """
        if self.network is None:
            return None
        name = getattr(settings, self.network)
        try:
            return weights.fingerprint(weights.load_card(weights.find(name)))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{self.network}={name!r}, which {self.label} needs: {error}") from error


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


def _cycle_length(s: Settings, steps: int) -> int:
    if steps < s.cycles:
        raise ValueError(f"cycles={s.cycles} exceeds the budget of {steps} steps")
    return steps // s.cycles


def _cyclical(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return CyclicalSGMCMC(
        groups,
        lr,
        num_data,
        cycle_length=_cycle_length(s, steps),
        exploration_ratio=s.exploration_ratio,
        momentum_decay=s.momentum_decay,
        **_posterior(s),
    )


def _hmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # `steps` are trajectories here; the step size is adapted during burn-in.
    adapt_steps = int(s.burn_in * steps)
    return HMC(groups, lr, num_data, leapfrog_steps=s.leapfrog_steps, adapt_steps=adapt_steps, **_posterior(s))


# The learned samplers keep the momentum decay of their cards: only their learning rate is tuned.
def _l2e(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return L2E(groups, lr, num_data, network=s.l2e_network, **_posterior(s))


def _l2e_paper(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return L2E(groups, lr, num_data, form="paper", network=s.l2e_paper_network, **_posterior(s))


def _kinetic_l2e(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return KineticL2E(groups, lr, num_data, network=s.kinetic_l2e_network, **_posterior(s))


def _meta_sgmcmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # Finite differences: the cheaper of the two forms of its corrections.
    return MetaSGMCMC(
        groups, lr, num_data, network=s.meta_sgmcmc_network, correction="finite_difference", **_posterior(s)
    )


METHODS: dict[str, Method] = {
    "sgd": Method("SGD", "optimizer", 0.05, _sgd, tunes="prior_precision"),
    "adam": Method("Adam", "optimizer", 3e-3, _adam, tunes="prior_precision"),
    "deep_ensemble": Method("deep ensemble", "ensemble", 0.05, _sgd, tunes="prior_precision"),
    "adam_ensemble": Method("deep ensemble (Adam)", "ensemble", 3e-3, _adam, tunes="prior_precision"),
    "adam_average": Method("Adam, trajectory average", "average", 3e-3, _adam, tunes="prior_precision"),
    "sgld": Method("SGLD", "sampler", 0.1, _sgld),
    "psgld": Method("pSGLD", "sampler", 3e-3, _psgld),
    "sghmc": Method("SGHMC", "sampler", 0.05, _sghmc, tunes="momentum_decay"),
    "sgnht": Method("SGNHT", "sampler", 0.05, _sgnht, tunes="momentum_decay"),
    "cyclical": Method("cyclical SGMCMC", "sampler", 0.07, _cyclical, tunes="momentum_decay", cyclical=True),
    "hmc": Method("HMC", "full_batch", 0.01, _hmc),
    "l2e": Method("L2E", "sampler", 0.005, _l2e, network="l2e_network"),
    "cyclical_l2e": Method("L2E, cyclical", "sampler", 0.005, _l2e, network="l2e_network", cyclical=True),
    "l2e_paper": Method("L2E (paper)", "sampler", 0.02, _l2e_paper, network="l2e_paper_network"),
    # Its Hessian-vector product takes a second gradient at each step.
    "kinetic_l2e": Method(
        "Kinetic-L2E", "sampler", 0.05, _kinetic_l2e, network="kinetic_l2e_network", gradients_per_step=2
    ),
    "meta_sgmcmc": Method("Meta-SGMCMC", "sampler", 0.05, _meta_sgmcmc, network="meta_sgmcmc_network"),
}

MethodName = Literal[*METHODS]
