"""tools/benchmark.py: every contestant does the work that its row names, and the tables say what was measured."""

from __future__ import annotations

import benchmark
import pytest
import torch
from experiments.benchmarks import memory, step, timing

from learned_samplers import table
from learned_samplers.base import matrices
from learned_samplers.learned.native.kernel import native_library

# ---------------------------------------------------------------- timing


@pytest.mark.parametrize("times", [[10.0, 20.0], [10.0, 11.0, 20.0], [10.0, 11.0, 12.0, 13.0, 14.0]])
def test_no_percentile_lies_below_every_measurement(times):
    assert times[0] < timing.lower_decile(times) < times[1]


@pytest.mark.parametrize("clock", ["wall", "processor"])
def test_the_rounds_count_and_the_warm_up_does_not(clock, monkeypatch, capsys):
    """Rounds of ten steps of 9, 3 and 5 s by the clock that is asked for; the other one stands still."""
    durations, now = iter([9.0] * 10 + [3.0] * 10 + [5.0] * 10), {"wall": 0.0, "processor": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: now["wall"])
    monkeypatch.setattr("time.process_time", lambda: now["processor"])

    def one():
        now[clock] += next(durations)

    options = timing.TimingOptions(clock=clock, rounds=20)
    assert timing.milliseconds({"one": one}, options, "title") == {"one": pytest.approx(3200.0)}  # 3,000 and 5,000
    assert "title: 1 contestants, some " in capsys.readouterr().out


def test_a_round_holds_all_that_a_sampler_does_now_and_then(monkeypatch):
    """Covariances are decomposed in turns: a share of the steps that is left out would make a sampler look fast."""
    made = []
    root = matrices.inverse_root
    monkeypatch.setattr(matrices, "inverse_root", lambda covariance: made.append(1) or root(covariance))
    for name in ("L2E", "WhitenedSGHMC"):
        p = torch.nn.Parameter(torch.zeros(4, 3))
        p.grad = torch.ones(4, 3)
        take = timing.step_of(timing.SAMPLERS[name]([p]))
        counts = []
        for _ in range(3):
            made.clear()
            timing.seconds(take, timing.TimingOptions(), matrices.ROOT_EVERY)
            counts.append(len(made))
        assert counts[0] > 0
        assert counts[1] > 0
        assert counts[1] == counts[2]


# ---------------------------------------------------------------- step


def test_every_training_step_moves_a_network_of_its_own():
    torch.manual_seed(0)
    steps = step.mlp_steps("cpu", num_images=600)
    losses = {name: [take().item() for _ in range(3)] for name, take in steps.items()}
    assert all(0.5 < loss < 5 for values in losses.values() for loss in values)
    assert len({loss for values in losses.values() for loss in values}) == 3 * len(steps)


@pytest.mark.parametrize("network", ["CNN, 16×16", "ResNet-20-FRN of width 8, 16×16"])
def test_every_training_step_of_a_network_of_images_has_a_loss(network):
    torch.manual_seed(0)
    steps = step.training_steps(network, "cpu", batch=4)
    assert {"SGHMC", "Shampoo", "Muon", "AdaptedSGHMC(warmup=L2E), frozen"} <= set(steps)
    for name, take in steps.items():
        assert all(1 < take().item() < 5 for _ in range(3)), name


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

    steps = step.contestants(make, step.StepBenchmark(uncompiled=True))
    for take in steps.values():
        for _ in range(50):
            take()
    moved = [any(not torch.equal(p, q) for p, q in zip(*pair, strict=True)) for pair in made]
    assert {"L2E", "L2E, without compiled code", "MCLMC", "IVON", "torch Adam"} <= set(steps)
    assert moved.count(False) == 1  # the draws


def test_the_step_command_times_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "training_steps", lambda network, device: {"SGHMC": lambda: None})
    out = tmp_path / "steps.md"
    chosen = ["--samplers", "SGHMC", "MetaSGMCMC", "--rounds", "2", "--long-rounds", "0", "--out", str(out)]
    threads = torch.get_num_threads()
    benchmark.main(["step", *chosen, "--uncompiled"])
    assert torch.get_num_threads() == threads
    rows = [line.split("|")[1].strip() for line in out.read_text().split("\n\n")[1].splitlines()[2:]]
    torchs = ["torch SGD(momentum)", "torch Adam", "randn_like of every parameter"]
    assert rows == [*torchs, "SGHMC", "MetaSGMCMC", "MetaSGMCMC, without compiled code"]
    assert "16×16" in out.read_text()
    assert "10 million" not in out.read_text()


def test_a_step_command_that_is_stopped_leaves_what_is_finished(tmp_path, monkeypatch):
    out, asked = tmp_path / "steps.md", []

    def milliseconds(steps, options, title, **_):
        asked.append(title)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return dict.fromkeys(steps, 1.0)

    monkeypatch.setattr(step, "milliseconds", milliseconds)
    with pytest.raises(SystemExit, match="interrupted"):
        benchmark.main(["step", "--samplers", "SGHMC", "--long-rounds", "0", "--out", str(out)])
    assert "| SGHMC " in out.read_text()


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("name", "compiled", "most"),
    [("L2E", True, 3.5), ("L2E, network l2e", False, 4.5)],
)
def test_a_step_of_l2e_on_one_huge_tensor_needs_little_beside_its_state(name, compiled, most):
    """In weights: the noise and the two outputs are three; torch makes the direction and adaptive features, too."""
    if compiled and native_library() is None:
        pytest.skip("the compiled update is not there")
    state, peak = memory.in_its_own_process(memory.step_bytes, name, 2_000_000, 1, compiled)
    assert state == 4 * 9
    assert 4 * 0.9 < peak < 4 * most


def test_the_memory_table(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "in_its_own_process", lambda what, name, *numbers: (12.0, 6.0))
    benchmark.main(["memory", "--out", str(tmp_path / "memory.md")])
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in (tmp_path / "memory.md").read_text().splitlines()]
    assert ["L2E, without compiled code", "12.0 (3.0×)", "1.50×", "1.50×"] in rows


# ---------------------------------------------------------------- chains


def test_eight_chains_and_one_network_move_and_are_compared(tmp_path):
    x, y = torch.randn(20, step.FEATURES), torch.randn(20)
    for name in step.SIDE_BY_SIDE:
        separate = not table.SAMPLERS[name].stacked
        for model in (step.network(), step.Chains([step.network() for _ in range(2)], separate=separate)):
            before, take = [p.detach().clone() for p in model.parameters()], step.regression_step(model, name, x, y)
            for _ in range(10):
                take()
            assert not any(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    benchmark.main(["chains", "--rounds", "2", "--rows", "8", "--samplers", "MCLMC", "--out", str(tmp_path / "x.md")])
    assert "| MCLMC " in (tmp_path / "x.md").read_text()
    for wrong in ({"rows": 0}, {"samplers": ("Adam",)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            step.ChainsBenchmark(**wrong)
