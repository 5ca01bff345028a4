"""How each method of a comparison makes its optimizer or sampler.

Each function is (parameter groups, settings, lr, number of training images, steps) → optimizer, as
`experiments.images.methods.ImageMethod` calls it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from experiments.images.muon import Muon, Shampoo
from learned_samplers import (
    BAOA,
    HMC,
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
)
from learned_samplers.approximations import IVON
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.network import build_network, flatten, layers_of, shapes_of
from meta_tasks.rules.start import FeatureStart

if TYPE_CHECKING:
    from experiments.images.settings import Settings

Groups = list[dict[str, Any]]


def posterior(settings: Settings) -> dict[str, Any]:
    return {"temperature": settings.temperature, "prior_precision": settings.prior_precision}


def sgd(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # Weight decay λ/N on the mean loss makes it the maximum a posteriori of the model that the samplers sample.
    return torch.optim.SGD(groups, lr, momentum=1 - s.momentum_decay, weight_decay=s.prior_precision / num_data)


def adam(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr, weight_decay=s.prior_precision / num_data)


def muon(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return Muon(groups, lr, weight_decay=s.prior_precision / num_data)


def shampoo(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return Shampoo(groups, lr, weight_decay=s.prior_precision / num_data)


def sgld(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGLD(groups, lr, num_data, **posterior(s))


def psgld(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return PSGLD(groups, lr, num_data, **posterior(s))


def sghmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGHMC(groups, lr, num_data, momentum_decay=s.momentum_decay, **posterior(s))


def sgnht(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGNHT(groups, lr, num_data, momentum_decay=s.momentum_decay, **posterior(s))


def cycle_length(s: Settings, steps: int) -> int:
    if steps < s.cycles:
        raise ValueError(f"cycles={s.cycles} exceeds the budget of {steps} steps")
    return steps // s.cycles


def cyclical(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return CyclicalSGMCMC(
        groups,
        lr,
        num_data,
        cycle_length=cycle_length(s, steps),
        exploration_ratio=s.exploration_ratio,
        momentum_decay=s.momentum_decay,
        **posterior(s),
    )


def hmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # `steps` are trajectories here; the step size is adapted during burn-in.
    adapt_steps = int(s.burn_in * steps)
    return HMC(groups, lr, num_data, leapfrog_steps=s.leapfrog_steps, adapt_steps=adapt_steps, **posterior(s))


# The learned samplers keep the momentum decay of their cards: only their learning rate is tuned.
def l2e(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # A network that sees how much of its run is over is told; the schedules of other methods know it too.
    network = s.with_weights(num_data).l2e_network
    told = feature_set_named(weights.load_card(weights.find(network))["feature_set"]).sees_progress
    total = steps if told else None
    return L2E(groups, lr, num_data, network=network, total_steps=total, **posterior(s))


def scale_adapted_l2e(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # Burn-in is for exploring and for settling.
    exploration = int(s.burn_in * steps)
    if not exploration:
        raise ValueError(f"burn_in={s.burn_in} of {steps} steps leaves ScaleAdaptedL2E none in which to explore")
    network = s.scale_adapted_l2e_network
    return AdaptedSGHMC(
        groups, lr, num_data, warmup=partial(L2E, network=network), warmup_steps=exploration, **posterior(s)
    )


def cyclical_scale_adapted_l2e(
    groups: Groups, s: Settings, lr: float, num_data: int, steps: int
) -> torch.optim.Optimizer:
    length = cycle_length(s, steps)
    exploration = int(s.exploration_ratio * length)
    if not exploration:
        raise ValueError(f"exploration_ratio={s.exploration_ratio} of {length} steps a cycle leaves none to explore in")
    warmup = partial(L2E, network=s.scale_adapted_l2e_network)
    own: Any = dict(warmup=warmup, warmup_steps=exploration, cycle_length=length)
    return AdaptedSGHMC(groups, lr, num_data, **own, **posterior(s))


def l2e_paper(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return L2E(groups, lr, num_data, form="paper", network=s.l2e_paper_network, **posterior(s))


def kinetic_l2e(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return KineticL2E(groups, lr, num_data, network=s.kinetic_l2e_network, **posterior(s))


def meta_sgmcmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return MetaSGMCMC(groups, lr, num_data, network=s.meta_sgmcmc_network, **posterior(s))


def baoa(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return BAOA(groups, lr, num_data, momentum_decay=s.momentum_decay, **posterior(s))


def sglrw(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return SGLRW(groups, lr, num_data, **posterior(s))


def scale_adapted(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # The mass is adapted for the first half of burn-in and frozen for the other. Adapted without noise it fits the
    # mode, where gradients are smaller than in the posterior: on the digits (T = 1) half of such runs then diverged.
    warmup_steps = int(s.burn_in * steps) // 2
    if not warmup_steps:
        raise ValueError(
            f"burn_in={s.burn_in} of {steps} steps leaves ScaleAdaptedSGHMC none in which to adapt its mass"
        )
    return AdaptedSGHMC(
        groups,
        lr,
        num_data,
        warmup_steps=warmup_steps,
        warmup_temperature=0.0 if s.cold_adaptation else None,
        momentum_decay=s.momentum_decay,
        **posterior(s),
    )


def entropy_mcmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    return EntropyMCMC(groups, lr, num_data, **posterior(s))


def mclmc(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # With minibatches; of pSMILE the preconditioner alone, as its control of the step size takes two gradients a step.
    return MCLMC(groups, lr, num_data, momentum_decay=s.momentum_decay, preconditioner="gradient_noise", **posterior(s))


def ivon(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # The memory of its curvature must fit into the run; .99999 is the paper's, of 200 epochs.
    decay = min(0.99999, max(0.9, 1 - 10 / steps))
    return IVON(groups, lr, num_data, betas=(0.9, decay), hess_init=0.5, **posterior(s))


def l2e_start(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # What `l2e` was before its meta-training began (docs/meta_training_log/index.md): β = −2·m/√v̂, α = 0.
    return _started(groups, s, lr, num_data, "adaptive", "average_0.9_to_rms", 2.0)


def l2e_matrix_start(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # What `l2e-matrix` was before its meta-training began: β is minus the orthogonal factor of the momentum, α = 0.
    return _started(groups, s, lr, num_data, "matrix", "orthogonal_0.9", 1.0)


def l2e_whitened_start(groups: Groups, s: Settings, lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    # The same with the momentum whitened by the inputs' covariance.
    return _started(groups, s, lr, num_data, "whitened", "whitened_0.9", 1.0)


def l2e_orthogonal_whitened_start(
    groups: Groups, s: Settings, lr: float, num_data: int, steps: int
) -> torch.optim.Optimizer:
    # The orthogonal factor of that.
    return _started(groups, s, lr, num_data, "orthogonal_whitened", "orthogonal_whitened_0.9", 1.0)


def _started(groups: Groups, s: Settings, lr: float, num_data: int, feature_set: str, feature: str, gain: float) -> L2E:
    settings = L2ESettings(feature_set=feature_set, beta_scale=10.0, friction_scale=0.0, reference_data=50_000.0)
    network = started_network(settings, feature, gain)
    return L2E(groups, lr, num_data, network=network, settings=settings, momentum_decay=0.1, **posterior(s))


def started_network(settings: L2ESettings, feature: str, gain: float) -> nn.Sequential:
    """The smallest network with β = −gain·feature and α = 0."""
    network = build_network(settings.feature_set, (2,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        phi = layers_of(network)
        start = FeatureStart(feature, gain, settings.features, shapes_of(phi))
        nn.utils.vector_to_parameters(start(flatten(phi)), network.parameters())
    return network
