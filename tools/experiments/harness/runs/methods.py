"""The methods that experiments on networks compare: one table, a row a method."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import torch

from experiments.harness.methods import Method, by_name
from experiments.harness.runs.muon import Muon, Shampoo
from experiments.harness.runs.settings import Settings
from experiments.harness.tuning import Choice, Tuning, next_of_series, rates_around
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
    CyclicalSchedule,
    CyclicalSGMCMC,
    EntropyMCMC,
    KineticL2E,
    MetaSGMCMC,
    WhitenedSGHMC,
)
from learned_samplers.approximations import IVON
from learned_samplers.classical.warmup import LEAST_BUDGET, rate_of, warmup_of
from learned_samplers.learned import weights
from learned_samplers.learned.features import feature_set_named

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What a method's optimizer or sampler is made for: settings, learning rate, N, steps (HMC: trajectories), and the
    name of a learned sampler's weights."""

    settings: Settings
    lr: float
    num_data: int
    steps: int
    network: str | None = None

    def burn_in(self, share: float = 1.0) -> int:
        """Steps before the first sample, or so large a share of them, which must not be none."""
        return self._some(int(self.settings.burn_in * self.steps * share), f"burn_in={self.settings.burn_in}")

    @property
    def cycle_length(self) -> int:
        """Steps of a cycle."""
        if self.steps < self.settings.cycles:
            raise ValueError(f"cycles={self.settings.cycles} exceeds the budget of {self.steps} steps")
        return self.steps // self.settings.cycles

    def exploration(self) -> int:
        """Steps of a cycle that explore."""
        ratio = self.settings.exploration_ratio
        return self._some(int(ratio * self.cycle_length), f"exploration_ratio={ratio}")

    def _some(self, steps: int, what: str) -> int:
        if not steps:
            raise ValueError(f"{what} of {self.steps} steps leaves none in which to warm up")
        return steps


Build = Callable[[Groups, Plan], Any]


def optimizer(make: Any, **own: Any) -> Build:
    """Builds ``make(groups, lr, weight_decay=λ/N, **own)``: the maximum a posteriori of what the samplers sample.

    Args:
        own: further arguments, as functions of the `Plan`.
    """

    def build(groups: Groups, plan: Plan) -> Any:
        decay = plan.settings.prior_precision / plan.num_data
        return make(groups, plan.lr, weight_decay=decay, **{name: value(plan) for name, value in own.items()})

    return build


def sampler(make: Any, **own: Any) -> Build:
    """Builds ``make(groups, lr, num_data, temperature=T, prior_precision=λ, **own)``, ``own`` as of `optimizer`."""

    def build(groups: Groups, plan: Plan) -> Any:
        s = plan.settings
        posterior = {"temperature": s.temperature, "prior_precision": s.prior_precision}
        return make(groups, plan.lr, plan.num_data, **posterior, **{name: value(plan) for name, value in own.items()})

    return build


# Further arguments, by the plan of a run.
_MOMENTUM: Any = {"momentum": lambda plan: 1 - plan.settings.momentum_decay}
_FRICTION: Any = {"momentum_decay": lambda plan: plan.settings.momentum_decay}
_NETWORK: Any = {"network": lambda plan: plan.network}
_CYCLES: Any = {"cycle_length": lambda plan: plan.cycle_length}
_EXPLORATION: Any = {"exploration_ratio": lambda plan: plan.settings.exploration_ratio}


def _total_steps(plan: Plan) -> int | None:
    """A network that sees how much of its run is over is told; the schedules of other methods know it too."""
    assert plan.network is not None
    feature_set = weights.load_card(weights.find(plan.network))["feature_set"]
    return plan.steps if feature_set_named(feature_set).sees_progress else None


Averaging = Literal["none", "ensemble", "snapshots", "moving", "gaussian", "samples"]


