"""tools/benchmark.py particles: all contestants do the same work, and the table says what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from experiments.benchmarks import particles as _benchmark_particles
from experiments.benchmarks.particles import (
    ParticleBenchmark,
    Problem,
    benchmark_particles,
    contestants,
    left_out,
    milliseconds,
    torchjd_mgda,
)

from learned_samplers.particles.multi_gradient import mgda_weights

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
            torch.testing.assert_close(losses[k][m], expected)


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_every_contestant_runs(name):
    steps = contestants(name, 3, 2, SMALL)
    assert next(iter(steps)) == "backward passes alone"
    assert len(steps) == (5 if torchjd_mgda() is None else 6)
    for step in steps.values():
        step()


def test_the_table_says_what_was_measured(tmp_path, monkeypatch, capsys):
    measured = {"backward passes alone": 2.0, "MT-SGD": 3.0}
    monkeypatch.setattr(_benchmark_particles, "contestants", lambda *args: {})
    monkeypatch.setattr(_benchmark_particles, "milliseconds", lambda *args: measured)
    out = tmp_path / "particles.md"
    benchmark_particles(ParticleBenchmark(network=("mlp",), particles=(5, 20), tasks=(2,), out=out))
    assert "| mlp, M=20, K=2 | 2.0 (1.00×) | 3.0 (1.50×) |" in out.read_text()
    assert "| mlp, M=5, K=2 |" in capsys.readouterr().out


def test_a_particle_is_a_network_of_its_own():
    problem = Problem("mlp", 3, 2, SMALL)
    losses = torch.stack(problem.losses())
    for m in range(3):
        torch.testing.assert_close(torch.stack(problem.particle(m)[3]), losses[:, m])


def test_the_loop_over_torchjd_gets_every_particle():
    """With a stand-in of its two functions: they see the losses and parameters of one particle after the other."""
    problem, seen = Problem("mlp", 3, 2, SMALL), []

    def mtl_backward(losses, features, tasks_params, shared_params):
        wanted = [*shared_params, *(p for head in tasks_params for p in head)]
        for p, grad in zip(wanted, torch.autograd.grad(sum(losses), wanted), strict=True):
            p.grad = grad
        seen.append([loss.item() for loss in losses])

    problem.torchjd_loop(mtl_backward, lambda params, aggregator: None, None)
    assert torch.tensor(seen).T.tolist() == pytest.approx(torch.stack(problem.losses()).detach().numpy())


def test_torchjd_weighs_as_mgda_does():
    """Where TorchJD is installed: its weights on the trunk's gradients of one particle are ours, to its tolerance."""
    if (peer := torchjd_mgda()) is None:
        pytest.skip("torchjd is not installed")
    mtl_backward, jac_to_grad, aggregator = peer
    problem = Problem("mlp", 1, 2, SMALL)
    own, hidden, heads, losses = problem.particle(0)
    mtl_backward(losses, features=hidden, tasks_params=heads, shared_params=own.values())
    gradients = torch.stack([torch.cat([p.jac[k].flatten() for p in own.values()]) for k in range(2)])
    jac_to_grad(own.values(), aggregator)
    theirs = torch.cat([p.grad.flatten() for p in own.values()])
    ours = mgda_weights(gradients[:, None])[0] @ gradients
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)


def test_what_is_too_large_is_left_out_and_named(tmp_path, capsys):
    options = replace(SMALL, network=("mlp",), particles=(2, 3), tasks=(1,), most_millions=0.2, out=tmp_path / "t.md")
    benchmark_particles(options)
    text = (tmp_path / "t.md").read_text()
    assert "| mlp, M=2, K=1 |" in text
    assert "| mlp, M=3, K=1 |" not in text
    assert "Left out: mlp, M=3, K=1 (0.251 million numbers in the gradients)." in text
    assert left_out("mlp", 2, 1, replace(SMALL, most_seconds=1e-9)).endswith("s for the backward passes alone")


@pytest.mark.parametrize("clock", ["wall", "processor"])
def test_the_best_round_counts_and_the_first_does_not(clock, monkeypatch):
    """With clocks of our own: steps of 9, 3 and 5 s by the one that is asked for; the other one stands still."""
    durations, now = iter([9.0, 3.0, 5.0]), {"wall": 0.0, "processor": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: now["wall"])
    monkeypatch.setattr("time.process_time", lambda: now["processor"])

    def step():
        now[clock] += next(durations)

    options = replace(SMALL, clock=clock)
    found = milliseconds({"one": step}, options, "title")
    assert found == {"one": 3000.0}


WRONG = [
    {"clock": "processor", "device": "cuda"},
    {"most_seconds": 0.0},
    {"most_millions": -1.0},
    {"particles": ()},
    {"tasks": (0,)},
    {"rounds": 1},
    {"threads": 0},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ParticleBenchmark(**wrong)
