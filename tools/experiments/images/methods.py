"""The methods that the tools compare: how each makes its optimizer, and its usual learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import torch

from experiments.common.methods import Method, by_name
from experiments.common.tuning import Choice, rates_around
from experiments.images import builders
from learned_samplers import CyclicalSchedule, CyclicalSGMCMC
from learned_samplers.learned import weights

if TYPE_CHECKING:
    from experiments.images.settings import Settings


@dataclass(frozen=True)
class ImageMethod(Method):
    """One row of a comparison on images; ``build`` is (parameter groups, settings, lr, number of training images,
    steps) → optimizer.

    Attributes:
        kind: "optimizer" gives its last weights, with the learning rate going to zero along half a cosine; "ensemble"
            those of several such runs, which share the budget; "average" gives snapshots of one run of an optimizer
            at a constant rate, when a sampler would give its samples; "running_average" gives a running average of the
            weights of such a run; "gaussian" gives draws from the Gaussian that a run has fitted; "sampler" gives
            posterior samples; "full_batch" likewise, from gradients over the whole training set.
        tunes: the settings of which a comparison tries several values beside its learning rates.
        network: of a learned sampler, the setting that names its weights.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: the rate follows the cyclical schedule, and samples are taken in its sampling phases: what
            `CyclicalSGMCMC` has of itself, and any other sampler by `CyclicalSchedule`.
    """

    kind: Literal["optimizer", "ensemble", "average", "running_average", "gaussian", "sampler", "full_batch"] = (
        "sampler"
    )
    tunes: tuple[str, ...] = ()
    network: str | None = None
    gradients_per_step: int = 1
    cyclical: bool = False

    def schedule(self, optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> CyclicalSchedule | None:
        """The cyclical schedule of an optimizer that has none of its own; None where none is wanted."""
        if not self.cyclical or isinstance(optimizer, CyclicalSGMCMC):
            return None
        return CyclicalSchedule(optimizer, builders.cycle_length(settings, steps), settings.exploration_ratio)  # type: ignore[arg-type]

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


_MOMENTUM, _DECAY = ("momentum_decay",), ("prior_precision",)

#: In the order in which they are offered; a learned sampler that is cyclical or of the paper's form says so.
METHODS: dict[str, ImageMethod] = by_name(
    ImageMethod("SGD", builders.sgd, 0.05, "optimizer", _DECAY),
    ImageMethod("Adam", builders.adam, 3e-3, "optimizer", _DECAY),
    ImageMethod("DeepEnsemble", builders.sgd, 0.05, "ensemble", _DECAY),
    ImageMethod("AdamEnsemble", builders.adam, 3e-3, "ensemble", _DECAY),
    ImageMethod("AdamAverage", builders.adam, 3e-3, "average", _DECAY),
    ImageMethod("AdamEMA", builders.adam, 3e-3, "running_average", _DECAY),
    ImageMethod("SWAG", builders.sgd, 0.05, "gaussian", _DECAY),
    ImageMethod("AdamSWAG", builders.adam, 3e-3, "gaussian", _DECAY),
    ImageMethod("IVON", builders.ivon, 0.2, "gaussian"),
    ImageMethod("SGLD", builders.sgld, 0.1),
    ImageMethod("SGLRW", builders.sglrw, 0.1),
    ImageMethod("PSGLD", builders.psgld, 3e-3),
    ImageMethod("SGHMC", builders.sghmc, 0.05, tunes=_MOMENTUM),
    ImageMethod("BAOA", builders.baoa, 0.05, tunes=_MOMENTUM),
    ImageMethod("ScaleAdaptedSGHMC", builders.scale_adapted, 3e-3, tunes=_MOMENTUM),
    ImageMethod("SGNHT", builders.sgnht, 0.05, tunes=_MOMENTUM),
    ImageMethod("CyclicalSGMCMC", builders.cyclical, 0.07, tunes=_MOMENTUM, cyclical=True),
    ImageMethod("EntropyMCMC", builders.entropy_mcmc, 0.1),
    ImageMethod("MCLMC", builders.mclmc, 0.05, tunes=_MOMENTUM),
    ImageMethod("HMC", builders.hmc, 0.01, "full_batch"),
    ImageMethod("L2EStart", builders.l2e_start, 0.005),
    ImageMethod("L2E", builders.l2e, 0.005, network="l2e_network"),
    ImageMethod("CyclicalL2E", builders.l2e, 0.005, network="l2e_network", cyclical=True),
    ImageMethod("L2EPaper", builders.l2e_paper, 0.02, network="l2e_paper_network"),
    # Its Hessian-vector product takes a second gradient at each step.
    ImageMethod("KineticL2E", builders.kinetic_l2e, 0.05, network="kinetic_l2e_network", gradients_per_step=2),
    ImageMethod("MetaSGMCMC", builders.meta_sgmcmc, 0.05, network="meta_sgmcmc_network"),
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
