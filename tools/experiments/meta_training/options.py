"""The options of `meta_train.py`: those of the sampler and of the estimator that are named, and no others."""

from __future__ import annotations

import argparse
import inspect
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.harness.options import FLAGS, at_least, one_of
from learned_samplers.base import validation
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from meta_tasks.estimators import AntitheticES, Estimator, NoiseReuseES, Shaping, TruncatedBackpropagation
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.learned import LEARNED_RULES, NetworkRule
from meta_tasks.rules.linear import L2ELinearRule
from meta_tasks.tasks import FAMILIES, GaussianFamily, ImageTaskFamily, family_named
from meta_tasks.training import TrainerSettings


def check_positive(name: str, values: Sequence[float], most: float = math.inf) -> None:
    """Raise ValueError unless the option's values are finite, greater than 0 and at most ``most``."""
    for value in values:
        if not (0 < value <= most and math.isfinite(value)):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"{name} must be greater than 0{bound}, got {value}")


# ---------------------------------------------------------------- what is meta-trained


@dataclass(frozen=True)
class RuleOptions:
    """The network of the sampler."""

    # Widths of its hidden layers; by default the sampler's own. (Of MetaSGMCMC, of each of its two networks.)
    hidden: tuple[int, ...] | None = None

    def make(self, sampler: str, **settings: Any) -> NetworkRule:
        """The rule; settings that are None are the sampler's own."""
        check_positive("hidden", self.hidden or ())
        chosen = REGISTRY[sampler].settings_class.given(**settings)
        return LEARNED_RULES[sampler](hidden=self.hidden, settings=chosen, **self._start())

    def _start(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class StartOptions(RuleOptions):
    """The network of the sampler, and where it starts."""

    # Start at β = −gain·feature instead of at SGHMC (residual form) or at random (paper form).
    start_feature: str | None = None
    start_gain: float = 1.0  # Gain of --start-feature.
    # Start from a weight file of this sampler and form, for a second stage of training. The new network may have more
    # features and units; these start without effect.
    start_weights: Path | None = None
    # With a feature set that sees the progress of the run: share of the tasks in which it is told the number of steps.
    tell_horizon: float = 0.0

    def _start(self) -> dict[str, Any]:
        if self.start_feature is not None and self.start_weights is not None:
            raise ValueError(f"start_feature={self.start_feature} and start_weights={self.start_weights}: choose one")
        start = self.start_weights if self.start_feature is None else (self.start_feature, self.start_gain)
        return {"start": start, "tell_horizon": self.tell_horizon}


@dataclass(frozen=True)
class LinearOptions:
    """L2E that learns which features of a weight to move along, and a gate: a dozen or thirty numbers."""

    start_feature: str  # Feature to start at, β = −gain·feature.
    start_gain: float = 1.0  # Gain of --start-feature.
    start_weights: Path | None = None  # Start at weights that were learned so, from the same feature.
    # What a unit of the direction's numbers is worth beside the gate's. A larger one leaves the start sooner.
    direction_share: float = 0.3
    # With --normalise-output True: what each component of the direction loses after each iteration (try 0.01), so that
    # features whose meta-gradient is noise drop out of it.
    direction_sparsity: float = 0.0
    # Features that the direction leaves out, such as parameter: to go along the weight itself changes the prior, and
    # short runs do not show what that does to long ones.
    direction_without: tuple[str, ...] = ()
    # With a feature set that sees the progress of the run: share of the tasks in which it is told the number of steps.
    tell_horizon: float = 0.0

    def make(self, sampler: str, **settings: Any) -> NetworkRule:
        """The rule; settings that are None are L2E's own."""
        return L2ELinearRule(
            self.start_feature,
            self.start_gain,
            direction_share=self.direction_share,
            sparsity=self.direction_sparsity,
            without=self.direction_without,
            tell_horizon=self.tell_horizon,
            settings=L2ESettings.given(**settings),
            origin=self.start_weights,
        )


def rule_options(sampler: str, linear: bool) -> type[Any]:
    """The options of a sampler's rule, besides its settings."""
    if linear:
        if sampler != "L2E":
            raise ValueError(f"linear=True is for L2E, not for {sampler}")
        return LinearOptions
    return StartOptions if "start" in inspect.signature(LEARNED_RULES[sampler]).parameters else RuleOptions


def setting_options(sampler: str) -> type[Any]:
    """A dataclass of the sampler's settings that can be meta-trained with; None is the sampler's own default."""
    settings, made = REGISTRY[sampler].settings_class, []
    kinds = typing.get_type_hints(settings)
    for setting in fields(settings):
        name = setting.name
        if setting.metadata.get("in_card", True) and name not in LEARNED_RULES[sampler].fixed:
            doc = tyro.conf.arg(help=setting.metadata.get("doc") or "See the sampler.")
            made.append((name, Annotated[typing.Optional[kinds[name]], doc], field(default=None)))  # noqa: UP045
    options = make_dataclass("SettingOptions", made, frozen=True)
    options.__doc__ = f"Settings of {sampler}; None is its own default."
    return options


# ---------------------------------------------------------------- on what, and how


@dataclass(frozen=True)
class TaskOptions:
    """Tasks that it is trained on."""

    # Task family: paper for GPUs, paper_small for a CPU, cpu for small images, residual for more kinds of networks at
    # these, direction for the direction of a step alone (hard images, many of them), digits for a first try without
    # files.
    family: Annotated[str, one_of((*FAMILIES, "gaussians"))] = "digits"
    # Data sets of an image family, equally likely (a name may be given twice); by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Sides of an image family's images in pixels, equally likely; by default the family's own.
    sizes: tuple[int, ...] | None = None
    # Share of an image family's tasks that keep only some hundred or thousand images; by default the family's own.
    small_data_share: float | None = None
    small_data: tuple[int, int] | None = None  # Fewest and most images that such tasks keep; by default 200 and 2,000.
    # Labels that the tasks of an image family have; by default all of the data set's.
    labels: tuple[int, ...] | None = None
    lrs: tuple[float, ...] | None = None  # Learning rates that tasks are drawn with; by default the family's.
    # Momentum decays that tasks are drawn with; by default the family's. The card recommends the first.
    momentum_decays: tuple[float, ...] | None = None
    device: str = "cpu"  # Device of the tasks, such as cpu or cuda.
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None

    def make(self) -> ImageTaskFamily | GaussianFamily:
        """The task family."""
        check_positive("lrs", self.lrs or ())
        check_positive("momentum_decays", self.momentum_decays or (), 1)
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        chosen = {name: v for name, v in values.items() if v is not None and (name, v) != ("device", "cpu")}
        family = chosen.pop("family")
        if family == "gaussians":
            for name in chosen.keys() - {"lrs", "momentum_decays"}:
                raise ValueError(f"{name}={chosen[name]}: family 'gaussians' has no images, and is on the CPU")
            return GaussianFamily(**chosen)
        if "datasets" in chosen:
            chosen["dataset_names"] = chosen.pop("datasets")
        return family_named(family, root=chosen.pop("data", None), device=chosen.pop("device", "cpu"), **chosen)


@dataclass(frozen=True)
class HorizonOptions:
    """Length of the inner loop."""

    horizon: tuple[int, int] = (400, 400)  # Steps of the inner loop: shortest and longest, log-uniform between them.
    samples: int = 10  # States collected in an inner loop.
    # Share of the inner loop before the first collected state, in training and on held-out tasks; noise-reuse ES, whose
    # every window collects states, has none in training.
    burn_in: float = 0.5

    def lengths(self) -> Horizon:
        return Horizon(*self.horizon, samples=self.samples, burn_in=self.burn_in)


@dataclass(frozen=True)
class EvolutionOptions(HorizonOptions):
    """Antithetic evolution strategies over whole inner loops."""

    sigma: float = 0.03  # Standard deviation of the perturbations.
    pairs: int = 4  # Antithetic pairs in an iteration.
    pairs_per_task: int = 1  # Number of pairs that share a task and run as one batch.
    tasks_per_job: int = 1  # Tasks in one unit of work; of tasks with one network all members run as one batch.
    # What a pair's loss difference is divided by: its mean loss, or (the paper's estimator) nothing.
    shaping: Literal["mean", "none"] = "mean"
    limit: float | None = None  # Bound on the pairs' loss differences after that.

    def make(self) -> Estimator:
        """The estimator; ValueError where an option is out of range."""
        return AntitheticES(self.sigma, self.pairs, self.lengths(), **self._shared())

    def _shared(self) -> dict[str, Any]:
        shared = {"pairs_per_task": self.pairs_per_task, "tasks_per_job": self.tasks_per_job}
        return {**shared, "shaping": Shaping(self.shaping, self.limit)}


@dataclass(frozen=True)
class NoiseReuseOptions(EvolutionOptions):
    """Noise-reuse evolution strategies over windows of an inner loop."""

    window: int = 50  # Steps of a window.

    def make(self) -> Estimator:
        return NoiseReuseES(self.sigma, self.pairs, self.lengths(), self.window, **self._shared())


@dataclass(frozen=True)
class BackpropagationOptions(HorizonOptions):
    """Truncated back-propagation through windows of parallel chains, for MetaSGMCMC and --objective stein_kl."""

    window: int = 50  # Steps that gradients flow through.
    num_chains: int = 20  # Parallel chains of a task.
    slots: int = 1  # Tasks at a time.
    loss_every: int = 3  # Steps between two terms of the cross-chain loss.

    def make(self) -> Estimator:
        return TruncatedBackpropagation(
            self.lengths(), self.window, every=self.loss_every, chains=self.num_chains, slots=self.slots
        )


METHODS: dict[str, type[Any]] = {"es": EvolutionOptions, "nres": NoiseReuseOptions, "tbptt": BackpropagationOptions}


# ---------------------------------------------------------------- all of them


@dataclass(frozen=True, kw_only=True)
class Options:
    """Meta-train a sampler on random tasks. --sampler, --linear and --method say which further options there are."""

    folder: Path  # Folder of the run; continued if it has checkpoints.
    sampler: Annotated[str, one_of(LEARNED_RULES)] = "L2E"  # Sampler to meta-train.
    linear: bool = False  # L2E only: learn nothing but a direction, linear in the features, and a gate.
    # Gradient estimator: antithetic ES over whole inner loops, noise-reuse ES over windows of them, or (for MetaSGMCMC)
    # truncated back-propagation.
    method: Literal["es", "nres", "tbptt"] = "es"
    # The network of the sampler, and where it starts.
    rule: Annotated[Any, tyro.conf.OmitArgPrefixes] = field(default_factory=StartOptions)
    scales: Annotated[Any, tyro.conf.OmitArgPrefixes] = None  # The settings of the sampler; None is its own default.
    # How the meta-gradient is estimated.
    gradient: Annotated[Any, tyro.conf.OmitArgPrefixes] = field(default_factory=EvolutionOptions)
    # What it is trained on.
    tasks: Annotated[TaskOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=TaskOptions)
    # The outer loop.
    settings: Annotated[TrainerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=TrainerSettings)
    workers: int = 1  # Worker processes of one core each; 1 runs everything in this process.
    # Learning rate that the card recommends; by default the smallest of those that the tasks are drawn with.
    default_lr: float | None = None
    held_out_tasks: int = 3  # Number of held-out tasks to evaluate on.
    # Learning rates to evaluate at, of which each task's best counts; by default those that the tasks are drawn with.
    held_out_lrs: tuple[float, ...] | None = None
    minutes: float | None = None  # Stop after this many minutes; the same command continues the run.
    no_progress: bool = False  # Show no progress bar.

    def make_rule(self) -> NetworkRule:
        """The rule; ValueError, TypeError, FileNotFoundError: there is no such rule, or no such start."""
        return self.rule.make(self.sampler, **vars(self.scales or setting_options(self.sampler)()))

    def check(self) -> None:
        """Raise ValueError for what no group of options can tell alone."""
        if self.minutes is not None:
            validation.non_negative("minutes", self.minutes)
        at_least(1, self, "workers")
        check_positive("held_out_lrs", self.held_out_lrs or ())
        if (self.sampler == "MetaSGMCMC") != (self.method == "tbptt"):
            raise ValueError(
                f"sampler={self.sampler!r} cannot be trained by method={self.method!r}; MetaSGMCMC by 'tbptt', the "
                "others by 'es' or 'nres'"
            )


def parse(arguments: Sequence[str] | None, description: str | None = None) -> Options:
    """The options of a command line; None takes those of the process."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--sampler", default="L2E")
    first.add_argument("--linear", action="store_true")
    first.add_argument("--method", default="es")
    named = first.parse_known_args(arguments)[0]
    sampler = named.sampler if named.sampler in LEARNED_RULES else "L2E"  # which tyro will say
    rule: Any = rule_options(sampler, named.linear)
    default = Options(
        folder=tyro.MISSING,
        rule=rule(tyro.MISSING) if rule is LinearOptions else rule(),
        scales=setting_options(sampler)(),
        gradient=METHODS.get(named.method, EvolutionOptions)(),
    )
    return tyro.cli(Options, args=arguments, default=default, description=description, config=(FLAGS,))
