"""The options of `meta_train.py`, in groups; each makes its part of the meta-training and sees no other."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from meta_tasks.estimators import AntitheticES, Estimator, NoiseReuseES, Shaping, TruncatedBackpropagation
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.gate import L2EGateRule
from meta_tasks.rules.learned import LEARNED_RULES, NetworkRule
from meta_tasks.rules.linear import L2ELinearRule
from meta_tasks.rules.triton_l2e import FusedL2ERule
from meta_tasks.tasks import GaussianFamily, ImageTaskFamily, family_named
from meta_tasks.training import TrainerSettings


def check_positive(name: str, values: Sequence[float], most: float = math.inf) -> None:
    """Raise ValueError unless the option's values are finite, greater than 0 and at most ``most``."""
    for value in values:
        if not (0 < value <= most and math.isfinite(value)):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"{name} must be greater than 0{bound}, got {value}")


def _of_all_samplers() -> type[Any]:
    """A dataclass with the settings of every learned sampler, all of them None: at the sampler's own default."""
    found: dict[str, Any] = {}
    for each in REGISTRY.values():
        kinds = typing.get_type_hints(each.settings_class)
        for name, one in ((one.name, one) for one in fields(each.settings_class)):
            owners = [owner for owner, other in REGISTRY.items() if name in other.settings_class.names()]
            text = f"{one.metadata['doc']} Of {', '.join(owners)}; by default the sampler's own.".strip()
            kind = Annotated[typing.Optional[kinds[name]], tyro.conf.arg(help=text)]  # type: ignore[valid-type]  # noqa: UP045
            found.setdefault(name, (name, kind, field(default=None)))
    return make_dataclass("SettingOptions", found.values(), frozen=True)


if typing.TYPE_CHECKING:
    SettingOptions: typing.TypeAlias = Any
    SamplerName: typing.TypeAlias = str
else:
    SamplerName = Literal[*REGISTRY]
    #: The settings of every learned sampler as options; a sampler refuses those that it does not have.
    SettingOptions = _of_all_samplers()


@dataclass(frozen=True)
class SamplerOptions:
    """What is meta-trained."""

    # Sampler to meta-train.
    sampler: SamplerName = "L2E"
    # Widths of its network's hidden layers; by default the sampler's own. (Of MetaSGMCMC, of each of its two networks.)
    hidden: tuple[int, ...] | None = None
    # Its settings.
    scales: Annotated[SettingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=lambda: SettingOptions())
    # L2E and ScaleAdaptedL2E only: start at β = −gain·feature instead of at SGHMC (residual form) or at random (paper
    # form).
    start_feature: str | None = None
    # Gain of --start-feature; by default 1.
    start_gain: float | None = None
    # L2E, PrecondL2E and ScaleAdaptedL2E only: start from a weight file of this sampler and form (ScaleAdaptedL2E also
    # from one of L2E), for a second stage of training. The new network may have more features and units; these start
    # without effect.
    start_weights: Path | None = None
    # L2E only: learn nothing but a gate on the network of this weight file, which says how far each tensor moves by its
    # size, its magnitudes, N, and how much of the run is over; 16 meta-parameters. The network's settings and its
    # hidden layers are those of the file.
    gate_of: Path | None = None
    # L2E only: learn nothing but which features of a weight to move along, and a gate; some thirty meta-parameters. It
    # starts at --start-feature, or at --start-weights that were learned so from the same feature.
    linear: bool = False
    # With --linear: what a unit of the direction's meta-parameters is worth beside the gate's; by default .3. A larger
    # one leaves the start's direction sooner.
    direction_share: float | None = None
    # L2E and PrecondL2E with a feature set that sees the progress of the run ("lean", "adaptive_run", "matrix"): share
    # of the tasks in which the network is told the number of steps.
    tell_horizon: float | None = None
    # L2E on a CUDA device only: compute its update (residual form, two hidden layers) by fused kernels. They need
    # Triton and change results by rounding. Experimental: they have not run on a GPU yet.
    fused: bool = False

    def make(self) -> NetworkRule:
        """The rule.

        Raises:
            ValueError, TypeError, FileNotFoundError, ModuleNotFoundError: there is no such rule, or no such start.
        """
        check_positive("hidden", self.hidden or ())
        if self.start_feature is not None and self.start_weights is not None and not self.linear:
            raise ValueError(f"start_feature={self.start_feature} and start_weights={self.start_weights}: choose one")
        only = {
            "L2E": ("start_feature", "start_gain", "start_weights", "tell_horizon", "fused", "gate_of", "linear"),
            "PrecondL2E": ("start_weights", "tell_horizon"),
            "ScaleAdaptedL2E": ("start_feature", "start_gain", "start_weights"),
        }
        for name in only["L2E"]:
            value = getattr(self, name)
            if value is not None and value is not False and name not in only.get(self.sampler, ()):
                raise ValueError(f"{name}={value} does not belong to {self.sampler}")
        if self.start_feature is None and self.start_gain is not None:
            raise ValueError(f"start_gain={self.start_gain} needs a start_feature")
        given = {each.name: getattr(self.scales, each.name) for each in fields(self.scales)}
        if self.direction_share is not None and not self.linear:
            raise ValueError(f"direction_share={self.direction_share} needs linear")
        if self.linear:
            return self._make_linear(given)
        if self.gate_of is not None:
            return self._make_gate({**given, "hidden": self.hidden, "fused": self.fused or None})
        rule = FusedL2ERule if self.fused else LEARNED_RULES[self.sampler]
        settings = REGISTRY[self.sampler].settings_class.given(**given)
        start: dict[str, Any] = {} if self.tell_horizon is None else {"tell_horizon": self.tell_horizon}
        if self.start_weights is not None:
            start["start"] = self.start_weights
        elif self.start_feature is not None:
            start["start"] = (self.start_feature, 1.0 if self.start_gain is None else self.start_gain)
        return rule(hidden=self.hidden, settings=settings, **start)

    def _make_linear(self, given: dict[str, Any]) -> NetworkRule:
        others = {"hidden": self.hidden, "gate_of": self.gate_of}
        for name, value in {**others, "fused": self.fused or None}.items():
            if value is not None:
                raise ValueError(f"{name}={value} cannot be given beside linear")
        if self.start_feature is None:
            raise ValueError("linear needs a start_feature")
        gain = 1.0 if self.start_gain is None else self.start_gain
        settings = L2ESettings.given(**given)
        own: dict[str, Any] = {"tell_horizon": self.tell_horizon or 0.0, "origin": self.start_weights}
        if self.direction_share is not None:
            own["direction_share"] = self.direction_share
        return L2ELinearRule(self.start_feature, gain, settings=settings, **own)

    def _make_gate(self, others: dict[str, Any]) -> NetworkRule:
        starts = {"start_weights": self.start_weights, "start_feature": self.start_feature}
        for name, value in {**others, **starts}.items():
            if value is not None and name != "feature_set":
                raise ValueError(f"{name}={value} cannot be given beside gate_of={self.gate_of}, which has its own")
        assert self.gate_of is not None
        own = {"feature_set": others["feature_set"]} if others["feature_set"] else {}
        return L2EGateRule(self.gate_of, tell_horizon=self.tell_horizon or 0.0, **own)


