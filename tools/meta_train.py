"""Meta-train a sampler on random tasks: by evolution strategies, or Meta-SGMCMC by truncated back-propagation.

    python tools/meta_train.py --folder runs/first --family digits --minutes 10     # needs no files; ten minutes
    python tools/meta_train.py --folder runs/l2e --family cpu --data ~/data --iterations 2000 --workers 2
    python tools/meta_train.py --folder runs/toy --family gaussians --sampler MetaSGMCMC --method tbptt \\
        --objective stein_kl --evaluate-every 0 --horizon 150 300 --window 15
    tensorboard --logdir runs

A run continues from the checkpoints in its folder: the same command again resumes it, after Ctrl-C or after a crash.
The folder also gets the weights as weights.safetensors with a card, and TensorBoard logs. With torchrun, every rank
takes its share of the antithetic pairs. --dry-run says what a run will take on this machine; it needs no files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import torch
import tyro
from experiments.harness.output import command_line, explained, terminated_as_exit
from experiments.meta_training.cards import commit, reproducing, without_infinities
from experiments.meta_training.checks import check_sampler, check_tasks
from experiments.meta_training.cost import cost_table
from experiments.meta_training.options import ExecutionOptions, Options
from experiments.meta_training.sampler_options import check_positive

from learned_samplers.learned.weights import save as save_weights
from meta_tasks.estimators import Evaluator
from meta_tasks.rules.learned import NetworkRule
from meta_tasks.tasks import GaussianFamily, ImageTaskFamily
from meta_tasks.training.evaluation import HeldOutEvaluation
from meta_tasks.training.process import one_core
from meta_tasks.training.trainer import Trainer
from meta_tasks.training.workers import Executor, ProcessExecutor, RankExecutor, SerialExecutor

#: Learning rates that SGHMC and cyclical SGMCMC get on the held-out tasks (pSGLD a twentieth of each).
BASELINE_LRS = (0.02, 0.05, 0.1, 0.2)


def executor_maker(options: ExecutionOptions) -> Callable[[Evaluator], Executor]:
    """What runs an iteration's pairs; joins the process group if torchrun started this process.

    Raises:
        ValueError: there cannot be so many workers.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        if options.workers > 1:
            raise ValueError(f"workers={options.workers} and {ranks} ranks of torchrun cannot be combined")
        torch.distributed.init_process_group("gloo")

    def executor(evaluator: Evaluator) -> Executor:
        evaluator.stepping = stepping_of(options)
        if ranks > 1:
            return RankExecutor(evaluator)
        return ProcessExecutor(evaluator, options.workers) if options.workers > 1 else SerialExecutor(evaluator)

    return executor


def stepping_of(options: ExecutionOptions) -> str:
    """See `meta_tasks.inner_loop.unroll.Unroll`."""
    return "auto" if options.capture else "loop"


def make_trainer(options: Options) -> Trainer:
    """The trainer that the options describe; joins the process group if torchrun started this process.

    Raises:
        ValueError, FileNotFoundError: options that cannot be trained with; nothing has been then.
    """
    options.check()
    make_executor = executor_maker(options.execution)
    options.gradient.check(options.rule.sampler, options.rule.linear)
    family, rule, estimator = options.tasks.make(), options.rule.make(), options.gradient.make()
    seed = options.settings.seed
    defaults = recommended(options.default_lr, family)
    check_sampler(rule, seed, defaults["lr"], defaults["momentum_decay"])
    check_tasks(family, seed)
    check_positive("held_out_lrs", options.held_out_lrs or ())
    evaluation = None
    if options.settings.evaluate_every:
        if isinstance(family, GaussianFamily):
            raise ValueError("evaluate_every must be 0 for family 'gaussians', which has no held-out images")
        own = options.gradient
        evaluation = HeldOutEvaluation(
            family,
            own.horizon[1],
            samples=own.samples,
            tasks=options.held_out_tasks,
            lrs=sorted(set(options.held_out_lrs or family.lrs)),
            baseline_lrs=BASELINE_LRS,
            stepping=stepping_of(options.execution),
            burn_in=own.burn_in,
            cycles=own.cycles,
        )
        try:
            evaluation.check(rule)
        except ValueError as error:
            chosen = ", ".join(f"{name}={getattr(own, name)}" for name in ("horizon", "samples", "burn_in", "cycles"))
            raise ValueError(f"evaluation with {chosen}: {error}") from error
    return Trainer(
        family,
        rule,
        estimator,
        options.settings,
        folder=options.folder,
        make_executor=make_executor,
        evaluation=evaluation,
        main=int(os.environ.get("RANK", "0")) == 0,
    )


def recommended(lr: float | None, family: ImageTaskFamily | GaussianFamily) -> dict[str, float]:
    """The ``defaults`` of the weight card; ``lr`` None is the smallest of the family's."""
    if lr is None:
        lr = min(family.lrs)
    check_positive("default_lr", [lr])
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
        "defaults": recommended(options.default_lr, trainer.family),
        "meta_training": {
            "tasks": trainer.family.specification(),
            "horizon": trainer.estimator.specification()["horizon"],
            "estimator": {**trainer.estimator.specification(), **settings.outer_loop},
            "seed": settings.seed,
            "commit": commit(),
            "command": command,
            "reproduce": reproducing(command, trainer.iteration),
            "iterations": trainer.iteration,
            **trainer.stopping.card(),
            "hours": trainer.seconds / 3600,
        },
        "curve": [float(f"{loss:.4g}") if math.isfinite(loss) else None for loss in losses],
        "metrics": {"held_out": without_infinities(trainer.scores)},
        "licence": "MIT",
    }
    path = options.folder / "weights.safetensors"
    save_weights(path, rule.network(trainer.result), card)
    return path


def main(options: Options) -> None:
    one_core()
    if options.dry_run:
        with explained():
            print(cost_table(options, stepping_of(options.execution)))
        return
    # While iterations run, SIGTERM is only noted, and they are saved; at other times it ends the process.
    with terminated_as_exit(f"terminated; the same command goes on from the checkpoints in {options.folder}"):
        train(options)


def train(options: Options) -> None:
    """Make the trainer, run it, and write the weights; a user's error ends the process with one line."""
    try:
        trainer = make_trainer(options)
    except (ValueError, OSError, ModuleNotFoundError, RuntimeError) as error:
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
