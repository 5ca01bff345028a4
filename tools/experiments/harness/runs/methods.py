"""The methods that experiments on networks compare: a row each; those of samplers are made from the one table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from experiments.harness.runs.muon import Muon, Shampoo
from experiments.harness.runs.settings import Settings
from learned_samplers import L2E, AdaptedSGHMC, CyclicalSchedule, CyclicalSGMCMC, WhitenedSGHMC
from learned_samplers.classical.budget import LEAST_BUDGET, rate_of, warmup_of
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.table import SAMPLERS

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """Argument of `build`: settings, learning rate, N, steps (HMC: trajectories), and a learned sampler's weights."""

    settings: Settings
    lr: float
    num_data: int
    steps: int
    network: str | None = None

    def burn_in(self, share: float = 1.0) -> int:
        """Steps before the first sample, or so large a share of them, which must not be none."""
        return self._positive(int(self.settings.burn_in * self.steps * share), f"burn_in={self.settings.burn_in}")

    @property
    def cycle_length(self) -> int:
        """Steps of a cycle."""
        if self.steps < self.settings.cycles:
            raise ValueError(f"cycles={self.settings.cycles} exceeds the budget of {self.steps} steps")
        return self.steps // self.settings.cycles

    def exploration(self) -> int:
        """Steps of a cycle that explore."""
        ratio = self.settings.exploration_ratio
        return self._positive(int(ratio * self.cycle_length), f"exploration_ratio={ratio}")

    def total_steps(self) -> int | None:
        """Length of the run for a network that sees how much of it is over; the schedules of others know it too."""
        assert self.network is not None
        feature_set = weights.load_card(weights.find(self.network))["feature_set"]
        return self.steps if feature_set_named(feature_set).matrix else None

    def _positive(self, steps: int, what: str) -> int:
        if not steps:
            raise ValueError(f"{what} of {self.steps} steps leaves none in which to warm up")
        return steps


Build = Callable[[Groups, Plan], torch.optim.Optimizer]
Further = Callable[[Plan], Any]


def optimizer(make: Callable[..., torch.optim.Optimizer], **further: Further) -> Build:
    """Builder of ``make(groups, lr, weight_decay=λ/N, **further)``: the mode of the posterior that samplers sample."""

    def build(groups: Groups, plan: Plan) -> torch.optim.Optimizer:
        decay = plan.settings.prior_precision / plan.num_data
        return make(groups, plan.lr, weight_decay=decay, **{name: value(plan) for name, value in further.items()})

    return build


def _constant(value: Any, plan: Plan) -> Any:
    return value


def sampler(name: str, **further: Further) -> Build:
    """Builder of a sampler of the table with T, λ and further arguments, functions of the `Plan`."""

    def build(groups: Groups, plan: Plan) -> torch.optim.Optimizer:
        s = plan.settings
        arguments: dict[str, Any] = {"temperature": s.temperature, "prior_precision": s.prior_precision}
        arguments |= {key: value(plan) for key, value in further.items()}
        make: Callable[..., torch.optim.Optimizer] = SAMPLERS[name].sampler
        return make(groups, plan.lr, plan.num_data, **arguments)

    return build


Averaging = Literal["none", "ensemble", "chains", "snapshots", "moving", "gaussian", "samples"]


