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

from experiments.benchmarks.timing import COMPILED, SAMPLERS, step_of, uncompiled, write_table
from experiments.harness.options import at_least
from experiments.harness.tables import markdown

_TENSORS, _COLUMNS = 200, 200  # of the weights of a sampler, besides one tensor; and of each tensor
_M_MMAP_THRESHOLD = -3  # of glibc's mallopt


@dataclass(frozen=True)
class MemoryBenchmark:
    """State of each sampler, and peak memory of a step above it, in float32 on a CPU (Linux)."""

    weights: int = 10_000_000  # Weights, in 200 tensors and in one.
    out: Path | None = None  # File for the Markdown table, besides the terminal.

    def __post_init__(self) -> None:
        at_least(_TENSORS, self, "weights")


def memory(name: str) -> int:
    """Bytes of this process: VmHWM is its peak of resident memory (`resource.getrusage` begins with the parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def step_bytes(name: str, weights: int, tensors: int, compiled: bool) -> tuple[float, float]:
    """Bytes of a sampler's state, and the peak of a step above what there is before it, each for one of the weights."""
    torch.set_num_threads(1)
    # Large blocks come from the system and go back to it, so that the resident memory is what is in use.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    size = weights // tensors
    # Several tensors are matrices, of which some samplers keep more; a single one, the hardest case, is a vector.
    shape = (size // _COLUMNS, _COLUMNS) if tensors > 1 and size >= _COLUMNS else (size,)
    params = [torch.nn.Parameter(torch.randn(shape) * 0.05) for _ in range(tensors)]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    total = sum(p.numel() for p in params)
    sampler = SAMPLERS[name](params)
    step = step_of(sampler) if compiled else uncompiled(step_of(sampler))
    step()
    storages = [x.untyped_storage() for x in tree_leaves(list(sampler.state.values())) if isinstance(x, Tensor)]
    state = {storage.data_ptr(): storage.nbytes() for storage in storages}
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    step()
    return sum(state.values()) / total, max(memory("VmHWM") - before, 0) / total


def in_its_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Result of ``measure`` in a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def benchmark_memory(options: MemoryBenchmark, command: str = "python tools/benchmark.py memory") -> None:
    """Measure, and write the table: state, and peak of a step above it, also as multiples of the weights."""
    rows, weights = [], options.weights
    for name, compiled in [(n, c) for n in SAMPLERS for c in (True, False) if c or n in COMPILED]:
        layouts = [in_its_own_process(step_bytes, name, weights, n, compiled) for n in (_TENSORS, 1)]
        state = layouts[0][0]
        cells = {f"{weights:,} weights": name if compiled else f"{name}, without compiled code"}
        cells |= {"state, bytes a weight": f"{state:.1f} ({state / 4:.1f}×)"}
        cells |= {f"peak of a step above it, {_TENSORS} tensors": f"{layouts[0][1] / 4:.2f}×"}
        rows.append(cells | {"one tensor": f"{layouts[1][1] / 4:.2f}×"})
    write_table(options.out, command, f"torch {torch.__version__}\n\n{markdown(rows)}")
