"""tools/benchmark.py step: the contestants really step, and the training table says what was measured."""

import torch
from experiments.benchmarks import step
from experiments.benchmarks.step import StepBenchmark, training_steps


def test_every_training_step_moves_a_network_of_its_own():
    torch.manual_seed(0)
    steps = training_steps("cpu", num_images=600)
    losses = {name: [step().item() for _ in range(3)] for name, step in steps.items()}
    assert len(losses) == 3
    assert all(0.5 < loss < 5 for values in losses.values() for loss in values)
    assert len({loss for values in losses.values() for loss in values}) == 9


def test_the_tables_say_what_was_measured(tmp_path, monkeypatch, capsys):
    measured = {
        "SGHMC": 2.0, "Meta-SGMCMC, finite differences": 3.0, "torch SGD(momentum)": 1.0,
        "randn_like of every parameter": 1.0,
    }  # fmt: skip
    monkeypatch.setattr(step, "contestants", lambda make: {})
    monkeypatch.setattr(step, "training_steps", lambda device: {})
    monkeypatch.setattr(step, "_milliseconds", lambda *args: measured)
    out = tmp_path / "steps.md"
    step.benchmark_steps(StepBenchmark(out=out))
    text = out.read_text()
    assert "| Meta-SGMCMC, finite differences | 3.00 (1.50×) |" in text
    assert "| SGHMC | 2.00 (1.00×) | 2.00 (1.00×) |" in text
    assert text.splitlines()[2] in capsys.readouterr().out
