"""Gradients to HMC's predictions: the number, and a small run that is tuned by the distance."""

from __future__ import annotations

from dataclasses import replace

import compare
import pytest
from experiments.compare import presets
from experiments.compare.distance import gradients_to, rows
from experiments.compare.presets import PRESETS

from tests.tools.compare_cases import mean, numbers


@pytest.mark.usefixtures("undrawn")
def test_settings_are_chosen_by_the_distance_from_hmc(tmp_path, monkeypatch):
    preset = PRESETS["distance_digits"]
    settings = replace(preset.settings, num_samples=5, leapfrog_steps=2)
    chains = rows(0.03, 20 * 3 * 12)
    chains["HMC"] = replace(chains["HMC"], changes={**chains["HMC"].changes, "num_samples": 8})
    small = replace(preset, settings=settings, budgets=(20,), rows=chains)
    monkeypatch.setitem(presets.PRESETS, "distance_digits", small)
    few = ["--tries", "2", "--grid", "2", "--seeds", "2"]
    compare.main(["--preset", "distance_digits", "--sampler", "HMC", "SGHMC", *few, "--out", str(tmp_path)])
    for content in numbers(tmp_path).values():
        hmc, sghmc = content["HMC"], content["SGHMC"]
        assert len(hmc["runs"]) == 4
        assert [run["num_samples"] for run in hmc["runs"]] == [8] * 4
        assert len({trial["score"] for trial in sghmc["tuning"]}) == 2
        assert mean(sghmc, "total_variation") == pytest.approx(min(trial["score"] for trial in sghmc["tuning"]))
    assert "Gradients to the target, a distance of 0." in (tmp_path / "table.md").read_text()
    with pytest.raises(SystemExit, match="tune_by='distance' needs a --reference, or the row HMC"):
        compare.main(["--preset", "distance_digits", "--sampler", "SGHMC", "--out", str(tmp_path / "other")])


def test_gradients_to_the_target():
    curve = {100: 0.08, 1000: 0.04, 10_000: 0.02}
    assert gradients_to(0.08, curve) == 100
    assert gradients_to(0.02, curve) == pytest.approx(10_000)
    assert gradients_to(0.04 / 2**0.5, curve) == pytest.approx(10_000 / 10**0.5)
    assert gradients_to(0.019, curve) is None
