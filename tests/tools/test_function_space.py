"""tools/function_space.py: every command end to end on small data; what it writes and reads back."""

from __future__ import annotations

import json

import pytest
from experiments.bandits import experiment
from experiments.bandits.posteriors import METHODS as BANDIT_METHODS
from experiments.function_space import uci
from experiments.function_space.images import METHODS as IMAGE_METHODS
from experiments.function_space.sine import METHODS as SINE_METHODS
from function_space import main

from tests.tools.experiments.function_space.test_uci import made, write

COMMAND = ["uci", "--sets", "yacht", "--splits", "3", "--steps", "5", "--particles", "3", "--hmc-trajectories", "5"]


def runs_of(out):
    return json.loads((out / "results.json").read_text())["runs"]


@pytest.fixture
def command(tmp_path, monkeypatch):
    write(tmp_path, made(60))
    monkeypatch.setattr(uci, "AT_ONCE", 2)
    return [*COMMAND, "--data", str(tmp_path), "--out", str(tmp_path / "out")]


def test_command_is_resumed(command, tmp_path, capsys, monkeypatch):
    main(command)
    by_method, content = runs_of(tmp_path / "out")["yacht"], json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(by_method) == set(uci.RATES)
    for runs in by_method.values():
        assert [len(run["rmse"]) for run in runs] == [len(run["log_likelihood"]) for run in runs] == [2, 1]
    for chosen in content["chosen"]:
        trials = {t["lr"]: t["score"] for t in content["tuning"] if t["method"] == chosen["method"]}
        assert chosen["lr"] == (min(trials, key=trials.get) if trials else 1e-3)
    assert "yacht" in (tmp_path / "out" / "table.md").read_text()
    monkeypatch.setattr(uci, "fit", None)  # a finished run is not done again
    main(command)
    assert runs_of(tmp_path / "out")["yacht"] == by_method
    with pytest.raises(SystemExit, match="base_seed 0 there, 1 here"):
        main([*command, "--seed", "1"])


def test_command_reports_divergence(command, monkeypatch, capsys):
    def diverge(*arguments):
        raise FloatingPointError("planted")

    monkeypatch.setattr(uci, "fit", diverge)
    with pytest.raises(SystemExit, match="yacht, FSVGD: it diverged at every learning rate"):
        main([*command, "--methods", "FSVGD", "SVGD"])


def test_a_missing_file_is_named(command):
    with pytest.raises(SystemExit, match=r"kin8nm\.npz is missing"):
        main([*command, "--sets", "kin8nm"])


def test_mnist(tmp_path):
    settings = ["--dataset", "digits", "--hidden", "16", "--particles", "3", "--epochs", "60", "--tuning-epochs", "1"]
    main(["mnist", *settings, "--seeds", "2", "--out", str(tmp_path)])
    by_method = runs_of(tmp_path)["digits"]
    assert {method: len(runs) for method, runs in by_method.items()} == dict.fromkeys(IMAGE_METHODS, 2)
    assert all(run["error"] < 0.2 for runs in by_method.values() for run in runs)
    assert all(run["error"] <= run["error_of_one"] + 0.05 for runs in by_method.values() for run in runs)
    assert all(method in (tmp_path / "table.md").read_text() for method in IMAGE_METHODS)


def test_sine(tmp_path):
    small = ["--steps", "5", "--particles", "4", "--trajectories", "10", "--burn-in", "2"]
    main(["sine", "--seeds", "2", *small, "--out", str(tmp_path)])
    by_method = runs_of(tmp_path)["sine"]
    assert {method: len(runs) for method, runs in by_method.items()} == dict.fromkeys(SINE_METHODS, 2)
    assert by_method["HMC"][0]["ratio in the gap"] == pytest.approx(1)
    assert by_method["SVGD"][0]["acceptance_rate"] is None
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_bandits(tmp_path, monkeypatch):
    arguments = ["bandits", "--contexts", "60", "--members", "3", "--hidden", "8", "--steps", "3", "--seeds", "2"]
    arguments += ["--problem", "wheel_0.5", "wheel_0.9", "--out", str(tmp_path)]
    main(arguments)
    by_problem = runs_of(tmp_path)
    assert {name: set(runs) for name, runs in by_problem.items()} == {p: set(BANDIT_METHODS) for p in by_problem}
    assert set(by_problem) == {"wheel_0.5", "wheel_0.9"}
    run = by_problem["wheel_0.9"]["FSVGD"][1]
    assert run["rounds"][-1] == sum(run["arms"]) == 60
    assert "| wheel_0.5" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    monkeypatch.setattr(experiment, "play", None)  # all of it is on disk now
    main(arguments)
    assert runs_of(tmp_path) == by_problem
