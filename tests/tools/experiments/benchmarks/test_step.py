"""tools/benchmark.py step: the contestants really step, and the training table says what was measured."""

import pytest
import torch
from experiments.benchmarks import step
from experiments.benchmarks.contestants import SAMPLERS, step_of
from experiments.benchmarks.step import StepBenchmark, contestants, resnet_steps, training_steps

from learned_samplers.base import whitening


def test_every_training_step_moves_a_network_of_its_own():
    torch.manual_seed(0)
    steps = training_steps("cpu", num_images=600)
    losses = {name: [step().item() for _ in range(3)] for name, step in steps.items()}
    assert len(losses) == 4
    assert all(0.5 < loss < 5 for values in losses.values() for loss in values)
    assert len({loss for values in losses.values() for loss in values}) == 12


def test_the_processors_clock_is_for_a_cpu():
    with pytest.raises(ValueError, match=r"clock='processor' does not see what device='cuda' does"):
        StepBenchmark(clock="processor", device="cuda")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 1}, "rounds must be at least 2, got 1"),
        ({"long_rounds": 1}, "long_rounds must be at least 2, got 1"),
        ({"long_rounds": -2}, "long_rounds must be at least 2, got -2"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"sizes": (16, 0)}, r"sizes must hold positive integers, got \(16, 0\)"),
    ],
)
def test_bad_options_are_named_before_anything_is_timed(wrong, message):
    with pytest.raises(ValueError, match=message):
        StepBenchmark(**wrong)


def test_every_training_step_of_the_resnet_is_one():
    for name, take in resnet_steps(8, "cpu", batch=4).items():
        assert 1 < take().item() < 5, name


def test_every_contestant_moves_its_parameters():
    """Adam and its kind, and every sampler; the draws alone move nothing."""
    made = []

    def make():
        # At zero no move, however short, is lost to rounding.
        params = [torch.nn.Parameter(torch.zeros(7, 3)), torch.nn.Parameter(torch.zeros(5))]
        for p in params:
            p.grad = torch.randn_like(p)
        made.append((params, [p.detach().clone() for p in params]))
        return params

    steps = contestants(make, without_code=True)
    for take in steps.values():
        for _ in range(50):
            take()
    moved = [any(not torch.equal(p, q) for p, q in zip(*each, strict=True)) for each in made]
    assert {"L2E, lean", "L2E, lean, without compiled code", "MCLMC", "IVON", "torch Adam"} <= set(steps)
    # (The draws move nothing, and the posteriors package has its parameters in a state of its own.)
    assert sum(not each for each in moved) <= 2 + ("ivon-opt IVON" not in steps)


def test_some_samplers_can_be_chosen():
    names = ("SGHMC", "MetaSGMCMC")
    steps = contestants(lambda: [torch.nn.Parameter(torch.zeros(2))], True, names)
    torchs = {"torch SGD(momentum)", "torch Adam", "randn_like of every parameter"}
    assert set(steps) == {*torchs, *names, "MetaSGMCMC, without compiled code"}
    with pytest.raises(ValueError, match=r"samplers must be of .*MetaSGMCMC.*, got SGHCM"):
        StepBenchmark(samplers=("SGHCM",))


def test_the_tables_say_what_was_measured(tmp_path, monkeypatch, capsys):
    measured = {
        "SGHMC": 2.0,
        "MetaSGMCMC": 3.0,
        "torch SGD(momentum)": 1.0,
        "randn_like of every parameter": 1.0,
    }
    monkeypatch.setattr(step, "contestants", lambda *args: {})
    monkeypatch.setattr(step, "training_steps", lambda device: {})
    monkeypatch.setattr(step, "_milliseconds", lambda *args: measured)
    out = tmp_path / "steps.md"
    monkeypatch.setattr(step, "resnet_steps", lambda size, device: {})
    step.benchmark_steps(StepBenchmark(out=out))
    text = out.read_text()
    assert "| MetaSGMCMC | 3.00 (1.50×) |" in text
    assert "| SGHMC | 2.00 (1.00×) | 2.00 (1.00×) |" in text
    assert text.splitlines()[2] in capsys.readouterr().out


def test_what_is_done_now_and_then_is_counted(monkeypatch):
    taken = {"SGHMC": 0, "L2E": 0, "L2E, without compiled code": 0}

    steps = {name: lambda name=name: taken.update({name: taken[name] + 1}) for name in taken}
    monkeypatch.setattr(step, "interleaved", lambda given, *_, **__: {n: [f() or 20.0] * 4 for n, f in given.items()})
    found = step._milliseconds(steps, 4, StepBenchmark(), "title")
    assert taken == {"SGHMC": 1, "L2E": 10, "L2E, without compiled code": 10}
    assert found == {"SGHMC": 20.0, "L2E": 2.0, "L2E, without compiled code": 2.0}


def test_what_decomposes_covariances_now_and_then_is_timed_over_a_whole_period(monkeypatch):
    """Of every sampler in the table: a share of its steps that is left out would make it look fast."""
    made = []
    root = whitening._inverse_root
    monkeypatch.setattr(whitening, "_inverse_root", lambda covariance: made.append(1) or root(covariance))
    whitens = set()
    for name, make in SAMPLERS.items():
        p = torch.nn.Parameter(torch.zeros(4, 3))
        p.grad = torch.ones(4, 3)
        sampler = step_of(make([p]))
        for _ in range(whitening.AT_FIRST + 1):
            sampler()
        made.clear()
        for _ in range(whitening.ROOT_EVERY):
            sampler()
        if made:
            whitens.add(name)
    assert whitens == set(step._PERIODS)


def test_what_is_large_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(
        step, "_milliseconds", lambda *args: {"torch SGD(momentum)": 1.0, "randn_like of every parameter": 1.0}
    )
    out = tmp_path / "steps.md"
    step.benchmark_steps(StepBenchmark(out=out, long_rounds=0, samplers=("SGHMC",), rounds=7))
    text = out.read_text()
    assert "7 rounds\n" in text
    assert "16×16" in text
    assert "10 million" not in text
    assert "32×32" not in text
