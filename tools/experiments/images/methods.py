"""The methods that the tools compare: how each makes its optimizer, and its usual learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch

from experiments.common.methods import Method, by_name
from experiments.common.tuning import Choice, rates_around
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
class ImageMethod(Method):
    """One row of a comparison on images; ``build`` is (parameter groups, settings, lr, number of training images,
    steps) → optimizer.

    Attributes:
        kind: "optimizer" gives its last weights, with the learning rate going to zero along half a cosine; "ensemble"
            those of several such runs, which share the budget; "average" gives snapshots of one run of an optimizer
            at a constant rate, when a sampler would give its samples; "sampler" gives posterior samples; "full_batch"
            likewise, from gradients over the whole training set.
        tunes: the settings of which a comparison tries several values beside its learning rates.
        network: of a learned sampler, the setting that names its weights.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: the rate follows the cyclical schedule, and samples are taken in its sampling phases: what
            `CyclicalSGMCMC` has of itself, and any other sampler by `CyclicalSchedule`.
    """

    kind: Literal["optimizer", "ensemble", "average", "sampler", "full_batch"] = "sampler"
    tunes: tuple[str, ...] = ()
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
            raise type(error)(f"{self.network}={name!r}, which {self.name} needs: {error}") from error


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


_MOMENTUM, _DECAY = ("momentum_decay",), ("prior_precision",)

#: In the order in which they are offered; a learned sampler that is cyclical or of the paper's form says so.
METHODS: dict[str, ImageMethod] = by_name(
    ImageMethod("SGD", _sgd, 0.05, "optimizer", _DECAY),
    ImageMethod("Adam", _adam, 3e-3, "optimizer", _DECAY),
    ImageMethod("DeepEnsemble", _sgd, 0.05, "ensemble", _DECAY),
    ImageMethod("AdamEnsemble", _adam, 3e-3, "ensemble", _DECAY),
    ImageMethod("AdamAverage", _adam, 3e-3, "average", _DECAY),
    ImageMethod("SGLD", _sgld, 0.1),
    ImageMethod("PSGLD", _psgld, 3e-3),
    ImageMethod("SGHMC", _sghmc, 0.05, tunes=_MOMENTUM),
    ImageMethod("SGNHT", _sgnht, 0.05, tunes=_MOMENTUM),
    ImageMethod("CyclicalSGMCMC", _cyclical, 0.07, tunes=_MOMENTUM, cyclical=True),
    ImageMethod("HMC", _hmc, 0.01, "full_batch"),
    ImageMethod("L2E", _l2e, 0.005, network="l2e_network"),
    ImageMethod("CyclicalL2E", _l2e, 0.005, network="l2e_network", cyclical=True),
    ImageMethod("L2EPaper", _l2e_paper, 0.02, network="l2e_paper_network"),
    # Its Hessian-vector product takes a second gradient at each step.
    ImageMethod("KineticL2E", _kinetic_l2e, 0.05, network="kinetic_l2e_network", gradients_per_step=2),
    ImageMethod("MetaSGMCMC", _meta_sgmcmc, 0.05, network="meta_sgmcmc_network"),
)


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """What is tuned of a method: its learning rate, and the settings that `ImageMethod.tunes` names."""

    also: tuple[tuple[str, float], ...] = ()

    @property
    def variant(self) -> str:
        """What else than the learning rate was tuned, for the name of a run's files."""
        return "_".join(f"{name[0]}{value:g}" for name, value in self.also)

    def text(self, num_data: int) -> str:
        """The same for people: the momentum decay a, or an optimizer's weight decay λ/N on the mean loss."""
        names = {"momentum_decay": "a", "prior_precision": "decay"}
        values = {name: f"{value / num_data:.2g}" if name == "prior_precision" else f"{value:g}"
                  for name, value in self.also}  # fmt: skip
        return ", ".join(f"{names[name]} {value}" for name, value in values.items())


def grid(method: ImageMethod, count: int, alternatives: Mapping[str, Sequence[float]]) -> list[Setting]:
    """`count` learning rates around the method's own, each with every alternative of what it tunes."""
    others = list(product(*(alternatives[name] for name in method.tunes)))
    return [Setting(lr, tuple(zip(method.tunes, values))) for lr in rates_around(method.lr, count) for values in others]