@dataclass(frozen=True)
class RunMethod(Method):
    """A method; ``build`` is (parameter groups, `Plan`) → optimizer or sampler.

    Attributes:
        averaging: what of a run predicts. "none": its last weights, with the rate going to zero along half a cosine;
            "ensemble": those of several such runs, which share the budget; "snapshots": the weights when a sampler
            would give its samples; "moving": their moving average; "gaussian": draws from the Gaussian that the run has
            fitted; "samples": a chain's.
        tunes: the settings of which several values are tried beside the learning rates, where there are several.
        network: of a learned sampler, the weights that are its usual ones; ``lr`` then stands for a card that
            recommends none.
        own_rate: whether the learning rate is another one than that of these weights, which stays as it is.
        full_batch: whether its gradients are over the whole training set.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: whether samples are taken in the sampling phases of cycles, the method's own or `CyclicalSchedule`'s.
        as_it_comes: whether nothing of it is tuned; see `settings`.
    """

    averaging: Averaging = "samples"
    tunes: tuple[str, ...] = ()
    network: str | None = None
    own_rate: bool = False
    full_batch: bool = False
    gradients_per_step: int = 1
    cyclical: bool = False
    as_it_comes: bool = False

    def plan(self, settings: Settings, lr: float, num_data: int, steps: int) -> Plan:
        """What `build` takes."""
        return Plan(settings, lr, num_data, steps, self.weights_name(settings))

    def settings(self, settings: Settings, num_data: int) -> Settings:
        """Those of its run: of a method as it comes burn-in is the warm-up of ``AdaptedSGHMC(total_steps=)``.

        Raises:
            ValueError: the budget is too small for such a warm-up.
        """
        if not self.as_it_comes:
            return settings
        if (steps := settings.budget(num_data)) < LEAST_BUDGET:
            raise ValueError(f"{self.name} needs a budget of at least {LEAST_BUDGET} gradients, got {steps}")
        return replace(settings, burn_in=warmup_of(steps, num_data) / steps)

    def weights_name(self, settings: Settings) -> str | None:
        """The name of a learned sampler's weights, None of other methods."""
        return None if self.network is None else settings.named_networks.get(self.name.lower(), self.network)

    def card(self, settings: Settings) -> dict[str, Any] | None:
        """The card of a learned sampler's weights, None of other methods.

        Raises:
            ValueError, FileNotFoundError: there are no such weights.
        """
        if (name := self.weights_name(settings)) is None:
            return None
        try:
            return weights.load_card(weights.find(name))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"networks: {name!r}, which {self.name} needs: {error}") from error

    def rate(self, settings: Settings) -> float:
        """The learning rate in the middle of those that are tried: that of the card, where it recommends one."""
        card = self.card(settings)
        return self.lr if card is None or self.own_rate else card["defaults"].get("lr", self.lr)

    def rate_at(self, settings: Settings, num_data: int) -> float:
        """The same, but of a method as it comes that of its budget."""
        if not self.as_it_comes:
            return self.rate(settings)
        return rate_of(settings.budget(num_data), num_data, settings.temperature)

    def schedule(self, optimizer: torch.optim.Optimizer, plan: Plan) -> CyclicalSchedule | None:
        """The cyclical schedule of a sampler that has no cycles of its own; None where none is wanted."""
        if not self.cyclical or isinstance(optimizer, (CyclicalSGMCMC, AdaptedSGHMC)):
            return None
        return CyclicalSchedule(optimizer, plan.cycle_length, plan.settings.exploration_ratio)  # type: ignore[arg-type]


# What is tuned beside the learning rate.
_DECAY, _DECAY_MOMENTUM = ("prior_precision",), ("prior_precision", "momentum_decay")
_WHEN = ("burn_in", "final_lr")  # when samples begin, and where the rate ends
_CHAIN, _CHAIN_MOMENTUM = ("temperature", *_WHEN), ("temperature", "momentum_decay", *_WHEN)
_CYCLICAL, _CYCLICAL_MOMENTUM = (("temperature", "exploration_ratio", *more) for more in ((), ("momentum_decay",)))


def _with_averages(name: str, build: Build, lr: float, tunes: tuple[str, ...], ensemble: str) -> list[RunMethod]:
    """An optimizer's rows: its last weights, an ensemble, the snapshots of its trajectory, and their moving average."""
    return [
        RunMethod(name, build, lr, "none", tunes),
        RunMethod(ensemble, build, lr, "ensemble", tunes),
        RunMethod(f"{name}Average", build, lr, "snapshots", (*tunes, *_WHEN)),
        RunMethod(f"{name}EMA", build, lr, "moving", (*tunes, "final_lr")),
    ]


