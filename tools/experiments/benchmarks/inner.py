"""Member-steps per second of the inner loop on the paper's networks, one process a core, beside a peer program."""

from __future__ import annotations

import os
import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.multiprocessing
import tyro

from experiments.benchmarks.protocol import Protocol, measure_protocol
from experiments.benchmarks.timing import write_table
from experiments.benchmarks.variants import (
    NETWORK_VARIANTS,
    STEP_VARIANTS,
    make_network,
    variant_rule,
    variant_stepping,
    variants_on,
)
from experiments.harness.devices import device_name, synchronize
from meta_tasks.datasets import ImageData
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.networks import batched_network_for
from meta_tasks.objectives import BMALoss
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks.task import ImageTask, TaskConfig
from meta_tasks.training.process import one_core

CONFIGURATIONS = ((4, 1, 28, 128), (8, 3, 28, 128), (8, 3, 14, 64), (16, 5, 28, 128))
CLASSES = 10
Configuration = tuple[int, int, int, int]


@dataclass(frozen=True)
class InnerBenchmark:
    """Member-steps per second of L2E's inner loop for (channels, depth, size, batch), one process a core."""

    # Device, such as cpu or cuda.
    device: str = "cpu"
    # Processes, each on one core; by default as many as there are cores, or one for a GPU.
    processes: int | None = None
    # Members of one task in each process.
    members: int = 4
    # Steps timed in a round.
    steps: int = 20
    # Rounds; in each, every configuration runs once, here and in the peer.
    rounds: int = 3
    # Features that L2E sees; "paper" are the nine of the published sampler.
    feature_set: str = "paper"
    # Command of a peer program, started as one process: it gets --members --channels --depth --size --batch and prints
    # member-steps/s=NUMBER.
    peer: str | None = None
    # Also time these ways of computing the gradient, or "all": the table behind the choice.
    network_variants: tuple[str, ...] = ()
    # Also time these ways of taking a step, or "all" that the device has: loop, static, graph, fused-loop, fused-graph.
    step_variants: tuple[str, ...] = ()
    # Measure the paper's protocol instead of the table, extrapolated from this many of its outer iterations.
    protocol: int = 0
    # Settings of the paper's protocol.
    protocol_of: Annotated[Protocol, tyro.conf.OmitArgPrefixes] = field(default_factory=Protocol)
    # File for the Markdown tables, besides the terminal.
    out: Path | None = None

    def run(self) -> None:
        benchmark_inner(self)


def gflop(channels: int, depth: int, size: int, batch: int, features: int) -> float:
    """Arithmetic of one member-step in 10⁹ operations (a multiply-add is two): network and L2E's two passes."""
    pixels, pooled = batch * size * size, batch * channels * (size // 2) ** 2
    first, later = pixels * 9 * channels, pixels * 9 * channels * channels
    linear = pooled * 20 + batch * 20 * CLASSES
    # Forward, gradient of weights, gradient of inputs; the first layer has no need of the last.
    network = 2 * first + 3 * (depth - 1) * later + 3 * linear
    d = batched_network_for("cnn", (1, size, size), CLASSES, channels=channels, depth=depth).segments.total
    passes = d * (2 * (features * 32 + 32 * 32) + 32 * 3)
    return 2e-9 * (network + passes)


def make_unroll(configuration: Configuration, options: InnerBenchmark, variant: str) -> tuple[Unroll, torch.Tensor]:
    """Members on random images, at their first step."""
    channels, depth, size, batch = configuration
    x = torch.rand(4 * batch, 1, size, size)
    y = torch.randint(CLASSES, (4 * batch,))
    data = ImageData("random", CLASSES, x, y, x, y, x, y)
    settings = TaskConfig("random", "cnn", {"channels": channels, "depth": depth}, batch_size=batch, lr=0.1)
    task = ImageTask(settings, data, 0, options.device)
    if variant in NETWORK_VARIANTS:
        task.network = make_network(variant, task.network, options.members, batch)
    rule = variant_rule(variant)("residual", options.feature_set)
    weights = torch.stack([rule.initial_weights(i) for i in range(options.members)])
    group = 2 if options.members % 2 == 0 else 1
    groups = range(options.members // group)
    schedule = Schedule(10**6, 10**6 - 1, 1)  # nothing is collected: the peer does not evaluate either
    stepping = variant_stepping(variant)
    return Unroll(task, rule, BMALoss, schedule, groups, members_per_group=group, stepping=stepping), weights


def matmul_side(options: InnerBenchmark) -> int:
    """Side of the matrices whose product measures the peak: enough to fill the device."""
    return 1024 if options.device == "cpu" else 8192


def _serve(connection: Any, options: InnerBenchmark) -> None:
    """A process of the benchmark: times what it is asked for, when all are ready."""
    one_core()
    torch.manual_seed(0)
    while (request := connection.recv()) is not None:
        if request == "peak":
            a = torch.randn(matmul_side(options), matmul_side(options), device=options.device)

            def multiply(a: torch.Tensor = a) -> None:
                for _ in range(20):
                    a @ a

            work: Callable[[], None] = multiply
        else:
            configuration, variant = request
            unroll, weights = make_unroll(configuration, options, variant)

            def advance(unroll: Unroll = unroll, weights: torch.Tensor = weights) -> None:
                unroll.advance(weights, options.steps)

            work = advance

        with torch.no_grad():
            work()
            synchronize(options.device)
            connection.send("ready")
            connection.recv()
            started = time.perf_counter()
            work()
            synchronize(options.device)
            connection.send(time.perf_counter() - started)


def processes_of(options: InnerBenchmark) -> int:
    return options.processes or ((os.cpu_count() or 1) if options.device == "cpu" else 1)


class Processes:
    """The processes of the benchmark, which do the same at the same time."""

    def __init__(self, options: InnerBenchmark) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for _ in range(processes_of(options)):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, options), daemon=True)
            process.start()
            self.connections.append(here)
            self.processes.append(process)

    def seconds(self, request: Any) -> list[float]:
        """What each needs for one piece of work, all starting together.

        Raises:
            SystemExit: a process has ended.
        """
        try:
            for connection in self.connections:
                connection.send(request)
            for connection in self.connections:
                connection.recv()
            for connection in self.connections:
                connection.send("go")
            return [connection.recv() for connection in self.connections]
        except (EOFError, OSError) as error:
            raise SystemExit(f"error: a process of the benchmark ended at {request}, see above for why") from error

    def close(self) -> None:
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join()


