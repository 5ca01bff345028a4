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
from pathlib import Path
from typing import Any

import torch
import tyro
from experiments.common.output import command_line
from experiments.meta_training.cards import commit, reproducing, without_infinities
from experiments.meta_training.checks import check_estimator, check_form, check_positive, check_sampler, check_tasks
from experiments.meta_training.options import Options

from learned_samplers.learned.weights import save as save_weights
from meta_tasks.estimators import AntitheticES, Estimator, Evaluator, NoiseReuseES, Shaping
from meta_tasks.estimators.truncated import TruncatedBackpropagation
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.learned import KineticRule, L2ERule, MetaSGMCMCRule, NetworkRule
from meta_tasks.rules.triton_l2e import FusedL2ERule
from meta_tasks.tasks import ImageTaskFamily, family_named
from meta_tasks.tasks.gaussians import GaussianFamily
from meta_tasks.training.evaluation import HeldOutEvaluation
from meta_tasks.training.process import one_core
from meta_tasks.training.trainer import Trainer
from meta_tasks.training.workers import Executor, ProcessExecutor, RankExecutor, SerialExecutor

#: Learning rates that SGHMC and cyclical SGMCMC get on the held-out tasks (pSGLD a twentieth of each).
BASELINE_LRS = (0.02, 0.05, 0.1, 0.2)


def make_estimator(options: Options) -> Estimator:
    horizon = Horizon(*options.horizon, samples=options.samples, burn_in=options.burn_in)
    shaping = Shaping(options.shaping, options.limit)
    common: dict[str, Any] = dict(pairs_per_task=options.pairs_per_task, shaping=shaping, learned=options.learned)
    if options.estimator == "tbptt":
        own = options.chains
        return TruncatedBackpropagation(
            horizon, options.window, every=own.loss_every, chains=own.num_chains, slots=own.slots, replay=own.replay,
            in_chain=own.in_chain, curvature=own.curvature,
        )  # fmt: skip
    if options.estimator == "nres":
        return NoiseReuseES(options.sigma, options.pairs, horizon, options.window, **common)
    return AntitheticES(options.sigma, options.pairs, horizon, **common)


#: Options that change an image family, and the fields that they are.
_OF_IMAGES = {
    "datasets": "dataset_names", "labels": "labels", "sizes": "sizes", "small_data_share": "small_data_share",
}  # fmt: skip


def make_family(options: Options) -> ImageTaskFamily | GaussianFamily:
    check_positive("lrs", options.lrs or ())
    check_positive("momentum_decays", options.momentum_decays or (), 1)
    choices = {"lrs": options.lrs, "momentum_decays": options.momentum_decays}
    changes: dict[str, Any] = {name: tuple(chosen) for name, chosen in choices.items() if chosen is not None}
    if options.family == "gaussians":
        if given := [name for name in _OF_IMAGES if getattr(options, name) is not None]:
            raise ValueError(f"{given[0]}={getattr(options, given[0])}: family 'gaussians' has no images")
        return GaussianFamily(**changes)
    for name, changed in _OF_IMAGES.items():
        if (chosen := getattr(options, name)) is not None:
            changes[changed] = tuple(chosen) if isinstance(chosen, list | tuple) else chosen
    return family_named(options.family, root=options.data, device=options.device, **changes)


