"""The experiment on exploration: its protocol, its criterion, and a small run of its rows."""

from __future__ import annotations

from dataclasses import replace

import compare
import pytest
from experiments.compare import presets
from experiments.compare.explore import CONTROL, DIGITS_ROWS, FASHION_ROWS, explores
from experiments.compare.presets import PRESETS
from experiments.harness.runs.methods import METHODS

from learned_samplers.learned import weights
from tests.tools.compare_cases import numbers


@pytest.mark.usefixtures("undrawn")
def test_every_row_is_measured_on_all_seeds_and_the_criterion_is_answered(tmp_path, monkeypatch):
    preset = PRESETS["explore_digits"]
    tiny = replace(
        preset.settings, cycles=10, burn_in_cycles=2, num_samples=8, ensemble_size=8, burn_in=0.2, ood=(), lines=10
    )
    rows = {name: DIGITS_ROWS[name] for name in ("SGHMC", "CyclicalSGMCMC", "L2E", "DeepEnsemble", CONTROL)}
    monkeypatch.setitem(presets.PRESETS, "explore_digits", replace(preset, settings=tiny, budgets=(80,), rows=rows))
    compare.main(["--preset", "explore_digits", "--seeds", "2", "--out", str(tmp_path)])
    methods = numbers(tmp_path)["80"]
    assert list(methods) == list(rows)
    for name, method in methods.items():
        assert method["lr"] == rows[name].lr
        assert ("converged" in method["runs"][0]) == (name != "DeepEnsemble")
        for run in method["runs"]:
            assert run["single_nll"] >= run["nll"]
    table = (tmp_path / "table.md").read_text()
    assert "By the criterion of the protocol explore: " in table
    assert f"| {CONTROL} " in table


def test_the_protocol_is_that_of_the_paper():
    parts = {"digits": (12, 74_400, DIGITS_ROWS), "fashion": (421, 600 * 421, FASHION_ROWS)}
    for part, (per_epoch, steps, rows) in parts.items():
        preset = PRESETS[f"explore_{part}"]
        settings, (budget,) = preset.settings, preset.budgets
        assert (budget, preset.rows) == (steps, rows)
        assert budget // settings.cycles == 50 * per_epoch
        assert (settings.cycles - settings.burn_in_cycles) == settings.num_samples == settings.ensemble_size
        assert budget * (1 - settings.burn_in) == pytest.approx(50 * per_epoch * settings.num_samples)
        for name, row in rows.items():
            filled = row.settings(replace(settings, steps=budget))
            assert row.lr > 0
            network = METHODS[row.method].weights_name(filled)
            assert network is None or weights.find(network)
            if name == "HMC":  # full gradients
                assert filled.trajectories(808) * (filled.leapfrog_steps + 1) == pytest.approx(74_400, rel=1e-3)
    assert [PRESETS[f"explore_{part}"].options["seeds"] for part in parts] == [6, 3]
    l2e = DIGITS_ROWS["L2E, network l2e"]
    assert METHODS["L2E"].weights_name(l2e.settings(PRESETS["explore_digits"].settings)) == "l2e"


@pytest.mark.parametrize(
    ("barrier", "single", "cyclical", "verdict"),
    [(0.2, 1.04, 0.01, True), (0.09, 1.0, 0.01, False), (0.2, 1.06, 0.01, False), (0.2, 1.0, 0.03, False)],
)
def test_the_criterion(barrier, single, cyclical, verdict):
    row = {"barrier": barrier, "single_nll": single}
    assert explores(row, {"barrier": cyclical}, {"single_nll": 1.0}) is verdict
