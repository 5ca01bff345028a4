"""tools/bandits.py end to end on a few rounds: what it runs, writes, reads back and refuses."""

from __future__ import annotations

import json

from bandits import main
from experiments.bandits import experiment
from experiments.bandits.experiment import parse
from experiments.bandits.posteriors import METHODS

COMMAND = ["--contexts", "60", "--members", "3", "--hidden", "8", "--steps", "3", "--seeds", "2"]


def test_command(tmp_path, capsys, monkeypatch):
    arguments = [*COMMAND, "--problem", "wheel_0.5", "wheel_0.9", "--out", str(tmp_path)]
    main(arguments)
    content = json.loads((tmp_path / "results.json").read_text())
    assert {name: set(methods) for name, methods in content["runs"].items()} == {
        problem: set(METHODS) for problem in ("wheel_0.5", "wheel_0.9")
    }
    run = content["runs"]["wheel_0.9"]["FSVGD"][1]
    assert run["rounds"][-1] == 60
    assert sum(run["arms"]) == 60
    assert "| wheel, δ = 0.5" in (tmp_path / "table.md").read_text()
    assert "over 2 seeds" in (tmp_path / "table.md").read_text()
    said = capsys.readouterr()
    assert "16/16" in said.err
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # All of it is on disk now.
    monkeypatch.setattr(experiment, "play", None)
    main(arguments)
    assert "16/16" in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == content["runs"]


def test_presets():
    assert parse(["--preset", "paper"]).budget.contexts == 40_000
    options = parse(["--preset", "paper", "--members", "5"])
    assert (options.budget.contexts, options.budget.members) == (40_000, 5)