def make_trainer(options: Options) -> Trainer:
    """The trainer that the options describe; joins the process group if torchrun started this process.

    Raises:
        ValueError, FileNotFoundError: options that cannot be trained with; nothing has been then.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if options.workers < 1:
        raise ValueError(f"workers must be at least 1, got {options.workers}")
    if ranks > 1:
        if options.workers > 1:
            raise ValueError(f"workers={options.workers} and {ranks} ranks of torchrun cannot be combined")
        torch.distributed.init_process_group("gloo")

    stepping = "auto" if options.capture else "loop"

    def executor(evaluator: Evaluator) -> Executor:
        evaluator.stepping = stepping
        if ranks > 1:
            return RankExecutor(evaluator)
        return ProcessExecutor(evaluator, options.workers) if options.workers > 1 else SerialExecutor(evaluator)

    family, rule, estimator = make_family(options), make_rule(options), make_estimator(options)
    seed = options.settings.seed
    defaults = recommended(options, family)
    check_sampler(rule, seed, defaults["lr"], defaults["momentum_decay"])
    check_tasks(family, seed, every=options.labels is not None or options.datasets is not None)
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
        try:
            evaluation.check(rule)
        except ValueError as error:
            raise ValueError(
                f"evaluation with horizon={options.horizon}, samples={options.samples}: {error}"
            ) from error
    return Trainer(
        family, rule, estimator, options.settings, folder=options.folder, make_executor=executor,
        evaluation=evaluation, main=int(os.environ.get("RANK", "0")) == 0,
    )  # fmt: skip


def make_rule(options: Options) -> NetworkRule:
    check_positive("hidden", options.hidden)
    names = ("output_bound", "alpha_scale", "beta_scale", "friction_scale", "reference_data", "decay_time")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    check_form(options)
    check_estimator(options)
    if options.form == "meta":
        own = options.chains
        return MetaSGMCMCRule(
            "signed", options.hidden, feature_set="energy_rms" if own.rms_inputs else "energy",
            energy_scale=own.energy_scale, gradient_scale=own.gradient_scale,
            curl_clip=own.curl_clip, correction=own.correction, **given,
        )  # fmt: skip
    if options.form == "kinetic":
        return KineticRule(options.hidden, **given)
    if options.start_feature is not None and options.start_weights is not None:
        raise ValueError(f"start_feature={options.start_feature} and start_weights={options.start_weights}: choose one")
    start: tuple[str, float] | Path | None = options.start_weights
    if options.start_feature is not None:
        start = (options.start_feature, 1.0 if options.start_gain is None else options.start_gain)
    elif options.start_gain is not None:
        raise ValueError(f"start_gain={options.start_gain} needs a start_feature")
    kind = FusedL2ERule if options.fused else L2ERule
    feature_set = "paper" if options.feature_set is None else options.feature_set
    return kind(options.form, feature_set, options.hidden, start=start, **given)


def recommended(options: Options, family: ImageTaskFamily | GaussianFamily) -> dict[str, float]:
    """The ``defaults`` of the weight card."""
    if options.default_lr is not None:
        check_positive("default_lr", [options.default_lr])
    lr = min(family.lrs) if options.default_lr is None else options.default_lr
    return {"lr": lr, "momentum_decay": family.momentum_decays[0]}


def write_weights(trainer: Trainer, options: Options) -> Path:
    """The weights as a safetensors file with its card in the run's folder."""
    rule, settings = trainer.rule, trainer.settings
    assert isinstance(rule, NetworkRule)
    losses = trainer.history.get("median_loss", [])
    assert isinstance(trainer.family, ImageTaskFamily | GaussianFamily)
    command = command_line("meta_train", None)
    card = {
        "name": options.folder.name,
        **rule.card(),
        "defaults": recommended(options, trainer.family),
        "meta_training": {
            "tasks": trainer.family.specification(),
            "horizon": trainer.estimator.specification()["horizon"],
            "estimator": {**trainer.estimator.specification(), **settings.outer_loop},
            "seed": settings.seed,
            "commit": commit(),
            "command": command,
            "reproduce": reproducing(command, trainer.iteration),
            "iterations": trainer.iteration,
            "hours": trainer.seconds / 3600,
        },
        "curve": [float(f"{loss:.4g}") if math.isfinite(loss) else None for loss in losses],
        "metrics": {"held_out": without_infinities(trainer.scores)},
        "licence": "MIT",
    }
    path = options.folder / "weights.safetensors"
    save_weights(path, rule.network(trainer.averaged), card)
    return path


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
