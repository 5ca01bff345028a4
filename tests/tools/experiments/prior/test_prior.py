"""The experiments on priors: numbers of their tables from results that are known, and a short run of each."""

import json

import pytest
from experiments.prior import cold, suggestions


def test_a_path_is_scored_by_the_run_at_its_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(suggestions, "TASKS", {"task": None})
    entry = dict(values=[1.0, 0.1], grid=[[0.5, 0.6], [0.4, 0.5]], present=1.0, decided=True, settled=True)
    for quantity, suggested in (("prior", 1.0), ("temperature", 0.1)):
        kept = {**entry, "suggested": suggested, "seconds": 2.0, "grid_seconds": 6.0}
        (tmp_path / f"suggestions_task_{quantity}_0.json").write_text(json.dumps(kept))
    lines = suggestions.table(None, tmp_path, 1)
    assert lines[2] == "| task | prior | 1.20 ± nan | 1.20 ± nan | 1 of 1 | 2, 3 |"
    assert lines[3] == "| task | temperature | 1.00 ± nan | 1.20 ± nan | 1 of 1 | 2, 3 |"


@pytest.mark.slow
def test_a_short_path_and_its_grid(tmp_path, monkeypatch):
    short = suggestions.Task(dict(dataset="digits", model="mlp", hidden=(8,), validation=200), 0.1, 1.0, 300)
    monkeypatch.setattr(suggestions, "TASKS", {"digits": short})
    results = list(suggestions.compare("digits", 0, None, tmp_path))
    assert [one["quantity"] for one in results] == ["prior", "temperature"]
    assert all(len(one["grid"]) == len(one["values"]) for one in results)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_each_temperature_has_the_prior_that_its_validation_rows_chose(tmp_path, monkeypatch):
    short = suggestions.Task(dict(dataset="digits", model="mlp", hidden=(8,), validation=200), 0.1, 1.0, 150)
    for name, value in dict(
        TASKS={"digits, MLP": short}, SEEDS={"digits, MLP": 1}, FACTORS=(10.0, 1.0), TRAJECTORIES=120
    ).items():
        monkeypatch.setattr(cold, name, value)
    lines = cold.table(None, tmp_path)
    (file,) = tmp_path.iterdir()
    result = json.loads(file.read_text())
    assert len(result["runs"]) == 8
    usual, _, best = ([float(cell) for cell in line.split("|")[3:5]] for line in lines[2:])
    assert usual == pytest.approx([result["runs"][f"{t} 1.0 1.0"][1] for t in (1.0, 0.1)], abs=6e-4)
    chosen = min(value for key, value in result["runs"].items() if key.startswith("1.0 "))
    assert best[0] == pytest.approx(chosen[1], abs=6e-4)
    assert 0 < result["hmc"] < 2.3
    result["runs"].popitem()
    file.write_text(json.dumps(result))
    assert cold.table(None, tmp_path) == lines, "runs of the file and of this sitting alike"
