"""tools/benchmark.py memory: what it measures and how it says so."""

from __future__ import annotations

import pytest
from experiments.benchmarks import memory as _benchmark_memory
from experiments.benchmarks.memory import (
    MemoryBenchmark,
    benchmark_memory,
    extra_bytes,
    in_its_own_process,
    step_bytes,
)

from learned_samplers.learned.native.library import native_library


def test_a_step_needs_some_times_the_particles():
    """40 MB of particles: more than gradient and direction, and far below all pairs' differences, 1.6 GB."""
    used = in_its_own_process(extra_bytes, "SVGD", 40, 250_000)
    assert 80e6 < used < 800e6


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("name", "rows", "most"),
    [
        ("L2E", 9, 3.5),  # the look ahead and the factor are as large as the weights, too
        ("L2E, network l2e", 9, 1.5),
        ("L2E, lean", 5, 1.5),
        ("L2E, lean, averages in bfloat16", 3, 1.5),
    ],
)
def test_a_step_of_l2e_on_one_huge_tensor_needs_little_beside_its_state(name, rows, most, compiled):
    """In weights; the noise alone is one."""
    if compiled and native_library() is None:
        pytest.skip("the compiled update is not there")
    state, peak = in_its_own_process(step_bytes, name, 4_000_000, 1, compiled)
    assert state == 4 * rows
    assert 4 * 0.9 < peak < 4 * most


def test_the_tables(tmp_path, monkeypatch, capsys):
    def measured(what, name, *numbers):
        return (12.0, 6.0) if what is step_bytes else 8 * numbers[0] * numbers[1]

    monkeypatch.setattr(_benchmark_memory, "in_its_own_process", measured)
    out = tmp_path / "memory.md"
    benchmark_memory(MemoryBenchmark(particles=(5, 50), parameters=(1_000_000,), out=out))
    assert "| L2E, lean, without compiled code | 12.0 (3.0×) | 1.50× | 1.50× |" in out.read_text()
    assert "| M=5, d=1,000,000 | 40 (2.0×) | 40 (2.0×) | 40 (2.0×) | 40 (2.0×) |" in out.read_text()
    assert "| M=50, d=1,000,000 | 400 (2.0×)" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"particles": (-1,)}, {"parameters": (0,)}, {"weights": 100}])
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MemoryBenchmark(**wrong)
