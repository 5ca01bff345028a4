"""tools/function_space.py: every command end to end on small data; what it writes, reads back and refuses."""

from __future__ import annotations

import json
import re

import pytest
from experiments.function_space import uci_runs
from experiments.function_space.image_ensembles import METHODS as IMAGE_METHODS
from experiments.function_space.sine import METHODS as SINE_METHODS
from experiments.function_space.uci import METHODS
from function_space import main

from tests.tools.experiments.function_space.test_uci_data import made, write

COMMAND = ["uci", "--sets", "yacht", "--splits", "3", "--steps", "5", "--particles", "3", "--at-once", "2"]
COMMAND += ["--hmc-trajectories", "5"]


@pytest.fixture
def command(tmp_path):
    write(tmp_path, made(60))
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
    with pytest.raises(AssertionError, match="done again"):  # other settings are other runs
        main([*command, "--seed", "1"])


def test_command_stops_in_time_and_reports_divergence(command, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--minutes", "0"])
    assert caught.value.code == 3

    def diverge(*arguments):
        raise FloatingPointError("planted")

    monkeypatch.setattr(uci_runs, "fit", diverge)
    with pytest.raises(SystemExit, match="FSVGD on yacht: it diverged at every learning rate"):
        main(command)


def test_bad_options(command, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*command, "--splits", "0"])
    assert "splits must be at least 1, got 0" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    with pytest.raises(SystemExit, match="hmc_trajectories must be at least 5, or no state is kept, got 3"):
        main([*command, "--hmc-trajectories", "3"])
    with pytest.raises(SystemExit, match=r"kin8nm\.npz is missing"):
        main([*command, "--sets", "kin8nm"])


def test_mnist_and_attack(tmp_path, capsys):
    settings = ["--dataset", "digits", "--hidden", "16", "--particles", "3", "--epochs", "60", "--tuning-epochs", "1"]
    settings += ["--runs", str(tmp_path / "runs")]
    with pytest.raises(SystemExit, match="train those networks first"):
        main(["attack", *settings, "--out", str(tmp_path / "attack")])
    main(["mnist", *settings, "--seeds", "2", "--out", str(tmp_path / "error")])
    content = json.loads((tmp_path / "error" / "results.json").read_text())
    assert {method: len(runs) for method, runs in content["methods"].items()} == dict.fromkeys(IMAGE_METHODS, 2)
    assert all(method in (tmp_path / "error" / "table.md").read_text() for method in IMAGE_METHODS)
    capsys.readouterr()
    main(["attack", *settings, "--images", "100", "--epsilons", "0", "0.2", "--out", str(tmp_path / "attack")])
    content = json.loads((tmp_path / "attack" / "results.json").read_text())["methods"]
    for entry in content.values():
        (fgsm,), (iterated,) = entry["fgsm"], entry["iterated"]
        assert fgsm[0] == iterated[0] > 0.8
        assert iterated[1] <= fgsm[1] < 0.6
    assert (tmp_path / "attack" / "figure.png").stat().st_size > 10_000
    assert re.search(r"one network of it +\| +0\.\d+", capsys.readouterr().out)


def test_resnets_and_attack(tmp_path, capsys):
    """The commands of CIFAR-10, on small digits in its place."""
    settings = ["--dataset", "digits", "--size", "8", "--width", "4", "--particles", "2", "--epochs", "6"]
    settings += ["--tuning-epochs", "1", "--rates", "0.03", "--limit", "700", "--methods", "FSVGD", "DeepEnsemble"]
    settings += ["--runs", str(tmp_path / "runs")]
    main(["cifar10", *settings, "--out", str(tmp_path / "error")])
    content = json.loads((tmp_path / "error" / "results.json").read_text())["methods"]
    assert all(runs[0]["error"] < 0.6 for runs in content.values()), "nothing was learned"
    attack = ["attack_cifar10", *settings, "--images", "40", "--epsilons", "0", "0.2", "--attack-steps", "2"]
    main([*attack, "--out", str(tmp_path / "attack")])
    content = json.loads((tmp_path / "attack" / "results.json").read_text())["methods"]
    assert list(content) == ["FSVGD", "DeepEnsemble", "one network of it"]
    for entry in content.values():
        assert entry["iterated"][0][1] < entry["iterated"][0][0]
        assert entry["without_gradient"] == [0.0]
    with pytest.raises(SystemExit, match="was trained with protocol"):
        main([*attack, "--width", "8", "--out", str(tmp_path / "other")])


def test_sine(tmp_path, capsys):
    small = ["--steps", "5", "--particles", "4", "--trajectories", "10", "--burn-in", "2"]
    main(["sine", "--seeds", "2", *small, "--out", str(tmp_path)])
    content = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert {method: len(runs) for method, runs in content.items()} == dict.fromkeys(SINE_METHODS, 2)
    assert content["HMC"][0]["ratio in the gap"] == pytest.approx(1)
    assert content["SVGD"][0]["acceptance_rate"] is None
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "seed 1, FSVGDFitted" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="trajectories must be at least 10"):
        main(["sine", "--trajectories", "9", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sine", "--particles", "1"], "particles must be at least 2, got 1"),
        (["sine", "--lr", "nan"], "lr must be positive, got nan"),
        (["uci", "--minutes", "nan"], "minutes must not be negative, got nan"),
    ],
)
def test_numbers_that_end_in_none_are_refused_before_anything_runs(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(tmp_path / "out")])
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()
