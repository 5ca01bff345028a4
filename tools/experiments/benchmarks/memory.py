"""Memory of every sampler: its state, and the peak of a step above it, each in a process of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from experiments.benchmarks.contestants import COMPILED, SAMPLERS, step_of, uncompiled
from experiments.benchmarks.timing import write_table
from learned_samplers import MOOSVGD, MTSGD, SVGD
from learned_samplers.particles import MGDA
from learned_samplers.particles.base import ParticleSampler

#: Name in the table → the sampler and its number of targets K.
PARTICLE_SAMPLERS: dict[str, tuple[Callable[..., ParticleSampler], int]] = {
    "SVGD": (SVGD, 1),
    "MT-SGD": (MTSGD, 2),
    "MOO-SVGD": (MOOSVGD, 2),
    "MGDA": (MGDA, 2),
}

# Tensors that the weights of a sampler are in, besides one.
_COLUMNS = 200
_TENSORS = 200
# Of glibc's mallopt.
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True)
class MemoryBenchmark:
    """State of each sampler, and peak memory of a step above it, in float32 on a CPU (Linux).

    Of the particle samplers the peak alone, for M particles of d parameters.
    """

    # Weights of the samplers with one chain, in 200 tensors and in one; 0 leaves them out.
    weights: int = 10_000_000
    # Numbers of particles M.
    particles: tuple[int, ...] = (25, 50, 100)
    # Parameters of a particle.
    parameters: tuple[int, ...] = (250_000, 1_000_000)
    # File for the Markdown table, besides the terminal.
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("particles", "parameters"):
            if getattr(self, name) and min(getattr(self, name)) < 1:
                raise ValueError(f"{name} must hold positive integers, got {getattr(self, name)}")
        if self.weights and self.weights < _TENSORS:
            raise ValueError(f"weights must be 0 or at least {_TENSORS}, got {self.weights}")


def extra_bytes(name: str, particles: int, parameters: int) -> int:
    """By how much a step raises this process's peak of resident memory, the particles themselves left out."""
    torch.set_num_threads(1)
    make, targets = PARTICLE_SAMPLERS[name]
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
    return _status("VmHWM")


def _status(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def step_bytes(name: str, weights: int, tensors: int, compiled: bool) -> tuple[float, float]:
    """Bytes of a sampler's state, and the peak of a step above what there is before it, each for one of the weights."""
    torch.set_num_threads(1)
    # Large blocks come from the system and go back to it, so that the resident memory is what is in use.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    each = weights // tensors
    # Several tensors are matrices, of which some samplers keep more; a single one, the hardest case, is a vector.
    shape = (each // _COLUMNS, _COLUMNS) if tensors > 1 and each >= _COLUMNS else (each,)
    params = [torch.nn.Parameter(torch.randn(shape) * 0.05) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    size = sum(p.numel() for p in params)
    sampler = SAMPLERS[name](params)
    step = step_of(sampler) if compiled else uncompiled(step_of(sampler))
    step()
    kept = [x.untyped_storage() for x in tree_leaves(list(sampler.state.values())) if isinstance(x, Tensor)]
    state = {storage.data_ptr(): storage.nbytes() for storage in kept}
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    step()
    return sum(state.values()) / size, max(peak_bytes() - before, 0) / size


def in_its_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """What ``measure`` returns, of a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def benchmark_memory(options: MemoryBenchmark, command: str = "python tools/benchmark.py memory") -> None:
    tables = []
    if options.weights:
        tables.append(_sampler_table(options.weights))
    if options.particles and options.parameters:
        tables.append(_particle_table(options))
    write_table(options.out, command, "\n\n".join([f"torch {torch.__version__}", *tables]))


def _sampler_table(weights: int) -> str:
    """State, and peak of a step above it, as bytes a weight and as multiples of the weights."""
    lines = [
        f"| {weights:,} weights | state, bytes a weight | peak of a step above it, {_TENSORS} tensors | one tensor |",
        "|---|---:|---:|---:|",
    ]
    for name in SAMPLERS:
        for compiled in (True, False) if name in COMPILED else (True,):
            layouts = [in_its_own_process(step_bytes, name, weights, n, compiled) for n in (_TENSORS, 1)]
            state = layouts[0][0]
            cells = [f"{state:.1f} ({state / 4:.1f}×)", *(f"{peak / 4:.2f}×" for _, peak in layouts)]
            title = name if compiled else f"{name}, without compiled code"
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _particle_table(options: MemoryBenchmark) -> str:
    names = " | ".join(PARTICLE_SAMPLERS)
    lines = [f"| MB beside the particles (× of M·d) | {names} |", "|---|" + "---:|" * len(PARTICLE_SAMPLERS)]
    for parameters in options.parameters:
        for particles in options.particles:
            cells = []
            for name in PARTICLE_SAMPLERS:
                used = in_its_own_process(extra_bytes, name, particles, parameters)
                cells.append(f"{used / 1e6:,.0f} ({used / (4 * particles * parameters):.1f}×)")
            lines.append(f"| M={particles}, d={parameters:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
