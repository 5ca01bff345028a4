"""What a meta-training will cost, from a few of its iterations on random images: `meta_train.py --dry-run`."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from experiments.harness.devices import device_name, synchronize
from experiments.harness.tables import markdown
from experiments.meta_training.options import Options
from meta_tasks.estimators import AntitheticES
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.tasks import ImageTaskFamily
from meta_tasks.training import Trainer
from meta_tasks.training.workers import SerialExecutor

STEPS = 20  # of an inner loop of evolution strategies that is timed
ITERATIONS = 8  # that are timed, after one that is not
IMAGES = 2048  # that stand for a data set


def cost_table(options: Options, *, iterations: int = ITERATIONS, steps: int = STEPS) -> str:
    """The size of the meta-training and its hours on the device that is here, as Markdown.

    Iterations of evolution strategies are timed with inner loops of a few steps: a step costs the same in a long one.
    The tasks are the family's own, with random images of the shapes of its data sets, whose files are not needed.

    Raises:
        ValueError: options that cannot be trained with, or a data set whose shape is not known.
    """
    options.check()
    family, rule, estimator = options.tasks.make(), options.make_rule(), options.gradient.make()
    device = options.tasks.device
    if isinstance(family, ImageTaskFamily):
        family.stand_in(IMAGES)
    whole_loops = isinstance(estimator, AntitheticES)
    short = {"horizon": (steps, steps), "samples": 1, "burn_in": 0.5} if whole_loops else {}
    timed = replace(options.gradient, **short).make()
    settings = replace(options.settings, evaluate_every=0)
    trainer = Trainer(family, rule, timed, settings, make_executor=SerialExecutor)
    trainer.step()  # allocates, and compiles what is compiled
    synchronize(device)
    started = time.perf_counter()
    done = [trainer.step() for _ in range(iterations)]
    synchronize(device)
    seconds = time.perf_counter() - started
    trainer.close()
    counted = sum(result.member_steps for each in done for result in each.results)
    per_iteration = counted / iterations * (mean_horizon(estimator.horizon) / steps if whole_loops else 1)
    total, speed = per_iteration * settings.iterations, counted / seconds
    workers, jobs = options.workers, len(estimator.jobs(settings.seed, 0))
    rounds = math.ceil(jobs / workers)  # of an iteration: it ends with the last of its jobs
    row = {
        "device": f"{device_name(device)}{f', {workers} processes' if workers > 1 else ''}",
        "iterations": f"{settings.iterations:,}",
        "member-steps an iteration": f"{per_iteration:,.0f}",
        "member-steps in all": f"{total:.3g}",
        "member-steps/s of one process": f"{speed:.3g}",
        "hours": f"{total / speed * rounds / jobs / 3600:.3g}",
    }
    spare = workers * rounds - jobs
    idle = f"; an iteration has {jobs} jobs, so that {spare} of {workers} processes wait for its end" if spare else ""
    return (
        f"{markdown([row])}\n\nspeed of {iterations} iterations on tasks of family {family.name!r} with random images; "
        f"hours if every process has a core of its own and evaluations on held-out tasks are left out{idle}"
    )


def mean_horizon(horizon: Horizon) -> float:
    """Steps of an inner loop on average, over the log-uniform law of its length."""
    if horizon.shortest == horizon.longest:
        return float(horizon.longest)
    return (horizon.longest - horizon.shortest) / math.log(horizon.longest / horizon.shortest)