def peer_speed(command: str, members: int, configuration: Configuration) -> float:
    """Member-steps/s that the peer program prints.

    Raises:
        SystemExit: it fails or prints no such number.
    """
    names = ("--members", "--channels", "--depth", "--size", "--batch")
    arguments = [text for pair in zip(names, map(str, (members, *configuration)), strict=True) for text in pair]
    done = subprocess.run([*shlex.split(command), *arguments], capture_output=True, text=True, check=False)
    found = re.search(r"member-steps/s=([0-9.]+)", done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"error: the peer {command!r} gave no member-steps/s=…: {done.stdout}{done.stderr}")
    return float(found.group(1))


def chosen(kind: str, given: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that were asked for.

    Raises:
        SystemExit: one is unknown.
    """
    names = known if given == ("all",) else given
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"error: {kind} must be of {', '.join(known)} or all, got {', '.join(unknown)}")
    return names


def benchmark_inner(options: InnerBenchmark, command: str = "python tools/benchmark.py inner") -> None:
    if options.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"error: device={options.device!r}: torch finds no GPU")
    networks = chosen("network_variants", options.network_variants, tuple(NETWORK_VARIANTS))
    steps = chosen("step_variants", options.step_variants, variants_on(options.device))
    if options.protocol:
        names = steps or (("loop",) if options.device == "cpu" else ("graph",))
        given = options.protocol_of, options.protocol, options.device, options.feature_set, names
        write_table(options.out, command, measure_protocol(*given))
        return
    L2ERule("residual", options.feature_set)  # refused here, not in each process
    processes = Processes(options)
    speeds: dict[tuple[Configuration, str], list[float]] = {}
    peaks = []
    for _ in range(options.rounds):
        peaks.append(sum(20 * 2 * matmul_side(options) ** 3 / s / 1e9 for s in processes.seconds("peak")))
        for configuration in CONFIGURATIONS:
            for variant in ("chosen", *(name for name in (*networks, *steps) if name != "chosen")):
                seconds = processes.seconds((configuration, variant))
                speed = sum(options.members * options.steps / s for s in seconds)
                speeds.setdefault((configuration, variant), []).append(speed)
            if options.peer is not None:
                speed = peer_speed(options.peer, options.members, configuration)
                speeds.setdefault((configuration, "peer"), []).append(speed)
    processes.close()
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    peak = statistics.median(peaks)
    side = matmul_side(options)
    peer = "" if options.peer is None else "; the peer is one process"
    head = (
        f"torch {torch.__version__}, {device_name(options.device)}, {processes_of(options)} processes of "
        f"{options.members} members, {options.feature_set} features, median of {options.rounds} rounds; matmul peak "
        f"{peak:.0f} GFLOP/s ({side}×{side}, float32, all processes together){peer}"
    )
    tables = [_speed_table(medians, peak, options)]
    if networks:
        tables.append(_variant_table(medians, {name: NETWORK_VARIANTS[name] for name in ("chosen", *networks)}))
    if steps:
        tables.append(_variant_table(medians, {name: STEP_VARIANTS[name] for name in steps}))
    write_table(options.out, command, "\n\n".join([head, *tables]))


def _speed_table(medians: dict[Any, float], peak: float, options: InnerBenchmark) -> str:
    features = L2ERule("residual", options.feature_set)._shapes[0][1]
    peer = options.peer is not None
    lines = [
        "| channels, depth, size, batch | GFLOP a member-step | member-steps/s | share of the matmul peak |"
        + (" peer | ratio |" if peer else ""),
        "|---|---:|---:|---:|" + ("---:|---:|" if peer else ""),
    ]
    for configuration in CONFIGURATIONS:
        speed, work = medians[configuration, "chosen"], gflop(*configuration, features)
        cells = [str(configuration)[1:-1], f"{work:.2f}", f"{speed:.0f}", f"{100 * speed * work / peak:.0f} %"]
        if peer:
            other = medians[configuration, "peer"]
            cells += [f"{other:.0f}", f"{speed / other:.1f}×"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _variant_table(medians: dict[Any, float], titles: dict[str, str]) -> str:
    columns = [str(configuration)[1:-1] for configuration in CONFIGURATIONS]
    lines = ["| member-steps/s | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for variant, title in titles.items():
        cells = [f"{medians[configuration, variant]:.0f}" for configuration in CONFIGURATIONS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)