@dataclass(frozen=True)
class TaskOptions:
    """What it is trained on."""

    # Task family: paper and full for GPUs, cpu for small images, small for Fashion-MNIST and 4 channels alone, digits
    # for a first try without files.
    family: Literal["paper", "full", "cpu", "general", "residual", "small", "digits", "gaussians", "mnist_mlp"] = (
        "digits"
    )
    # Data sets of an image family, equally likely (a name may be given twice); by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Sides of an image family's images in pixels, equally likely; by default the family's own.
    sizes: tuple[int, ...] | None = None
    # Share of an image family's tasks that keep only some hundred or thousand images; by default the family's own.
    small_data_share: float | None = None
    # Labels that the tasks of an image family have; by default all of the data set's.
    labels: tuple[int, ...] | None = None
    # Learning rates that tasks are drawn with; by default the family's.
    lrs: tuple[float, ...] | None = None
    # Momentum decays that tasks are drawn with; by default the family's. The card recommends the first.
    momentum_decays: tuple[float, ...] | None = None
    # Device of the tasks, such as cpu or cuda.
    device: str = "cpu"
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None

    def make(self) -> ImageTaskFamily | GaussianFamily:
        """The task family.

        Raises:
            ValueError, FileNotFoundError: there is no such family.
        """
        check_positive("lrs", self.lrs or ())
        check_positive("momentum_decays", self.momentum_decays or (), 1)
        of_all = {"lrs": self.lrs, "momentum_decays": self.momentum_decays}
        of_images = {
            "datasets": self.datasets,
            "labels": self.labels,
            "sizes": self.sizes,
            "small_data_share": self.small_data_share,
        }
        changes: dict[str, Any] = {name: value for name, value in of_all.items() if value is not None}
        given: dict[str, Any] = {name: value for name, value in of_images.items() if value is not None}
        if self.family == "gaussians":
            for name, value in given.items():
                raise ValueError(f"{name}={value}: family 'gaussians' has no images")
            return GaussianFamily(**changes)
        if "datasets" in given:
            given["dataset_names"] = given.pop("datasets")
        return family_named(self.family, root=self.data, device=self.device, **changes, **given)


@dataclass(frozen=True)
class ChainOptions:
    """Options of truncated back-propagation."""

    # Truncated back-propagation: parallel chains of a task.
    num_chains: int = 20
    # Truncated back-propagation: tasks at a time.
    slots: int = 1
    # Steps between two terms of the cross-chain loss.
    loss_every: int = 3
    # Weight of the in-chain loss.
    in_chain: float = 1.0
    # Earlier states kept in each slot to start inner loops from.
    replay: int = 10
    # Truncated back-propagation: whether derivatives flow through the gradient of the energy (second derivatives).
    curvature: bool = True