@dataclass(frozen=True)
class RunMethod:
    """A method.

    Attributes:
        build: (parameter groups, `Plan`) → optimizer or sampler.
        lr: learning rate, and centre of the grid if it is tuned; for a card that recommends none, of a learned sampler.
        averaging: the part of a run that predicts. "none": its last weights, with the rate going to zero along half a
            cosine; "ensemble": those of several such runs, which share the budget; "chains": the samples of several
            chains, which share it; "snapshots": the weights when a sampler would give its samples; "moving": their
            moving average; "gaussian": draws from the Gaussian that the run has fitted; "samples": a chain's.
        tunes: settings of which several values are tried beside the learning rates, if there are several.
        network: the usual weights of a learned sampler.
        own_rate: the learning rate is another one than that of these weights, which stays as it is.
        full_batch: its gradients are over the whole training set.
        gradients_per_step: gradient evaluations that one step costs.
        cyclical: samples are taken in the sampling phases of cycles, the method's own or `CyclicalSchedule`'s.
        as_it_comes: nothing of it is tuned; see `settings`.
        planned: it warms up as long as ``AdaptedSGHMC(total_steps=)`` does, and burn-in is not shorter.
        name: in the table.
    """

    build: Build
    lr: float
    averaging: Averaging = "samples"
    tunes: tuple[str, ...] = ()
    network: str | None = None
    own_rate: bool = False
    full_batch: bool = False
    gradients_per_step: int = 1
    cyclical: bool = False
    as_it_comes: bool = False
    planned: bool = False
    name: str = ""

    def plan(self, settings: Settings, lr: float, num_data: int, steps: int) -> Plan:
        """Argument of `build`."""
        return Plan(settings, lr, num_data, steps, self.weights_name(settings))

    def settings(self, settings: Settings, num_data: int) -> Settings:
        """Settings of its run: of a method as it comes burn-in is the warm-up of ``AdaptedSGHMC(total_steps=)``."""
        if not (self.as_it_comes or self.planned):
            return settings
        if (steps := self._chain_steps(settings, num_data)) < LEAST_BUDGET:
            raise ValueError(f"{self.name} needs a chain of at least {LEAST_BUDGET} gradients, got {steps}")
        share = warmup_of(steps, num_data) / steps
        return replace(settings, burn_in=max(share, settings.burn_in) if self.planned else share)

    def _chain_steps(self, settings: Settings, num_data: int) -> int:
        """Steps of the run, or of each of its chains."""
        return settings.budget(num_data) // (settings.ensemble_size if self.averaging == "chains" else 1)

    def weights_name(self, settings: Settings) -> str | None:
        """Name of a learned sampler's weights, None of other methods."""
        return None if self.network is None else settings.named_networks.get(self.name.lower(), self.network)

    def card(self, settings: Settings) -> dict[str, Any] | None:
        """Card of a learned sampler's weights, None of other methods."""
        if (name := self.weights_name(settings)) is None:
            return None
        try:
            return weights.load_card(weights.find(name))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"networks: {name!r}, which {self.name} needs: {error}") from error

    def rate(self, settings: Settings, num_data: int | None = None) -> float:
        """Learning rate in the middle of those that are tried: that of the card, or of a method as it comes that of its
        budget with ``num_data``."""
        if self.as_it_comes and num_data is not None:
            shallow = settings.model == "mlp" and len(settings.hidden or (100, 100)) < 2
            return rate_of(self._chain_steps(settings, num_data), num_data, settings.temperature, shallow=shallow)
        card = self.card(settings)
        return self.lr if card is None or self.own_rate else card["defaults"].get("lr", self.lr)

    def schedule(self, optimizer: torch.optim.Optimizer, plan: Plan) -> CyclicalSchedule | None:
        """Cyclical schedule of a sampler that has no cycles of its own; None if none is wanted."""
        if not self.cyclical or isinstance(optimizer, (CyclicalSGMCMC, AdaptedSGHMC)):
            return None
        return CyclicalSchedule(optimizer, plan.cycle_length, plan.settings.exploration_ratio)  # type: ignore[arg-type]


# Settings that are tuned beside the learning rate: when samples begin, and where the rate ends, among them.
_DECAY, _DECAY_MOMENTUM = ("prior_precision",), ("prior_precision", "momentum_decay")
_WHEN = ("burn_in", "final_lr")
_CHAIN, _CHAIN_MOMENTUM = ("temperature", *_WHEN), ("temperature", "momentum_decay", *_WHEN)
_CYCLICAL = ("temperature", "exploration_ratio")


def _with_averages(name: str, build: Build, lr: float, tunes: tuple[str, ...], ensemble: str) -> dict[str, RunMethod]:
    """Rows of an optimizer: its last weights, an ensemble, snapshots of its trajectory, and their moving average."""
    return {
        name: RunMethod(build, lr, "none", tunes),
        ensemble: RunMethod(build, lr, "ensemble", tunes),
        f"{name}Average": RunMethod(build, lr, "snapshots", (*tunes, *_WHEN)),
        f"{name}EMA": RunMethod(build, lr, "moving", (*tunes, "final_lr")),
    }


