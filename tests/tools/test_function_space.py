"""tools/function_space.py: every command end to end on small data; what it writes and reads back."""

from __future__ import annotations

import json

import pytest
from experiments.bandits import experiment
from experiments.bandits.posteriors import METHODS as BANDIT_METHODS
from experiments.function_space import uci_runs
from experiments.function_space.images import METHODS as IMAGE_METHODS
from experiments.function_space.sine import METHODS as SINE_METHODS
from experiments.function_space.uci import METHODS
from function_space import main

from tests.tools.experiments.function_space.test_uci import made, write

COMMAND = ["uci", "--sets", "yacht", "--splits", "3", "--steps", "5", "--particles", "3"]
COMMAND += ["--hmc-trajectories", "5"]


@pytest.fixture
def command(tmp_path, monkeypatch):
    write(tmp_path, made(60))
    monkeypatch.setattr(uci_runs, "AT_ONCE", 2)
    return [*COMMAND, "--data", str(tmp_path), "--out", str(tmp_path / "out")]


def test_command_is_resumed(command, tmp_path, capsys, monkeypatch):
    main(command)
    first = json.loads((tmp_path / "out" / "results.json").read_text())["sets"]["yacht"]
    assert set(first) == set(METHODS)
    assert all(len(entry["rmse"]) == len(entry["log_likelihood"]) == 3 for entry in first.values())
    for method, entry in first.items():
        tried = {float(rate): sum(values) for rate, values in entry["validation"].items()}
        assert entry["lr"] == (max(tried, key=tried.get) if tried else METHODS[method].lr)
    assert "yacht" in (tmp_path / "out" / "table.md").read_text()

    def refuse(*arguments):
        raise AssertionError("a finished run was done again")

    monkeypatch.setattr(uci_runs, "fit", refuse)
    main(command)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["sets"]["yacht"] == first
    with pytest.raises(SystemExit, match="seed 0 there, 1 here"):
        main([*command, "--seed", "1"])


def test_command_reports_divergence(command, tmp_path, monkeypatch, capsys):
    def diverge(*arguments):
        raise FloatingPointError("planted")

    monkeypatch.setattr(uci_runs, "fit", diverge)
    with pytest.raises(SystemExit, match="FSVGD on yacht: it diverged at every learning rate"):
        main(command)


def test_a_missing_file_is_named(command, tmp_path):
    with pytest.raises(SystemExit, match=r"kin8nm\.npz is missing"):
        main([*command, "--sets", "kin8nm"])


def test_mnist(tmp_path):
    settings = ["--dataset", "digits", "--hidden", "16", "--particles", "3", "--epochs", "60", "--tuning-epochs", "1"]
    main(["mnist", *settings, "--seeds", "2", "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())
    assert {method: len(runs) for method, runs in content["methods"].items()} == dict.fromkeys(IMAGE_METHODS, 2)
    assert all(run["error"] < 0.2 for runs in content["methods"].values() for run in runs)
    assert all(method in (tmp_path / "table.md").read_text() for method in IMAGE_METHODS)


def test_sine(tmp_path, capsys):
    small = ["--steps", "5", "--particles", "4", "--trajectories", "10", "--burn-in", "2"]
    main(["sine", "--seeds", "2", *small, "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert {method: len(runs) for method, runs in content.items()} == dict.fromkeys(SINE_METHODS, 2)
    assert content["HMC"][0]["ratio in the gap"] == pytest.approx(1)
    assert content["SVGD"][0]["acceptance_rate"] is None
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "seed 1, FSVGDFitted" in capsys.readouterr().out


def test_bandits(tmp_path, capsys, monkeypatch):
    arguments = ["bandits", "--contexts", "60", "--members", "3", "--hidden", "8", "--steps", "3", "--seeds", "2"]
    arguments += ["--problem", "wheel_0.5", "wheel_0.9", "--out", str(tmp_path)]
    main(arguments)
    content = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert {name: set(methods) for name, methods in content.items()} == {
        problem: set(BANDIT_METHODS) for problem in ("wheel_0.5", "wheel_0.9")
    }
    run = content["wheel_0.9"]["FSVGD"][1]
    assert run["rounds"][-1] == sum(run["arms"]) == 60
    assert "| wheel, δ = 0.5" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # All of it is on disk now.
    monkeypatch.setattr(experiment, "play", None)
    main(arguments)
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == content
