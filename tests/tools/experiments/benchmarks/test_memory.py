"""tools/benchmark.py memory: what it measures and how it says so."""

from __future__ import annotations

import pytest
from experiments.benchmarks import memory as _benchmark_memory
from experiments.benchmarks.memory import MemoryBenchmark, benchmark_memory, in_its_own_process


def test_a_step_needs_some_times_the_particles():
    """40 MB of particles: more than gradient and direction, and far below all pairs' differences, 1.6 GB."""
    used = in_its_own_process("SVGD", 40, 250_000)
    assert 80e6 < used < 800e6


def test_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_benchmark_memory, "in_its_own_process", lambda name, m, d: 8 * m * d)
    out = tmp_path / "memory.md"
    benchmark_memory(MemoryBenchmark(particles=(5, 50), parameters=(1_000_000,), out=out))
    assert "| M=5, d=1,000,000 | 40 (2.0×) | 40 (2.0×) | 40 (2.0×) | 40 (2.0×) |" in out.read_text()
    assert "| M=50, d=1,000,000 | 400 (2.0×)" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"particles": ()}, {"parameters": (0,)}])
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MemoryBenchmark(**wrong)