def soap(params: Groups, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """SOAP of the package pytorch_optimizer, which no extra installs; its decay is decoupled from the gradient."""
    from pytorch_optimizer import SOAP

    return SOAP(params, lr=lr, weight_decay=weight_decay)


_SGD, _ADAM = optimizer(torch.optim.SGD, **_MOMENTUM), optimizer(torch.optim.Adam)
# The memory of IVON's curvature must fit into the run; 0.99999 is the paper's, of 200 epochs.
_IVON = sampler(IVON, betas=lambda plan: (0.9, min(0.99999, max(0.9, 1 - 10 / plan.steps))), hess_init=lambda plan: 0.5)
# The mass is adapted for the first half of burn-in and frozen for the other.
_ADAPTED = sampler(AdaptedSGHMC, warmup_steps=lambda plan: plan.burn_in(0.5), **_FRICTION)
# Warmed up by another rule, it explores and settles in burn-in, and has a matrix mass.
_ADAPTED_WHITENED = sampler(
    AdaptedSGHMC, warmup_steps=lambda plan: plan.burn_in(), warmup=lambda plan: partial(WhitenedSGHMC, lr=0.002)
)
_CYCLICAL_SGMCMC = sampler(CyclicalSGMCMC, **_CYCLES, **_EXPLORATION, **_FRICTION)
# With minibatches; of pSMILE the preconditioner alone, as its control of the step size takes two gradients a step.
_MCLMC = sampler(MCLMC, preconditioner=lambda plan: "gradient_noise", **_FRICTION)
_BUDGET: Any = {"total_steps": lambda plan: plan.steps}
# The step size is adapted during burn-in.
_HMC = sampler(
    HMC,
    leapfrog_steps=lambda plan: plan.settings.leapfrog_steps,
    adapt_steps=lambda plan: int(plan.settings.burn_in * plan.steps),
)
# Learned samplers keep the momentum decay of their cards.
_L2E = sampler(L2E, total_steps=_total_steps, **_NETWORK)
_WARM_L2E: Any = {"warmup": lambda plan: partial(L2E, network=plan.network)}
_ADAPTED_L2E = sampler(AdaptedSGHMC, warmup_steps=lambda plan: plan.burn_in(), **_WARM_L2E)
_CYCLICAL_ADAPTED_L2E = sampler(AdaptedSGHMC, warmup_steps=lambda plan: plan.exploration(), **_CYCLES, **_WARM_L2E)
_L2E_PAPER = sampler(L2E, form=lambda plan: "paper", **_NETWORK)
_KINETIC, _META = sampler(KineticL2E, **_NETWORK), sampler(MetaSGMCMC, **_NETWORK)

#: In the order in which they are offered.
METHODS: dict[str, RunMethod] = by_name(
    *_with_averages("SGD", _SGD, 0.05, _DECAY_MOMENTUM, "DeepEnsemble"),
    *_with_averages("Adam", _ADAM, 3e-3, _DECAY, "AdamEnsemble"),
    *_with_averages("Muon", optimizer(Muon), 0.01, _DECAY, "MuonEnsemble"),
    *_with_averages("Shampoo", optimizer(Shampoo), 0.01, _DECAY, "ShampooEnsemble"),
    *_with_averages("SOAP", optimizer(soap), 3e-3, _DECAY, "SOAPEnsemble")[2:],
    RunMethod("SWAG", _SGD, 0.05, "gaussian", (*_DECAY_MOMENTUM, *_WHEN)),
    RunMethod("IVON", _IVON, 0.2, "gaussian", ("temperature",)),
    RunMethod("SGLD", sampler(SGLD), 0.1, tunes=_CHAIN),
    RunMethod("SGLRW", sampler(SGLRW), 0.1, tunes=_CHAIN),
    # The eps with which the tables were made; the default is larger.
    RunMethod("PSGLD", sampler(PSGLD, eps=lambda plan: 1e-8), 3e-3, tunes=_CHAIN),
    RunMethod("SGHMC", sampler(SGHMC, **_FRICTION), 0.05, tunes=_CHAIN_MOMENTUM),
    RunMethod("BAOA", sampler(BAOA, **_FRICTION), 0.05, tunes=_CHAIN_MOMENTUM),
    RunMethod("AdaptedSGHMC", _ADAPTED, 3e-3, tunes=_CHAIN_MOMENTUM),
    RunMethod("WhitenedSGHMC", sampler(WhitenedSGHMC, **_FRICTION), 5e-4, tunes=_CHAIN_MOMENTUM),
    RunMethod("AdaptedWhitenedSGHMC", _ADAPTED_WHITENED, 0.003, tunes=_CHAIN),
    RunMethod("SGNHT", sampler(SGNHT, **_FRICTION), 0.05, tunes=_CHAIN_MOMENTUM),
    RunMethod("CyclicalSGMCMC", _CYCLICAL_SGMCMC, 0.07, tunes=_CYCLICAL_MOMENTUM, cyclical=True),
    RunMethod("EntropyMCMC", sampler(EntropyMCMC), 0.1, tunes=_CHAIN),
    RunMethod("MCLMC", _MCLMC, 0.05, tunes=_CHAIN_MOMENTUM),
    RunMethod("HMC", _HMC, 0.01, tunes=("temperature",), full_batch=True),
    RunMethod("L2E", _L2E, 0.002, tunes=_CHAIN, network="l2e-gated"),
    RunMethod("CyclicalL2E", _L2E, 0.002, tunes=_CYCLICAL, network="l2e-gated", cyclical=True),
    RunMethod("AdaptedL2E", _ADAPTED_L2E, 0.003, tunes=_CHAIN, network="l2e-gated", own_rate=True),
    RunMethod(
        "CyclicalAdaptedL2E",
        _CYCLICAL_ADAPTED_L2E,
        0.003,
        tunes=_CYCLICAL,
        network="l2e-gated",
        own_rate=True,
        cyclical=True,
    ),
    # As a user takes them who gives num_data, a prior and a budget.
    RunMethod("AdaptedAsItComes", sampler(AdaptedSGHMC, **_BUDGET), 0.003, as_it_comes=True),
    RunMethod(
        "AdaptedL2EAsItComes",
        sampler(AdaptedSGHMC, **_BUDGET, **_WARM_L2E),
        0.003,
        network="l2e-gated",
        own_rate=True,
        as_it_comes=True,
    ),
    RunMethod("L2EPaper", _L2E_PAPER, 0.02, tunes=_CHAIN, network="l2e-paper"),
    # Its Hessian-vector product takes a second gradient at each step.
    RunMethod("KineticL2E", _KINETIC, 0.05, tunes=_CHAIN, network="kinetic-l2e", gradients_per_step=2),
    RunMethod("MetaSGMCMC", _META, 0.05, tunes=_CHAIN, network="meta-sgmcmc"),
)

#: What tables call the settings that are tuned.
SHORT_NAMES = {
    "momentum_decay": "a",
    "temperature": "T",
    "exploration_ratio": "exploration",
    "burn_in": "burn-in",
    "final_lr": "final lr",
    "prior_precision": "decay",
}


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """What is tuned of a method: its learning rate, and the settings that `RunMethod.tunes` names."""

    also: tuple[tuple[str, float], ...] = ()

    @property
    def numbers(self) -> dict[str, float]:
        """All of it by name."""
        return {"lr": self.lr, **dict(self.also)}

    @property
    def variant(self) -> str:
        """What else than the learning rate was tuned, for the name of a run's files."""
        return "_".join(f"{name[0]}{value:g}" for name, value in self.also)

    def text(self, num_data: int) -> str:
        """The same for people: momentum decay a, temperature T, an optimizer's weight decay λ/N on the mean loss."""
        shown = {name: value / num_data if name == "prior_precision" else value for name, value in self.also}
        return ", ".join(f"{SHORT_NAMES[name]} {value:.3g}" for name, value in shown.items())


def candidates(
    method: RunMethod, tries: int, rates: int, alternatives: Mapping[str, Sequence[float]], lr: float | None = None
) -> list[Setting]:
    """`tries` settings, of learning rates around ``lr``, by default the method's own, and of what else it tunes.

    There are `rates` learning rates, or as many as it takes to have so many settings. Each gets as many of the
    combinations of the other values as all, up to one, and each combination stands equally often, up to one. A method
    that is taken as it comes has a single setting.
    """
    if method.as_it_comes:
        return [Setting(method.lr if lr is None else lr)]
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
        values = sorted({*alternatives.get(name, ()), value})
        place = values.index(value)
        for other in sorted(values, key=lambda each: abs(values.index(each) - place)):
            near.append(replace(best, also=(*best.also[:index], (name, other), *best.also[index + 1 :])))
    outer = [best.lr, best.lr]
    while all(setting in tuning.trials for setting in near):
        outer = [next_of_series([outer[0]], -1), next_of_series([outer[1]], 1)]
        near = [replace(best, lr=lr) for lr in outer]
    return next(setting for setting in near if setting not in tuning.trials)
