"""A meta-training: its trainer, the checks before it starts, and the weights with their card."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.harness.output import command_line
from experiments.meta_training.options import Options, check_positive
from learned_samplers.learned.cards import registered
from learned_samplers.learned.weights import save as save_weights
from meta_tasks.estimators import Evaluator
from meta_tasks.rules.learned import NetworkRule
from meta_tasks.tasks import GaussianFamily, ImageTaskFamily
from meta_tasks.training import HeldOutEvaluation, Trainer
from meta_tasks.training.workers import Executor, ProcessExecutor, RankExecutor, SerialExecutor

#: Learning rates that SGHMC and cyclical SGMCMC get on the held-out tasks (pSGLD a twentieth of each).
BASELINE_LRS = (0.02, 0.05, 0.1, 0.2)


def executor_maker(workers: int) -> Callable[[Evaluator], Executor]:
    """Maker of the executor of an iteration's pairs; joins the process group if torchrun started this process."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        if workers > 1:
            raise ValueError(f"workers={workers} and {ranks} ranks of torchrun cannot be combined")
        torch.distributed.init_process_group("gloo")
        return RankExecutor
    return (lambda evaluator: ProcessExecutor(evaluator, workers)) if workers > 1 else SerialExecutor


def make_trainer(options: Options) -> Trainer:
    """The trainer that the options describe; joins the process group if torchrun started this process."""
    options.check()
    family, rule, estimator = options.tasks.make(), options.make_rule(), options.gradient.make()
    make_executor = executor_maker(options.workers)
    check_sampler(rule, options.settings.seed, **recommended(options.default_lr, family))
    check_tasks(family, options.settings.seed)
    return Trainer(
        family,
        rule,
        estimator,
        options.settings,
        folder=options.folder,
        make_executor=make_executor,
        evaluation=held_out(options, family, rule) if options.settings.evaluate_every else None,
        main=int(os.environ.get("RANK", "0")) == 0,
    )


def held_out(options: Options, family: ImageTaskFamily | GaussianFamily, rule: NetworkRule) -> HeldOutEvaluation:
    """The evaluation on held-out tasks; ValueError where there are none, or the sampler cannot run on them."""
    if isinstance(family, GaussianFamily):
        raise ValueError("evaluate_every must be 0 for family 'gaussians', which has no held-out images")
    gradient = options.gradient
    evaluation = HeldOutEvaluation(
        family,
        gradient.horizon[1],
        samples=gradient.samples,
        tasks=options.held_out_tasks,
        lrs=sorted(set(options.held_out_lrs or family.lrs)),
        baseline_lrs=BASELINE_LRS,
        burn_in=gradient.burn_in,
    )
    try:
        evaluation.check(rule)
    except ValueError as error:
        chosen = ", ".join(f"{name}={getattr(gradient, name)}" for name in ("horizon", "samples", "burn_in"))
        raise ValueError(f"evaluation with {chosen}: {error}") from error
    return evaluation


def recommended(lr: float | None, family: ImageTaskFamily | GaussianFamily) -> dict[str, float]:
    """The ``defaults`` of the weight card; ``lr`` None is the smallest of the family's."""
    lr = min(family.lrs) if lr is None else lr
    check_positive("default_lr", [lr])
    return {"lr": lr, "momentum_decay": family.momentum_decays[0]}


def check_sampler(rule: NetworkRule, seed: int, lr: float, momentum_decay: float) -> None:
    """Make the sampler that the weight card will describe, once; ValueError is what its users would get."""
    sampler: Any = registered(rule.name)
    network = rule.network(rule.initial_weights(seed))
    params = [torch.zeros(1, requires_grad=True)]
    sampler(params, lr, 1000, network=network, momentum_decay=momentum_decay, settings=rule.settings)


def check_tasks(family: ImageTaskFamily | GaussianFamily, seed: int) -> None:
    """Draw a task of every data set with all of the family's labels: none shall turn out to be missing hours later."""
    if not isinstance(family, ImageTaskFamily):
        family.task(seed, 0, 0)
        return
    missing: dict[str, FileNotFoundError] = {}
    names = tuple(dict.fromkeys(family.dataset_names))
    for name in names:
        try:
            replace(family, dataset_names=(name,), label_subset_share=0.0).task(seed, 0, 0)
        except FileNotFoundError as error:
            missing[name] = error
        except ValueError as error:
            raise ValueError(f"datasets={family.dataset_names}, labels={family.labels}: {error}") from error
    if missing:
        there = " ".join(name for name in names if name not in missing)
        without = f"; without {'it' if len(missing) == 1 else 'them'}: --datasets {there}" if there else ""
        reasons = "; ".join(str(error) for error in missing.values())
        raise FileNotFoundError(f"family {family.name!r} needs {', '.join(missing)}{without}; {reasons}")


def write_weights(trainer: Trainer, options: Options) -> Path:
    """The weights as a safetensors file with its card in the run's folder."""
    rule, settings = trainer.rule, trainer.settings
    assert isinstance(rule, NetworkRule)
    assert isinstance(trainer.family, ImageTaskFamily | GaussianFamily)
    losses = trainer.history.get("median_loss", [])
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


def without_infinities(value: Any) -> Any:
    """Plain values with None in the place of NaN and infinities, which JSON has not; a sampler that fails has them."""
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def commit() -> str | None:
    """The commit that these tools are at, None outside a repository."""
    answer = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def reproducing(command: str, iterations: int) -> str:
    """The command that gives a meta-training's weights again, from the one that ended it and the iterations it did.

    The limit on the time is left out, because another machine would stop after another number of iterations. Where no
    iteration was done the command has a limit of zero minutes.
    """
    kept, words = [], iter(shlex.split(command))
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("--minutes", "--iterations"):
            kept.append(word)
        elif not value:
            next(words)
    ended = ["--iterations", str(iterations)] if iterations else ["--minutes", "0"]
    return shlex.join([*kept, *ended])
