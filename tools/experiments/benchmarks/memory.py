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

from experiments.benchmarks.samplers import COMPILED, SAMPLERS, step_of, uncompiled
from experiments.benchmarks.timing import write_table
from experiments.harness.tables import markdown
from learned_samplers import MOOSVGD, MTSGD, SVGD
from learned_samplers.particles.base import ParticleSampler

#: Name in the table → the sampler and its number of targets K.
PARTICLE_SAMPLERS: dict[str, tuple[Callable[..., ParticleSampler], int]] = {
    "SVGD": (SVGD, 1),
    "MT-SGD": (MTSGD, 2),
    "MOO-SVGD": (MOOSVGD, 2),
}
_TENSORS = 200  # that the weights of a sampler are in, besides one
_COLUMNS = 200  # of each
_M_MMAP_THRESHOLD = -3  # of glibc's mallopt


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
            if min(getattr(self, name), default=1) < 1:
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

    before = memory("VmHWM")
    sampler.step(closure)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Bytes of this process: VmHWM is its peak of resident memory (`resource.getrusage` begins with the parent's)."""
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
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    step()
    return sum(state.values()) / size, max(memory("VmHWM") - before, 0) / size


def in_its_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """What ``measure`` returns, of a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def benchmark_memory(options: MemoryBenchmark, command: str = "python tools/benchmark.py memory") -> None:
    tables = []
    if options.weights:
        cases = [(name, compiled) for name in SAMPLERS for compiled in (True, False) if compiled or name in COMPILED]
        tables.append(markdown([_sampler_row(*case, options.weights) for case in cases]))
    if rows := [_particle_row(m, d) for d in options.parameters for m in options.particles]:
        tables.append(markdown(rows))
    write_table(options.out, command, "\n\n".join([f"torch {torch.__version__}", *tables]))


def _sampler_row(name: str, compiled: bool, weights: int) -> dict[str, str]:
    """State, and peak of a step above it, as bytes a weight and as multiples of the weights."""
    layouts = [in_its_own_process(step_bytes, name, weights, n, compiled) for n in (_TENSORS, 1)]
    state = layouts[0][0]
    return {
        f"{weights:,} weights": name if compiled else f"{name}, without compiled code",
        "state, bytes a weight": f"{state:.1f} ({state / 4:.1f}×)",
        f"peak of a step above it, {_TENSORS} tensors": f"{layouts[0][1] / 4:.2f}×",
        "one tensor": f"{layouts[1][1] / 4:.2f}×",
    }


def _particle_row(particles: int, parameters: int) -> dict[str, str]:
    row = {"MB beside the particles (× of M·d)": f"M={particles}, d={parameters:,}"}
    for name in PARTICLE_SAMPLERS:
        used = in_its_own_process(extra_bytes, name, particles, parameters)
        row[name] = f"{used / 1e6:,.0f} ({used / (4 * particles * parameters):.1f}×)"
    return row
