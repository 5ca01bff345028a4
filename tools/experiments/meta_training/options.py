"""The options of `meta_train.py`, in groups; each makes its part of the meta-training and sees no other."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.harness.options import at_least_one
from experiments.meta_training.sampler_options import SamplerOptions, check_positive
from learned_samplers.base import validation
from meta_tasks.estimators import AntitheticES, Estimator, NoiseReuseES, Shaping, TruncatedBackpropagation
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.tasks import GaussianFamily, ImageTaskFamily, family_named
from meta_tasks.training import TrainerSettings


@dataclass(frozen=True)
class TaskOptions:
    """What it is trained on."""

    # Task family: paper and full for GPUs, cpu for small images, small for Fashion-MNIST and 4 channels alone,
    # direction for the direction of a step alone (hard images, many of them), digits for a first try without files.
    family: Literal[
        "paper", "full", "cpu", "general", "residual", "direction", "small", "digits", "gaussians", "mnist_mlp"
    ] = "digits"
    # Data sets of an image family, equally likely (a name may be given twice); by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Sides of an image family's images in pixels, equally likely; by default the family's own.
    sizes: tuple[int, ...] | None = None
    # Share of an image family's tasks that keep only some hundred or thousand images; by default the family's own.
    small_data_share: float | None = None
    # Fewest and most images that such tasks keep; by default 200 and 2,000.
    small_data: tuple[int, int] | None = None
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
            "small_data": self.small_data,
        }
        changes: dict[str, Any] = {name: value for name, value in of_all.items() if value is not None}
        given: dict[str, Any] = {name: value for name, value in of_images.items() if value is not None}
        if self.family == "gaussians":
            places = {"device": None if self.device == "cpu" else self.device, "data": self.data}
            for name, value in {**given, **places}.items():
                if value is not None:
                    raise ValueError(f"{name}={value}: family 'gaussians' has no images, and is on the CPU")
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
    "burn_in": ("es", "tbptt"),  # windows of noise reuse have states from the start
    "cycles": ("es",),
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
    # Share of the inner loop (of each cycle) before the first collected state, in training and on held-out tasks;
    # noise-reuse ES, whose every window collects states, has none in training.
    burn_in: float = 0.5
    # Cycles of an inner loop (ScaleAdaptedL2E, and L2E that is to explore for it, by whole inner loops): each explores
    # anew from where the last one ended, and the states of all of them are averaged, which rewards different modes.
    # Held-out tasks are run in as many.
    cycles: int = 1
    # Steps of a window of noise-reuse ES; with truncated back-propagation, the steps that gradients flow through.
    window: int = 50
    # Options of truncated back-propagation.
    chains: Annotated[ChainOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ChainOptions)

    def check(self, sampler: str, linear: bool = False) -> None:
        """Raise ValueError if the estimator cannot train the sampler, or has no use for an option that was changed."""
        if linear and self.learned is not None:
            raise ValueError(f"learned={self.learned} cannot be given beside linear, whose few numbers are all learned")
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
        burn_in = 0.0 if self.estimator == "nres" else self.burn_in
        horizon = Horizon(*self.horizon, samples=self.samples, burn_in=burn_in, cycles=self.cycles)
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

    def check(self) -> None:
        """Raise ValueError for what no group of options can tell alone, such as kernels for a GPU on a CPU."""
        if self.minutes is not None:
            validation.non_negative("minutes", self.minutes)
        at_least_one(self.execution, "workers")
        device = self.tasks.device
        if self.execution.capture and not device.startswith("cuda"):
            raise ValueError(
                f"capture=True is for a CUDA device, got device={device!r}: add --device cuda, or leave --capture out"
            )
