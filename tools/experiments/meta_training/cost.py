"""What a meta-training will cost, from a few of its iterations on random images: `meta_train.py --dry-run`."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from experiments.harness.devices import device_name, synchronize
from experiments.harness.tables import markdown
from experiments.meta_training.options import Options
from meta_tasks.estimators import AntitheticES
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.tasks import ImageTaskFamily
from meta_tasks.training import Trainer
from meta_tasks.training.workers import Executor, SerialExecutor

STEPS = 20  # of an inner loop of evolution strategies that is timed
ITERATIONS = 8  # that are timed, after one that is not
IMAGES = 2048  # that stand for a data set


def cost_table(options: Options, stepping: str, *, iterations: int = ITERATIONS, steps: int = STEPS) -> str:
    """The size of the meta-training and its hours on the device that is here, as Markdown.

    Iterations of evolution strategies are timed with inner loops of a few steps: a step costs the same in a long one.
    The tasks are the family's own, with random images of the shapes of its data sets, whose files are not needed.

    Args:
        stepping: of `meta_tasks.inner_loop.unroll.Unroll`.
        iterations, steps: timed; steps of an inner loop.

    Raises:
        ValueError: options that cannot be trained with, or a data set whose shape is not known.
    """
    options.check()
    options.gradient.check(options.rule.sampler, options.rule.linear)
    family, rule, estimator = options.tasks.make(), options.rule.make(), options.gradient.make()
    device = options.tasks.device
    if isinstance(family, ImageTaskFamily):
        family.stand_in(IMAGES)
    if isinstance(estimator, AntitheticES):
        short = replace(options.gradient, horizon=(steps, steps), samples=1, burn_in=0.5, cycles=1)
        timed: Any = short.make()
    else:
        timed = estimator

    def executor(evaluator: Any) -> Executor:
        evaluator.stepping = stepping
        return SerialExecutor(evaluator)

    settings = replace(options.settings, evaluate_every=0)
    trainer = Trainer(family, rule, timed, settings, make_executor=executor)
    trainer.step()  # allocates, and compiles what is compiled
    synchronize(device)
    started = time.perf_counter()
    done = [trainer.step() for _ in range(iterations)]
    synchronize(device)
    seconds = time.perf_counter() - started
    trainer.close()
    counted = sum(result.member_steps for each in done for result in each.results)
    per_iteration = counted / iterations
    if isinstance(estimator, AntitheticES):
        per_iteration *= mean_horizon(estimator.horizon) / steps
    total = per_iteration * settings.iterations
    speed = counted / seconds
    workers, jobs = options.execution.workers, len(estimator.jobs(settings.seed, 0))
    rounds = math.ceil(jobs / workers)  # of an iteration: it ends with the last of its jobs
    row = {
        "device": f"{device_name(device)}{f', {workers} processes' if workers > 1 else ''}",
        "iterations": f"{settings.iterations:,}",
        "member-steps an iteration": f"{per_iteration:,.0f}",
        "member-steps in all": f"{total:.3g}",
        "member-steps/s of one process": f"{speed:.3g}",
        "hours": f"{total / speed * rounds / jobs / 3600:.3g}",
    }
    idle = ""
    if jobs < workers * rounds:
        last = jobs - workers * (rounds - 1)
        when = "" if rounds == 1 else f" in the last of {rounds} rounds"
        idle = f"; an iteration has {jobs} jobs: of {workers} processes {workers - last} have nothing to do{when}"
    return (
        f"{markdown([row])}\n\nspeed of {iterations} iterations on tasks of family {family.name!r} with random images; "
        f"hours if every process has a core of its own and evaluations on held-out tasks are left out{idle}"
    )


def mean_horizon(horizon: Horizon) -> float:
    """Steps of an inner loop on average, over the log-uniform law of its length."""
    if horizon.shortest == horizon.longest:
        return float(horizon.longest)
    return (horizon.longest - horizon.shortest) / math.log(horizon.longest / horizon.shortest)
