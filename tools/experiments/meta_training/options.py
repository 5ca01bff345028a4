"""The options of `meta_train.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from meta_tasks.training import TrainerSettings


@dataclass(frozen=True)
class ChainOptions:
    """Of truncated back-propagation, and of the sampler that it trains."""

    # Parallel chains of a task.
    num_chains: int = 20
    # Tasks at a time.
    slots: int = 1
    # Steps between two terms of the cross-chain loss.
    loss_every: int = 3
    # Weight of the in-chain loss.
    in_chain: float = 1.0
    # Earlier states kept in each slot to start inner loops from.
    replay: int = 10
    # Whether gradients flow through the energy's gradient.
    curvature: bool = True
    # Factor on what the networks see of the energy (meta form).
    energy_scale: float = 1.0
    # Factor on what they see of the gradient.
    gradient_scale: float = 1.0
    # Bound on the curl.
    curl_clip: float = 5.0
    # Whether the networks see momentum and gradient divided by their root mean squares over a tensor (meta form).
    rms_inputs: bool = False
    # Where the corrections' derivatives come from.
    correction: Literal["autograd", "finite_difference"] = "autograd"


@dataclass(frozen=True)
class Options:
    """Meta-train a sampler: evolution strategies on random tasks."""

    # Folder of the run; continued if it has checkpoints.
    folder: Path
    # Task family: paper and full for GPUs, cpu for small images, small for Fashion-MNIST and 4 channels alone, digits
    # for a first try without files.
    family: Literal["paper", "full", "cpu", "small", "digits", "gaussians", "mnist_mlp"] = "digits"
    # Form of the sampler.
    form: Literal["residual", "paper", "preconditioner", "kinetic", "meta"] = "residual"
    # What its network sees: paper (the default), scaled, adaptive or adaptive_data; the kinetic and the meta form have
    # inputs of their own.
    feature_set: str | None = None
    # Widths of its hidden layers.
    hidden: tuple[int, ...] = (32, 32)
    # Bound on its outputs; by default none.
    output_bound: float | None = None
    # Factor on its output α (residual and paper form), see L2E; by default the form's own.
    alpha_scale: float | None = None
    # Factor on its output β (residual and paper form).
    beta_scale: float | None = None
    # Share of the friction that acts on β: 1 as in the paper's equation, 0 none; or Meta-SGMCMC's factor on f_D.
    friction_scale: float | None = None
    # N₀ at which the factor on β holds; it becomes √(N/N₀) times as large. By default it does not depend on N.
    reference_data: float | None = None
    # τ in steps (residual form): the network's outputs are divided by √(1 + t/τ) after t updates. With a reference N₀
    # it is τ·N₀/N.
    decay_time: float | None = None
    # Start at β = −gain·feature instead of at SGHMC (residual form) or at random (paper form).
    start_feature: str | None = None
    # The gain of that start; by default 1.
    start_gain: float | None = None
    # Or start from a weight file of this form (not kinetic or meta): a second stage with other settings, or with more
    # features and units, which start without effect.
    start_weights: Path | None = None
    # Gradient estimator: antithetic ES over whole inner loops, noise-reuse ES over windows of them, or (for
    # --form meta with --objective stein_kl) truncated back-propagation through windows.
    estimator: Annotated[Literal["es", "nres", "tbptt"], tyro.conf.arg(aliases=["--method"])] = "es"
    # Standard deviation of the perturbations.
    sigma: float = 0.03
    # Number of weights, the last ones of the network, that evolution strategies learn; by default all. The last layer
    # of L2E alone has 2 · (width + 1).
    learned: int | None = None
    # Antithetic pairs in an iteration.
    pairs: int = 4
    # Pairs that share a task and run as one batch.
    pairs_per_task: int = 1
    # What becomes of the loss differences.
    shaping: Literal["none", "mean", "clip", "sign", "rank"] = "mean"
    # Bound on the shaped differences.
    limit: float | None = None
    # Steps of the inner loop: shortest and longest, log-uniform between them.
    horizon: tuple[int, int] = (400, 400)
    # States collected in an inner loop.
    samples: int = 10
    # Share of the inner loop before the first of them.
    burn_in: float = 0.5
    # Steps of a window of noise-reuse ES, or that gradients flow through.
    window: int = 50
    # Truncated back-propagation and the meta form.
    chains: Annotated[ChainOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=ChainOptions)
    # Data sets of an image family, one in so many tasks each (a name may come twice); by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Sides of its images in pixels, likewise.
    sizes: tuple[int, ...] | None = None
    # Share of an image family's tasks that keep only some hundred or thousand images; by default the family's own.
    small_data_share: float | None = None
    # Labels that the tasks of an image family have; by default all of the data set's.
    labels: tuple[int, ...] | None = None
    # Learning rates that tasks are drawn with; by default the family's.
    lrs: tuple[float, ...] | None = None
    # Momentum decays that they are drawn with, likewise; the card recommends the first.
    momentum_decays: tuple[float, ...] | None = None
    # Learning rate that the card recommends; by default the smallest of them.
    default_lr: float | None = None
    # The outer loop.
    settings: Annotated[TrainerSettings, tyro.conf.OmitArgPrefixes] = field(default_factory=TrainerSettings)
    # Held-out tasks to evaluate on.
    held_out_tasks: int = 3
    # Stop after so many minutes; the same command continues.
    minutes: float | None = None
    # Worker processes of one core each; 1 runs everything in this process.
    workers: int = 1
    # Device of the tasks, such as cpu or cuda.
    device: str = "cpu"
    # On a CUDA device, whether a step of the inner loop is replayed as a CUDA graph; it changes results by rounding.
    capture: bool = True
    # On a CUDA device, whether L2E's update (residual form, two hidden layers) is computed by fused kernels, which need
    # Triton; they change results by rounding.
    fused: bool = False
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Whether to show a progress bar.
    progress: bool = True
