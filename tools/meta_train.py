"""Meta-train a sampler on random tasks: by evolution strategies, or Meta-SGMCMC by truncated back-propagation.

    python tools/meta_train.py --folder runs/first --family digits --minutes 10     # needs no files; ten minutes
    python tools/meta_train.py --folder runs/l2e --family cpu --data ~/data --iterations 2000 --workers 2
    python tools/meta_train.py --folder runs/toy --family gaussians --form meta --method tbptt --objective stein_kl \
        --evaluate-every 0 --horizon 150 300 --window 15
    tensorboard --logdir runs

A run continues from the checkpoints in its folder: the same command again resumes it, after Ctrl-C or after a crash.
The folder also gets the weights as weights.safetensors with a card, and TensorBoard logs. With torchrun, every rank
takes its share of the antithetic pairs.
"""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from _output import command_line

from learned_samplers.weights import save as save_weights
from meta_tasks.estimators import AntitheticES, Estimator, NoiseReuseES, Shaping
from meta_tasks.evaluation import HeldOutEvaluation
from meta_tasks.fused_l2e import FusedL2ERule
from meta_tasks.gaussians import GaussianFamily
from meta_tasks.learned_rules import KineticRule, L2ERule, MetaSGMCMCRule, NetworkRule
from meta_tasks.process import one_core
from meta_tasks.schedule import Horizon
from meta_tasks.task_family import ImageTaskFamily, family_named
from meta_tasks.trainer import Trainer, TrainerSettings
from meta_tasks.truncated import TruncatedBackpropagation
from meta_tasks.workers import Evaluator, Executor, ProcessExecutor, RankExecutor, SerialExecutor

#: Learning rates that SGHMC and cyclical SGMCMC get on the held-out tasks (pSGLD a twentieth of each).
BASELINE_LRS = (0.02, 0.05, 0.1, 0.2)


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
    # What its network sees: paper, scaled or adaptive; the kinetic form has its own two inputs.
    feature_set: str = "paper"
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
    # τ in steps (residual form): the network's outputs are divided by √(1 + t/τ) after t updates.
    decay_time: float | None = None
    # Start at β = −gain·feature instead of at SGHMC (residual form) or at random (paper form).
    start_feature: str | None = None
    # The gain of that start.
    start_gain: float = 1.0
    # Or start from a weight file, of this form, feature set and hidden layers: a second stage with other settings.
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


def make_estimator(options: Options) -> Estimator:
    horizon = Horizon(*options.horizon, samples=options.samples, burn_in=options.burn_in)
    shaping = Shaping(options.shaping, options.limit)
    common: dict[str, Any] = dict(pairs_per_task=options.pairs_per_task, shaping=shaping, learned=options.learned)
    if options.estimator == "tbptt":
        if options.learned is not None:
            raise ValueError(f"learned={options.learned} is of evolution strategies, not of truncated back-propagation")
        own = options.chains
        return TruncatedBackpropagation(
            horizon, options.window, every=own.loss_every, chains=own.num_chains, slots=own.slots, replay=own.replay,
            in_chain=own.in_chain, curvature=own.curvature,
        )  # fmt: skip
    if options.estimator == "nres":
        return NoiseReuseES(options.sigma, options.pairs, horizon, options.window, **common)
    return AntitheticES(options.sigma, options.pairs, horizon, **common)


def make_family(options: Options) -> ImageTaskFamily | GaussianFamily:
    choices = {"lrs": options.lrs, "momentum_decays": options.momentum_decays}
    changes: dict[str, Any] = {name: tuple(chosen) for name, chosen in choices.items() if chosen is not None}
    if options.family == "gaussians":
        if options.labels is not None or options.datasets is not None:
            raise ValueError(f"labels={options.labels}, datasets={options.datasets}: family 'gaussians' has none")
        return GaussianFamily(**changes)
    if options.labels is not None:
        changes["labels"] = tuple(options.labels)
    if options.datasets is not None:
        changes["dataset_names"] = tuple(options.datasets)
    return family_named(options.family, root=options.data, device=options.device, **changes)