_EVOLUTION = ("es", "nres")
#: The estimators that an option of `EstimatorOptions` belongs to; those of `ChainOptions` belong to "tbptt".
_ESTIMATORS = {
    **dict.fromkeys(("sigma", "pairs", "pairs_per_task", "shaping", "limit", "learned"), _EVOLUTION),
    "window": ("nres", "tbptt"),
}


@dataclass(frozen=True)
class EstimatorOptions:
    """How the meta-gradient is estimated."""

    # Gradient estimator: antithetic ES over whole inner loops, noise-reuse ES over windows of them, or (for
    # --sampler MetaSGMCMC with --objective stein_kl) truncated back-propagation through windows.
    estimator: Annotated[Literal["es", "nres", "tbptt"], tyro.conf.arg(aliases=["--method"])] = "es"
    # Standard deviation of the perturbations.
    sigma: float = 0.03
    # Number of weights that evolution strategies learn, counted from the network's end; by default all. L2E's last
    # layer has 2 · (width + 1).
    learned: int | None = None
    # Antithetic pairs in an iteration.
    pairs: int = 4
    # Number of pairs that share a task and run as one batch.
    pairs_per_task: int = 1
    # Transformation of the pairs' loss differences.
    shaping: Literal["none", "mean", "clip", "sign", "rank"] = "mean"
    # Bound on the shaped differences.
    limit: float | None = None
    # Steps of the inner loop: shortest and longest, log-uniform between them.
    horizon: tuple[int, int] = (400, 400)
    # States collected in an inner loop.
    samples: int = 10
    # Share of the inner loop before the first collected state.
    burn_in: float = 0.5
    # Steps of a window of noise-reuse ES; with truncated back-propagation, the steps that gradients flow through.
    window: int = 50
    # Options of truncated back-propagation.
    chains: Annotated[ChainOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ChainOptions)

    def check(self, sampler: str) -> None:
        """Raise ValueError if the estimator cannot train the sampler, or has no use for an option that was changed."""
        if (sampler == "MetaSGMCMC") != (self.estimator == "tbptt"):
            raise ValueError(
                f"sampler={sampler!r} cannot be trained by estimator={self.estimator!r}; MetaSGMCMC by 'tbptt', "
                "the others by 'es' or 'nres'"
            )
        belonging: list[tuple[Any, str, tuple[str, ...]]] = [(self, *each) for each in _ESTIMATORS.items()]
        belonging += [(self.chains, each.name, ("tbptt",)) for each in fields(ChainOptions)]
        for holder, name, known in belonging:
            value, default = getattr(holder, name), type(holder).__dataclass_fields__[name].default
            if value != default and self.estimator not in known:
                owners = " or ".join(map(repr, known))
                raise ValueError(f"{name}={value} is for the estimator {owners}, not for estimator={self.estimator!r}")

    def make(self) -> Estimator:
        """The estimator.

        Raises:
            ValueError: an option is out of range.
        """
        horizon = Horizon(*self.horizon, samples=self.samples, burn_in=self.burn_in)
        if self.estimator == "tbptt":
            own = self.chains
            return TruncatedBackpropagation(
                horizon,
                self.window,
                every=own.loss_every,
                chains=own.num_chains,
                slots=own.slots,
                replay=own.replay,
                in_chain=own.in_chain,
                curvature=own.curvature,
            )
        shaping = Shaping(self.shaping, self.limit)
        common: dict[str, Any] = dict(pairs_per_task=self.pairs_per_task, shaping=shaping, learned=self.learned)
        if self.estimator == "nres":
            return NoiseReuseES(self.sigma, self.pairs, horizon, self.window, **common)
        return AntitheticES(self.sigma, self.pairs, horizon, **common)


@dataclass(frozen=True)
class ExecutionOptions:
    """Where it runs."""

    # Worker processes of one core each; 1 runs everything in this process.
    workers: int = 1
    # CUDA device only: replay a step of the inner loop as a CUDA graph; this changes results by rounding. Experimental:
    # it has not run on a GPU yet.
    capture: bool = False


@dataclass(frozen=True)
class Options:
    """Meta-train a sampler on random tasks."""

    # Folder of the run; continued if it has checkpoints.
    folder: Path
    # What is meta-trained.
    rule: Annotated[SamplerOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=SamplerOptions)
    # What it is trained on.
    tasks: Annotated[TaskOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=TaskOptions)
    # How the meta-gradient is estimated.
    gradient: Annotated[EstimatorOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=EstimatorOptions)
    # The outer loop.
    settings: Annotated[TrainerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=TrainerSettings)
    # Where it runs.
    execution: Annotated[ExecutionOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ExecutionOptions)
    # Learning rate that the card recommends; by default the smallest of those that the tasks are drawn with.
    default_lr: float | None = None
    # Number of held-out tasks to evaluate on.
    held_out_tasks: int = 3
    # Learning rates to evaluate at, of which each task's best counts; by default those that the tasks are drawn with.
    held_out_lrs: tuple[float, ...] | None = None
    # Stop after this many minutes; the same command continues the run.
    minutes: float | None = None
    # Whether to show a progress bar.
    progress: bool = True
    # Time a few iterations on random images, say what the meta-training will cost here, and stop.
    dry_run: bool = False
