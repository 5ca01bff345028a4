"""Peak memory of one step of the particle samplers against particles and parameters, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.benchmarks.timing import write_table
from learned_samplers import MGDA, MOOSVGD, MTSGD, SVGD
from learned_samplers.particles.base import ParticleSampler

#: Name in the table → the sampler and its number of targets K.
SAMPLERS: dict[str, tuple[Callable[..., ParticleSampler], int]] = {
    "SVGD": (SVGD, 1),
    "MT-SGD": (MTSGD, 2),
    "MOO-SVGD": (MOOSVGD, 2),
    "MGDA": (MGDA, 2),
}


@dataclass(frozen=True)
class MemoryBenchmark:
    """Peak memory of one step for M particles of d parameters, quadratic losses, in float32 on a CPU (Linux)."""

    # Numbers of particles M.
    particles: tuple[int, ...] = (25, 50, 100)
    # Parameters of a particle.
    parameters: tuple[int, ...] = (250_000, 1_000_000)
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("particles", "parameters"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} must hold positive integers, got {getattr(self, name)}")


def extra_bytes(name: str, particles: int, parameters: int) -> int:
    """By how much a step raises this process's peak of resident memory, the particles themselves left out."""
    torch.set_num_threads(1)
    make, targets = SAMPLERS[name]
    x = torch.randn(particles, parameters).requires_grad_()
    sampler = make([x], 1e-12)

    def closure() -> Tensor:
        loss = x.square().sum(1)
        return loss if targets == 1 else torch.stack([loss * (k + 1) for k in range(targets)])

    before = peak_bytes()
    sampler.step(closure)
    return peak_bytes() - before


def peak_bytes() -> int:
    """This process's peak of resident memory. (That of `resource.getrusage` begins with the parent's.)"""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def in_its_own_process(name: str, particles: int, parameters: int) -> int:
    """`extra_bytes`, of a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(extra_bytes, (name, particles, parameters))


def benchmark_memory(options: MemoryBenchmark, command: str = "python tools/benchmark.py memory") -> None:
    lines = [f"| MB beside the particles (× of M·d) | {' | '.join(SAMPLERS)} |", "|---|" + "---:|" * len(SAMPLERS)]
    for parameters in options.parameters:
        for particles in options.particles:
            cells = []
            for name in SAMPLERS:
                used = in_its_own_process(name, particles, parameters)
                cells.append(f"{used / 1e6:,.0f} ({used / (4 * particles * parameters):.1f}×)")
            lines.append(f"| M={particles}, d={parameters:,} | " + " | ".join(cells) + " |")
    write_table(options.out, command, f"torch {torch.__version__}\n\n" + "\n".join(lines))
