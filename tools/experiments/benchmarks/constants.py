"""The constants of docs/scaling.md: memory, storage and time per weight, and what evolution strategies send."""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.benchmarks.timing import write_table
from learned_samplers import BAOA, L2E, SGHMC, SGLD, PosteriorSamples, ScaleAdaptedSGHMC
from meta_tasks.estimators.jobs import JobResult

#: Name in the table → the optimizer of some parameters.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "torch.optim.SGD, momentum": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
    "torch.optim.Adam": lambda p: torch.optim.Adam(p, 1e-3),
    "SGLD": lambda p: SGLD(p, 1e-3, 1000),
    "SGHMC": lambda p: SGHMC(p, 1e-3, 1000),
    "BAOA": lambda p: BAOA(p, 1e-3, 1000),
    "ScaleAdaptedSGHMC": lambda p: ScaleAdaptedSGHMC(p, 1e-3, 1000, adaptation_steps=2),
    'L2E, `network="l2e"`': lambda p: L2E(p, 1e-3, 1000, network="l2e"),
}


@dataclass(frozen=True)
class ConstantsBenchmark:
    """Bytes of state and of stored samples, and seconds a step, for each weight of a large linear layer."""

    # Weights of the layer.
    weights: int = 4_000_000
    # Steps that are timed, after one that allocates.
    steps: int = 7
    # CPU threads.
    threads: int = 1
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("weights", "steps", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def layer(weights: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A linear layer of so many weights, without a bias, with gradients."""
    model = nn.Linear(1000, max(1, weights // 1000), bias=False).to(dtype)
    model.weight.grad = torch.full_like(model.weight, 1e-3)
    return model


def bytes_per_weight(make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype, weights: int) -> float:
    """Bytes of an optimizer's state for each weight, without parameter and gradient."""
    model = layer(weights, dtype)
    optimizer = make(model.parameters())
    optimizer.step()
    state = optimizer.state[model.weight].values()
    return sum(x.nbytes for x in state if isinstance(x, torch.Tensor)) / model.weight.numel()


def seconds_per_weight(make: Callable[[Any], torch.optim.Optimizer], weights: int, steps: int) -> float:
    """Median seconds of a step for each weight."""
    model = layer(weights)
    optimizer = make(model.parameters())
    taken = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        optimizer.step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:]) / model.weight.numel()


def stored_bytes_per_weight(dtype: torch.dtype | None, weights: int) -> float:
    """Bytes on disk of a sample for each weight."""
    with tempfile.TemporaryDirectory() as folder:
        model = layer(weights)
        sampler = SGLD(model.parameters(), 1e-3, 1000)
        with PosteriorSamples(model, sampler, dtype=dtype, path=folder):
            sampler.step()
        (sample,) = Path(folder).glob("step-*.safetensors")
        return sample.stat().st_size / model.weight.numel()


def message_bytes(pairs: int) -> int:
    """Bytes that a process sends for so many antithetic pairs of one task."""
    result = JobResult(torch.zeros(pairs, 2), kind="task", failed=0, member_steps=1, seconds=1.0, curve=[0.5] * 20)
    return len(pickle.dumps([result]))


def benchmark_constants(options: ConstantsBenchmark, command: str = "python tools/benchmark.py constants") -> None:
    torch.set_num_threads(options.threads)
    lines = ["| | state, float32 [bytes] | state, bfloat16 [bytes] | step [ns] |", "|---|---:|---:|---:|"]
    for name, make in OPTIMIZERS.items():
        full = bytes_per_weight(make, torch.float32, options.weights)
        half = bytes_per_weight(make, torch.bfloat16, options.weights)
        nanoseconds = 1e9 * seconds_per_weight(make, options.weights, options.steps)
        lines.append(f"| {name} | {full:.1f} | {half:.1f} | {nanoseconds:.2f} |")
    stored = [f"{stored_bytes_per_weight(dtype, options.weights):.3f}" for dtype in (None, torch.bfloat16)]
    one, many = message_bytes(1), message_bytes(1001)
    text = (
        f"For each weight, of {options.weights:,}, {options.threads} thread(s), torch {torch.__version__}:\n\n"
        + "\n".join(lines)
        + f"\n\nA stored sample: {stored[0]} bytes a weight, {stored[1]} in bfloat16.\n"
        + f"A process's message for antithetic pairs: {one} bytes for one, {(many - one) / 1000:.1f} for each more."
    )
    write_table(options.out, command, text)
