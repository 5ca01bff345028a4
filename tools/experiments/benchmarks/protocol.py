"""How long the meta-training of the L2E paper takes: measured on some of its outer iterations, and extrapolated."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from experiments.benchmarks.variants import variant_rule, variant_stepping
from experiments.harness.devices import device_name, synchronize
from meta_tasks.estimators import AntitheticES, Evaluator
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.tasks import ImageTaskFamily, family_named
from meta_tasks.training import Trainer, TrainerSettings
from meta_tasks.training.process import one_core
from meta_tasks.training.workers import Executor, SerialExecutor


@dataclass(frozen=True)
class Protocol:
    """The paper's: 1,000 outer iterations of one antithetic pair, 3,000 steps each, on its 120 task configurations."""

    # Steps of the inner loop; 10 states are collected in the last sixth.
    inner: int = 3000
    # Outer iterations to which the measured ones are extrapolated.
    outer: int = 1000
    # Antithetic pairs in an outer iteration, all of one task.
    pairs: int = 1
    # Task family.
    family: str = "paper"
    # Folder of its data; by default the one that LEARNED_SAMPLERS_DATA names.
    data: str | None = None
    # Random images in place of the family's data, where its files are not at hand: a step costs the same.
    random_data: bool = False


#: How many random images stand for a data set.
RANDOM_IMAGES = 50_000
#: That the paper reports, on one RTX A6000.
PAPER_MINUTES = 360


def make_trainer(protocol: Protocol, family: ImageTaskFamily, feature_set: str, variant: str) -> Trainer:
    """The protocol's trainer, with steps taken as a variant of `experiments.benchmarks.variants.STEP_VARIANTS` says.

    L2E has its residual form, whose arithmetic is the paper form's and for which there are fused kernels.
    """

    def executor(evaluator: Evaluator) -> Executor:
        evaluator.stepping = variant_stepping(variant)
        return SerialExecutor(evaluator)

    horizon = Horizon(protocol.inner, protocol.inner, samples=10, burn_in=5 / 6)
    estimator = AntitheticES(0.01, protocol.pairs, horizon, pairs_per_task=protocol.pairs)
    settings = TrainerSettings(iterations=protocol.outer, evaluate_every=0)
    rule = variant_rule(variant)("residual", feature_set)
    return Trainer(family, rule, estimator, settings, make_executor=executor)


def load_data(protocol: Protocol, family: ImageTaskFamily) -> None:
    """Have the family's data in memory.

    Raises:
        ValueError: random data for a data set whose shape is not known.
        FileNotFoundError: a data set is missing.
    """
    if protocol.random_data:
        family.stand_in(RANDOM_IMAGES)
        return
    for name in family.dataset_names:
        for size in family.sizes:
            family._data(name, size)


def measure_protocol(
    protocol: Protocol, measured: int, device: str, feature_set: str, variants: tuple[str, ...]
) -> str:
    """The table of what ``measured`` outer iterations took in each variant, the same tasks for all.

    The iteration before them is not counted: it loads data and libraries, and compiles what is compiled.

    Raises:
        SystemExit: an option is out of range, or the family's data is missing.
    """
    one_core()
    if measured < 2:
        raise SystemExit(f"error: protocol needs at least 2 iterations for its error, got {measured}")
    try:
        family = family_named(protocol.family, root=protocol.data, device=device)
        trainers = {variant: make_trainer(protocol, family, feature_set, variant) for variant in variants}
        load_data(protocol, family)
    except (ValueError, FileNotFoundError) as problem:
        raise SystemExit(f"error: {problem}") from problem
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(measured + 1):
        for variant, trainer in trainers.items():
            started = time.perf_counter()
            trainer.step()
            synchronize(device)
            if number:
                seconds[variant].append(time.perf_counter() - started)
    members, images = 2 * protocol.pairs, " (random images)" if protocol.random_data else ""
    lines = [
        f"torch {torch.__version__}, {device_name(device)}: {protocol.outer:,} outer × {protocol.inner:,} inner steps "
        f"of {members} members, task family {protocol.family!r}{images}, {feature_set} features; extrapolated from "
        f"{measured} outer iterations (± standard error; the tasks differ). The paper: {PAPER_MINUTES} minutes for "
        "1,000 × 3,000 of 2 on an RTX A6000.",
        "",
        "| steps taken by | seconds an outer iteration: mean (least to most) | member-steps/s | in all, minutes |",
        "|---|---:|---:|---:|",
    ]
    for variant, each in seconds.items():
        mean, error = statistics.mean(each), statistics.stdev(each) / len(each) ** 0.5
        minutes = protocol.outer / 60
        lines.append(
            f"| {variant} | {mean:.3g} ({min(each):.3g} to {max(each):.3g}) | {members * protocol.inner / mean:.0f} | "
            f"{minutes * mean:.3g} ± {minutes * error:.3g} |"
        )
    return "\n".join(lines)
