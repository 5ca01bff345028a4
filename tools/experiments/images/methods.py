"""The methods that the tools compare: how each makes its optimizer, and its usual learning rate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch

from experiments.harness.methods import Method, by_name
from experiments.harness.tuning import Choice, Tuning, next_of_series, rates_around
from experiments.images import builders
from learned_samplers import AdaptedSGHMC, CyclicalSchedule, CyclicalSGMCMC
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
            weights of such a run; "gaussian" gives draws from the Gaussian that a run has fitted; "last_layer" gives
            draws of the last layer's weights around a trained network; "sampler" gives posterior samples; "full_batch"
            likewise, from gradients over the whole training set.
        tunes: the settings of which a comparison tries several values beside its learning rates, where it has any.
        network: of a learned sampler, the setting that names its weights.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: the rate follows the cyclical schedule, and samples are taken in its sampling phases: what
            `CyclicalSGMCMC` has of itself, and any other sampler by `CyclicalSchedule`; `ScaleAdaptedL2E` has cycles of
            its own, of exploring at one rate and sampling at another.
        lr_of: names of weights whose own learning rate is not ``lr``, and theirs.
    """

    kind: Literal[
        "optimizer", "ensemble", "average", "running_average", "gaussian", "last_layer", "sampler", "full_batch"
    ] = "sampler"
    tunes: tuple[str, ...] = ()
    network: str | None = None
    gradients_per_step: int = 1
    cyclical: bool = False
    lr_of: tuple[tuple[str, float], ...] = ()

    @property
    def is_chain(self) -> bool:
        """Whether its samples are states of a Markov chain."""
        return self.kind in ("sampler", "full_batch")

    def rate(self, settings: Settings) -> float:
        """The learning rate in the middle of those that are tried."""
        return self.lr if self.network is None else dict(self.lr_of).get(getattr(settings, self.network), self.lr)

    def schedule(self, optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> CyclicalSchedule | None:
        """The cyclical schedule of an optimizer that has none of its own; None where none is wanted."""
        if not self.cyclical or isinstance(optimizer, (CyclicalSGMCMC, AdaptedSGHMC)):
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


# What is tuned beside the learning rate.
_DECAY = ("prior_precision",)
_DECAY_MOMENTUM = ("prior_precision", "momentum_decay")
_COLD = ("temperature",)
_COLD_MOMENTUM = ("temperature", "momentum_decay")
# When the samples of a chain or of an optimizer's trajectory begin, and where its learning rate ends.
_WHEN = ("burn_in", "final_lr")
_COLD_CHAIN = (*_COLD, *_WHEN)
_COLD_CHAIN_MOMENTUM = (*_COLD_MOMENTUM, *_WHEN)

# Those that are damped where the data are fitted are for few of them; the weights that L2E had before take Adam's
# steps, not those of whole matrices.
_LRS_OF_L2E = (("l2e-damped", 5e-4), ("l2e", 0.005))

#: In the order in which they are offered; a learned sampler that is cyclical or of the paper's form says so.
METHODS: dict[str, ImageMethod] = by_name(
    ImageMethod("SGD", builders.sgd, 0.05, "optimizer", _DECAY_MOMENTUM),
    ImageMethod("Adam", builders.adam, 3e-3, "optimizer", _DECAY),
    ImageMethod("Muon", builders.muon, 0.01, "optimizer", _DECAY),
    ImageMethod("DeepEnsemble", builders.sgd, 0.05, "ensemble", _DECAY_MOMENTUM),
    ImageMethod("AdamEnsemble", builders.adam, 3e-3, "ensemble", _DECAY),
    ImageMethod("Shampoo", builders.shampoo, 0.01, "optimizer", _DECAY),
    ImageMethod("MuonEnsemble", builders.muon, 0.01, "ensemble", _DECAY),
    ImageMethod("AdamAverage", builders.adam, 3e-3, "average", (*_DECAY, *_WHEN)),
    ImageMethod("MuonAverage", builders.muon, 0.01, "average", (*_DECAY, *_WHEN)),
    ImageMethod("ShampooAverage", builders.shampoo, 0.01, "average", (*_DECAY, *_WHEN)),
    ImageMethod("AdamEMA", builders.adam, 3e-3, "running_average", (*_DECAY, "final_lr")),
    ImageMethod("SWAG", builders.sgd, 0.05, "gaussian", (*_DECAY_MOMENTUM, *_WHEN)),
    ImageMethod("AdamSWAG", builders.adam, 3e-3, "gaussian", (*_DECAY, *_WHEN)),
    # Laplace's approximation of the last layer, by laplace-torch.
    ImageMethod("LastLayerLaplace", builders.sgd, 0.05, "last_layer", _DECAY_MOMENTUM),
    ImageMethod("IVON", builders.ivon, 0.2, "gaussian", _COLD),
    ImageMethod("SGLD", builders.sgld, 0.1, tunes=_COLD_CHAIN),
    ImageMethod("SGLRW", builders.sglrw, 0.1, tunes=_COLD_CHAIN),
    ImageMethod("PSGLD", builders.psgld, 3e-3, tunes=_COLD_CHAIN),
    ImageMethod("SGHMC", builders.sghmc, 0.05, tunes=_COLD_CHAIN_MOMENTUM),
    ImageMethod("BAOA", builders.baoa, 0.05, tunes=_COLD_CHAIN_MOMENTUM),
    ImageMethod("ScaleAdaptedSGHMC", builders.scale_adapted, 3e-3, tunes=_COLD_CHAIN_MOMENTUM),
    ImageMethod("SGNHT", builders.sgnht, 0.05, tunes=_COLD_CHAIN_MOMENTUM),
    ImageMethod("CyclicalSGMCMC", builders.cyclical, 0.07, tunes=(*_COLD_MOMENTUM, "exploration_ratio"), cyclical=True),
    ImageMethod("EntropyMCMC", builders.entropy_mcmc, 0.1, tunes=_COLD_CHAIN),
    ImageMethod("MCLMC", builders.mclmc, 0.05, tunes=_COLD_CHAIN_MOMENTUM),
    ImageMethod("HMC", builders.hmc, 0.01, "full_batch", _COLD),
    ImageMethod("L2EStart", builders.l2e_start, 0.005, tunes=_COLD_CHAIN),
    ImageMethod("L2EMatrixStart", builders.l2e_matrix_start, 0.002, tunes=_COLD_CHAIN),
    ImageMethod("L2EWhitenedStart", builders.l2e_whitened_start, 0.002, tunes=_COLD_CHAIN),
    ImageMethod("L2EOrthogonalWhitenedStart", builders.l2e_orthogonal_whitened_start, 0.002, tunes=_COLD_CHAIN),
    ImageMethod("L2E", builders.l2e, 0.002, tunes=_COLD_CHAIN, network="l2e_network", lr_of=_LRS_OF_L2E),
    ImageMethod(
        *("CyclicalL2E", builders.l2e, 0.002),
        tunes=(*_COLD, "exploration_ratio"),
        network="l2e_network",
        cyclical=True,
        lr_of=_LRS_OF_L2E,
    ),
    ImageMethod(
        "ScaleAdaptedL2E", builders.scale_adapted_l2e, 0.001, tunes=_COLD_CHAIN, network="scale_adapted_l2e_network"
    ),
    ImageMethod(
        *("CyclicalScaleAdaptedL2E", builders.cyclical_scale_adapted_l2e, 0.001),
        tunes=(*_COLD, "exploration_ratio"),
        network="scale_adapted_l2e_network",
        cyclical=True,
    ),
    ImageMethod("L2EPaper", builders.l2e_paper, 0.02, tunes=_COLD_CHAIN, network="l2e_paper_network"),
    # Its Hessian-vector product takes a second gradient at each step.
    ImageMethod(
        "KineticL2E", builders.kinetic_l2e, 0.05, tunes=_COLD_CHAIN, network="kinetic_l2e_network", gradients_per_step=2
    ),
    ImageMethod("MetaSGMCMC", builders.meta_sgmcmc, 0.05, tunes=_COLD_CHAIN, network="meta_sgmcmc_network"),
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
        """The same for people: momentum decay a, temperature T, an optimizer's weight decay λ/N on the mean loss."""
        shown = {name: value / num_data if name == "prior_precision" else value for name, value in self.also}
        return ", ".join(f"{SHORT_NAMES[name]} {value:.3g}" for name, value in shown.items())


#: What tables call the settings that are tuned.
SHORT_NAMES = {
    "momentum_decay": "a",
    "temperature": "T",
    "exploration_ratio": "exploration",
    "burn_in": "burn-in",
    "final_lr": "final lr",
    "prior_precision": "decay",
}


def candidates(
    method: ImageMethod,
    tries: int,
    rates: int,
    alternatives: Mapping[str, Sequence[float]],
    lr: float | None = None,
) -> list[Setting]:
    """`tries` settings, of learning rates around ``lr``, by default the method's own, and of what else it tunes.

    There are `rates` learning rates, or as many as it takes to have so many settings. Each gets as many of the
    combinations of the other values as all, up to one, and each combination stands equally often, up to one.
    """
    tuned = [name for name in method.tunes if name in alternatives]
    others = [tuple(zip(tuned, each)) for each in product(*(alternatives[name] for name in tuned))]
    lr = method.lr if lr is None else lr
    learning_rates = rates_around(lr, max(min(rates, tries), -(-tries // len(others))))
    # The nearest come first where not all rates get equally many.
    learning_rates.sort(key=lambda each: abs(math.log(each / lr)))
    order = random.Random(0)  # the same for every method
    uses = dict.fromkeys(others, 0)
    found = []
    for number, rate in enumerate(learning_rates):
        share = tries // len(learning_rates) + (number < tries % len(learning_rates))
        for also in sorted(others, key=lambda each: (uses[each], order.random()))[:share]:
            uses[also] += 1
            found.append(Setting(rate, also))
    return sorted(found)


def proposal(tuning: Tuning[Setting, Any], alternatives: Mapping[str, Sequence[float]]) -> Setting:
    """What to try next: near the best setting so far, what has not been tried.

    First the learning rate beyond the edge of those tried, if the best is there; then the rates beside it; then another
    value of each other setting, nearest first; then ever more distant rates, of which there is no end.
    """
    best = tuning.chosen
    rates = [setting.lr for setting in tuning.trials]
    near = [replace(best, lr=next_of_series(rates, side)) for side in tuning.edges()]
    near += [replace(best, lr=next_of_series([best.lr], side)) for side in (-1, 1)]
    for index, (name, value) in enumerate(best.also):
        values = sorted(alternatives[name])
        place = values.index(value)
        for other in sorted(values, key=lambda each: abs(values.index(each) - place)):
            near.append(replace(best, also=(*best.also[:index], (name, other), *best.also[index + 1 :])))
    outer = [best.lr, best.lr]
    while all(setting in tuning.trials for setting in near):
        outer = [next_of_series([outer[0]], -1), next_of_series([outer[1]], 1)]
        near = [replace(best, lr=lr) for lr in outer]
    return next(setting for setting in near if setting not in tuning.trials)