def soap(params: Groups, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """SOAP of the package pytorch_optimizer, which no extra installs; its decay is decoupled from the gradient."""
    from pytorch_optimizer import SOAP

    return SOAP(params, lr=lr, weight_decay=weight_decay)


_FRICTION: dict[str, Further] = {"momentum_decay": lambda plan: plan.settings.momentum_decay}
_NETWORK: dict[str, Further] = {"network": lambda plan: plan.network}
_CYCLES: dict[str, Further] = {"cycle_length": lambda plan: plan.cycle_length}
_BUDGET: dict[str, Further] = {"total_steps": lambda plan: plan.steps}
_EXPLORING: dict[str, Further] = {"exploration_ratio": lambda plan: plan.settings.exploration_ratio}
_WARM_L2E: dict[str, Further] = {"warmup": lambda plan: partial(L2E, network=plan.network)}
_WARM: dict[str, Further] = {"warmup_steps": lambda plan: plan.burn_in()}
# At two thirds of the chain's rate, so that it is tuned with that.
_WARM_WHITENED: dict[str, Further] = {"warmup": lambda plan: partial(WhitenedSGHMC, lr=plan.lr / 1.5)}
_SGD = optimizer(torch.optim.SGD, momentum=lambda plan: 1 - plan.settings.momentum_decay)
_L2E = sampler("L2E", total_steps=lambda plan: plan.total_steps(), **_NETWORK)
_L2E_WEIGHTS: dict[str, Any] = {"network": "l2e-gated"}
_L2E_WARMS: dict[str, Any] = {**_L2E_WEIGHTS, "own_rate": True}


def _chain(name: str, lr: float, **further: Further) -> RunMethod:
    """Row of a sampler with momentum."""
    return RunMethod(sampler(name, **_FRICTION, **further), lr, tunes=_CHAIN_MOMENTUM)


_ROWS: dict[str, RunMethod] = {
    **_with_averages("SGD", _SGD, 0.05, _DECAY_MOMENTUM, "DeepEnsemble"),
    **_with_averages("Adam", optimizer(torch.optim.Adam), 3e-3, _DECAY, "AdamEnsemble"),
    **_with_averages("Muon", optimizer(Muon), 0.01, _DECAY, "MuonEnsemble"),
    **_with_averages("Shampoo", optimizer(Shampoo), 0.01, _DECAY, "ShampooEnsemble"),
    **_with_averages("SOAP", optimizer(soap), 3e-3, _DECAY, "SOAPEnsemble"),
    "SWAG": RunMethod(_SGD, 0.05, "gaussian", (*_DECAY_MOMENTUM, *_WHEN)),
    # The memory of IVON's curvature must fit into the run; 0.99999 is the paper's, of 200 epochs.
    "IVON": RunMethod(
        sampler("IVON", betas=lambda p: (0.9, min(0.99999, max(0.9, 1 - 10 / p.steps))), hess_init=lambda p: 0.5),
        *(0.2, "gaussian", ("temperature",)),
    ),
    "SGLD": RunMethod(sampler("SGLD"), 0.1, tunes=_CHAIN),
    "SGLRW": RunMethod(sampler("SGLRW"), 0.1, tunes=_CHAIN),
    # The eps with which the tables were made; the default is larger.
    "PSGLD": RunMethod(sampler("PSGLD", eps=lambda plan: 1e-8), 3e-3, tunes=_CHAIN),
    "SGHMC": _chain("SGHMC", 0.05),
    # The mass is adapted for the first half of burn-in and frozen for the other.
    "AdaptedSGHMC": _chain("AdaptedSGHMC", 3e-3, warmup_steps=lambda plan: plan.burn_in(0.5)),
    "WhitenedSGHMC": _chain("WhitenedSGHMC", 5e-4),
    # Warmed up by another rule, it explores and settles in burn-in, and has a matrix mass.
    "AdaptedWhitenedSGHMC": RunMethod(sampler("AdaptedSGHMC", **_WARM, **_WARM_WHITENED), 0.003, tunes=_CHAIN),
    # The same as a plan for the whole budget.
    "PlannedWhitenedSGHMC": RunMethod(sampler("AdaptedSGHMC", **_BUDGET, **_WARM_WHITENED), 0.003, planned=True),
    "CyclicalSGMCMC": replace(
        _chain("CyclicalSGMCMC", 0.07, **_CYCLES, **_EXPLORING), tunes=(*_CYCLICAL, "momentum_decay"), cyclical=True
    ),
    "EntropyMCMC": RunMethod(sampler("EntropyMCMC"), 0.1, tunes=_CHAIN),
    # With minibatches; of pSMILE the preconditioner alone, as its control of the step size takes two gradients a step.
    "MCLMC": _chain("MCLMC", 0.05, preconditioner=lambda plan: "gradient_noise"),
    # The step size is adapted during burn-in.
    "HMC": RunMethod(
        sampler(
            "HMC",
            leapfrog_steps=lambda plan: plan.settings.leapfrog_steps,
            adapt_steps=lambda plan: int(plan.settings.burn_in * plan.steps),
        ),
        *(0.01, "samples", ("temperature",)),
        full_batch=True,
    ),
    # Learned samplers keep the momentum decay of their cards.
    "L2E": RunMethod(_L2E, 0.002, tunes=_CHAIN, **_L2E_WEIGHTS),
    "CyclicalL2E": RunMethod(_L2E, 0.002, tunes=_CYCLICAL, cyclical=True, **_L2E_WEIGHTS),
    "AdaptedL2E": RunMethod(sampler("AdaptedSGHMC", **_WARM, **_WARM_L2E), 0.003, tunes=_CHAIN, **_L2E_WARMS),
    "CyclicalAdaptedL2E": RunMethod(
        sampler("AdaptedSGHMC", warmup_steps=lambda plan: plan.exploration(), **_CYCLES, **_WARM_L2E),
        0.003,
        tunes=_CYCLICAL,
        cyclical=True,
        **_L2E_WARMS,
    ),
    # As a user takes them who gives num_data, a prior and a budget.
    "AdaptedAsItComes": RunMethod(sampler("AdaptedSGHMC", **_BUDGET), 0.003, as_it_comes=True),
    "AdaptedL2EAsItComes": RunMethod(
        sampler("AdaptedSGHMC", **_BUDGET, **_WARM_L2E), 0.003, as_it_comes=True, **_L2E_WARMS
    ),
    # Chains as they come, one after the other, each with its warm-up, in the place of one.
    "AdaptedL2EChains": RunMethod(
        sampler("AdaptedSGHMC", **_BUDGET, **_WARM_L2E), 0.003, "chains", as_it_comes=True, **_L2E_WARMS
    ),
    "L2EPaper": RunMethod(
        sampler("L2E", form=lambda plan: "paper", **_NETWORK), 0.02, tunes=_CHAIN, network="l2e-paper"
    ),
    # Its Hessian-vector product takes a second gradient at each step.
    "KineticL2E": RunMethod(
        sampler("KineticL2E", **_NETWORK), 0.05, tunes=_CHAIN, network="kinetic-l2e", gradients_per_step=2
    ),
    "MetaSGMCMC": RunMethod(sampler("MetaSGMCMC", **_NETWORK), 0.05, tunes=_CHAIN, network="meta-sgmcmc"),
}
# The other samplers of the table, those that a user has registered among them, with their settings of the table.
for _name, _entry in SAMPLERS.items():
    if _name not in _ROWS and not _entry.needs_closure:
        _settings: dict[str, Further] = {key: partial(_constant, value) for key, value in _entry.settings.items()}
        _tunes = _CHAIN_MOMENTUM if "momentum_decay" in inspect.signature(_entry.sampler).parameters else _CHAIN
        _ROWS[_name] = RunMethod(
            sampler(_name, **_settings, **(_FRICTION if "momentum_decay" in _tunes else {})), 0.05, tunes=_tunes
        )
#: Methods in the order in which they are offered.
METHODS: dict[str, RunMethod] = {name: replace(method, name=name) for name, method in _ROWS.items()}


@dataclass(frozen=True)
class Row:
    """Row of a comparison: a method, and the part of it that is given rather than tuned.

    Attributes:
        method: its name in `METHODS`.
        lr: learning rate that is given.
        rate_of: the row whose chosen learning rate it takes.
        times: its budget, in that of the comparison.
        seeds: number of its seeds, if that is not the comparison's.
        changes: settings in which it differs from the comparison.
    """

    method: str
    lr: float | None = None
    rate_of: str = ""
    times: int = 1
    seeds: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, settings: Settings) -> Settings:
        """Settings of its runs."""
        steps = None if settings.steps is None else self.times * settings.steps
        return replace(settings, **{"steps": steps, **self.changes})
