"""tools/benchmark.py particles: all contestants do the same work, and the table says what was measured."""

from __future__ import annotations

import _benchmark_particles
import pytest
import torch
from _benchmark_particles import ParticleBenchmark, Problem, benchmark_particles, contestants

SMALL = ParticleBenchmark(particles=(3,), tasks=(2,), batch_size=4, rounds=2)


def test_the_lenet_has_the_papers_size():
    problem = Problem("lenet", 1, 2, SMALL)
    tensors = [*problem.trunk.values(), *problem.heads, *problem.bias]
    assert sum(p.numel() for p in tensors) == 22_350


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_losses_are_those_of_every_network_by_itself(name):
    problem = Problem(name, 3, 2, SMALL)
    losses = problem.losses()
    for m in range(3):
        own = {key: p[m] for key, p in problem.trunk.items()}
        hidden = torch.func.functional_call(problem.network, own, (problem.x,))
        for k in range(2):
            logits = hidden @ problem.heads[k][m] + problem.bias[k][m]
            expected = torch.nn.functional.cross_entropy(logits, problem.y[k])
            torch.testing.assert_close(losses[k, m], expected)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_every_contestant_runs(name):
    steps = contestants(name, 3, 2, SMALL)
    assert next(iter(steps)) == "backward passes alone"
    assert len(steps) == 5
    for step in steps.values():
        step()


def test_the_table_says_what_was_measured(tmp_path, monkeypatch, capsys):
    measured = {"backward passes alone": 2.0, "MT-SGD": 3.0}
    monkeypatch.setattr(_benchmark_particles, "contestants", lambda *args: {})
    monkeypatch.setattr(_benchmark_particles, "_milliseconds", lambda steps, options, title: measured)
    out = tmp_path / "particles.md"
    benchmark_particles(ParticleBenchmark(network=("mlp",), particles=(5, 20), tasks=(2,), out=out))
    assert "| mlp, M=20, K=2 | 2.0 (1.00×) | 3.0 (1.50×) |" in out.read_text()
    assert "| mlp, M=5, K=2 |" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"particles": ()}, {"tasks": (0,)}, {"rounds": 1}])
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ParticleBenchmark(**wrong)
