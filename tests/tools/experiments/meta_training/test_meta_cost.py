"""meta_train.py --dry-run: member-steps against the estimator's own, no files, nothing written."""

import math

import meta_train
import pytest
from experiments.meta_training import cost
from experiments.meta_training.options import Options

from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.random_streams import generator


def options(folder, *more):
    return meta_train.tyro.cli(Options, args=["--folder", str(folder / "run"), "--dry-run", *more])


def cells(text):
    names, _, row = (line.strip("| ").split("|") for line in text.splitlines()[:3])
    return {name.strip(): cell.strip() for name, cell in zip(names, row, strict=True)}


def test_the_mean_horizon_is_that_of_the_lengths_drawn():
    horizon, stream = Horizon(100, 900), generator("horizons")
    drawn = [horizon.schedule(stream).steps for _ in range(4000)]
    mean, spread = sum(drawn) / 4000, 230 / math.sqrt(4000)
    assert abs(cost.mean_horizon(horizon) - mean) < 4 * spread
    assert cost.mean_horizon(Horizon(50, 50)) == 50


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # pairs × 2 members × steps
        (["--family", "digits", "--pairs", "3", "--horizon", "100", "100"], 600),
        (["--family", "digits", "--pairs", "4", "--pairs-per-task", "2", "--horizon", "50", "50"], 400),
        (["--family", "digits", "--method", "nres", "--pairs", "2", "--window", "10", "--horizon", "40", "40"], 40),
        (
            [
                *("--family", "gaussians", "--sampler", "MetaSGMCMC", "--method", "tbptt", "--objective", "stein_kl"),
                *("--window", "15", "--num-chains", "6", "--slots", "2", "--horizon", "150", "300", "--lrs", "0.1"),
            ],
            180,
        ),
    ],
)
def test_member_steps_are_those_of_the_estimator(tmp_path, monkeypatch, more, expected):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))
    table = cells(cost.cost_table(options(tmp_path, *more, "--iterations", "50"), "loop", iterations=2, steps=4))
    assert table["member-steps an iteration"] == str(expected)
    assert float(table["member-steps in all"]) == pytest.approx(50 * expected, rel=0.01)
    assert float(table["hours"]) == pytest.approx(hours_of(table), rel=0.02)  # three digits are shown of each
    assert not (tmp_path / "run").exists()


def hours_of(table):
    """Of one process."""
    return float(table["member-steps in all"]) / float(table["member-steps/s of one process"]) / 3600


@pytest.mark.parametrize(
    ("pairs", "workers", "share", "idle"),
    [
        (2, 16, 1 / 2, "an iteration has 2 jobs: of 16 processes 14 have nothing to do"),
        (5, 2, 3 / 5, "an iteration has 5 jobs: of 2 processes 1 have nothing to do in the last of 3 rounds"),
        (4, 2, 1 / 2, None),
    ],
)
def test_hours_are_those_of_processes_that_have_something_to_do(tmp_path, pairs, workers, share, idle):
    more = ["--pairs", str(pairs), "--workers", str(workers), "--horizon", "100", "100", "--iterations", "5000"]
    text = cost.cost_table(options(tmp_path, *more), "loop", iterations=2, steps=4)
    table = cells(text)
    assert float(table["hours"]) == pytest.approx(share * hours_of(table), rel=0.03)
    assert text.endswith(f"left out; {idle}" if idle else "left out")


def test_the_command_needs_no_files_and_writes_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path / "none"))
    meta_train.main(options(tmp_path, "--family", "small", "--workers", "2"))
    found = cells(capsys.readouterr().out)
    assert "2 processes" in found["device"]
    assert list(tmp_path.iterdir()) == []


def test_options_that_cannot_be_trained_with_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="error: sampler='L2E' cannot be trained by estimator='tbptt'"):
        meta_train.main(options(tmp_path, "--method", "tbptt"))