def make_trainer(options: Options) -> Trainer:
    """The trainer that the options describe; joins the process group if torchrun started this process."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        if options.workers > 1:
            raise ValueError(f"workers={options.workers} and {ranks} ranks of torchrun cannot be combined")
        torch.distributed.init_process_group("gloo")

    stepping = None if options.capture else "loop"

    def executor(evaluator: Evaluator) -> Executor:
        evaluator.stepping = stepping
        if ranks > 1:
            return RankExecutor(evaluator)
        return ProcessExecutor(evaluator, options.workers) if options.workers > 1 else SerialExecutor(evaluator)

    family, estimator = make_family(options), make_estimator(options)
    rule = make_rule(options)
    evaluation = None
    if options.settings.evaluate_every:
        if isinstance(family, GaussianFamily):
            raise ValueError("evaluate_every must be 0 for family 'gaussians', which has no held-out images")
        steps = options.horizon[1]
        lrs = sorted(set(family.lrs))
        evaluation = HeldOutEvaluation(
            family, steps, samples=options.samples, tasks=options.held_out_tasks, lrs=lrs,
            baseline_lrs=BASELINE_LRS, stepping=stepping,
        )  # fmt: skip
    return Trainer(
        family, rule, estimator, options.settings, folder=options.folder, make_executor=executor,
        evaluation=evaluation, main=int(os.environ.get("RANK", "0")) == 0,
    )  # fmt: skip


def make_rule(options: Options) -> NetworkRule:
    if (options.form == "meta") != (options.estimator == "tbptt"):
        raise ValueError(
            f"form={options.form!r} cannot be trained by estimator={options.estimator!r}; 'meta' by 'tbptt'"
        )
    names = ("output_bound", "alpha_scale", "beta_scale", "friction_scale", "reference_data", "decay_time")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.fused and options.form != "residual":
        raise ValueError(f"fused: only the residual form has fused kernels, not {options.form!r}")
    if options.form == "meta":
        if set(given) - {"friction_scale"}:
            raise ValueError(f"{', '.join(sorted(set(given) - {'friction_scale'}))}: not of the meta form")
        own = options.chains
        return MetaSGMCMCRule(
            "signed", options.hidden, feature_set="energy_rms" if own.rms_inputs else "energy",
            energy_scale=own.energy_scale, gradient_scale=own.gradient_scale,
            curl_clip=own.curl_clip, correction=own.correction, **given,
        )  # fmt: skip
    if options.form in ("kinetic", "preconditioner") and (set(given) - {"output_bound"}):
        raise ValueError(f"{', '.join(set(given) - {'output_bound'})}: not of the {options.form} form")
    if options.form == "kinetic":
        return KineticRule(options.hidden, **given)
    if options.form == "paper" and (residual := set(given) & {"reference_data", "decay_time"}):
        raise ValueError(f"{', '.join(sorted(residual))}: of the residual form, not of the paper's")
    if options.start_feature is not None and options.start_weights is not None:
        raise ValueError(f"start_feature={options.start_feature} and start_weights={options.start_weights}: choose one")
    start: tuple[str, float] | Path | None = options.start_weights
    if options.start_feature is not None:
        start = (options.start_feature, options.start_gain)
    kind = FusedL2ERule if options.fused else L2ERule
    return kind(options.form, options.feature_set, options.hidden, start=start, **given)


def write_weights(trainer: Trainer, options: Options) -> Path:
    """The weights as a safetensors file with its card in the run's folder."""
    rule, settings = trainer.rule, trainer.settings
    assert isinstance(rule, NetworkRule)
    losses = trainer.history.get("median_loss", [])
    card = {
        "name": options.folder.name,
        **rule.card(),
        "defaults": {
            "lr": options.default_lr or min(trainer.family.specification()["lrs"]),
            "momentum_decay": trainer.family.specification()["momentum_decays"][0],
        },
        "meta_training": {
            "tasks": trainer.family.specification(),
            "horizon": trainer.estimator.specification()["horizon"],
            "estimator": {**trainer.estimator.specification(), **settings.outer_loop},
            "seed": settings.seed,
            "commit": _commit(),
            "command": command_line("meta_train", None),
            "iterations": trainer.iteration,
            "hours": trainer.seconds / 3600,
        },
        "curve": [float(f"{loss:.4g}") if math.isfinite(loss) else None for loss in losses],
        "metrics": {"held_out": trainer.scores},
        "licence": "MIT",
    }
    path = options.folder / "weights.safetensors"
    save_weights(path, rule.network(trainer.averaged), card)
    return path


def _commit() -> str | None:
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def main(options: Options) -> None:
    one_core()
    try:
        trainer = make_trainer(options)
    except (ValueError, FileNotFoundError, ModuleNotFoundError) as error:
        raise SystemExit(f"error: {error}") from error
    if trainer.iteration:
        print(f"continuing {options.folder} after {trainer.iteration} iterations", flush=True)
    try:
        ended = trainer.run(options.minutes, options.progress and trainer.main)
        if trainer.main:
            path = write_weights(trainer, options)
            minutes = trainer.seconds / 60
            print(f"{ended} after {trainer.iteration} iterations that took {minutes:.1f} minutes; weights in {path}")
    except FileNotFoundError as error:
        raise SystemExit(f"error: {error}") from error
    finally:
        trainer.close()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
