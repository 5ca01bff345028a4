"""The experiment on exploration, small: rows, what is measured of them, the criterion, and that it goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import explore
import pytest
from experiments.explore import experiment
from experiments.explore.experiment import CONTROL, ROWS, SEEDS, SETTINGS, Row, explores
from safetensors.torch import load_file

from learned_samplers import metrics
from learned_samplers.learned import weights


@pytest.fixture
def small(monkeypatch):
    tiny = replace(SETTINGS["digits"], steps=80, cycles=10, burn_in_cycles=2, num_samples=8, ensemble_size=8)
    monkeypatch.setitem(experiment.SETTINGS, "digits", replace(tiny, burn_in=0.2, leapfrog_steps=1, ood=()))
    rows = {name: ROWS["digits"][name] for name in ("SGHMC", "CyclicalSGMCMC", "L2E", "DeepEnsemble", CONTROL)}
    monkeypatch.setitem(experiment.ROWS, "digits", rows)
    monkeypatch.setitem(explore.SEEDS, "digits", 1)


def test_every_row_is_measured_and_nothing_is_done_twice(small, tmp_path, monkeypatch):
    explore.main(["--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert list(found) == ["SGHMC", "CyclicalSGMCMC", "L2E", "DeepEnsemble", CONTROL]
    for name, (run,) in found.items():
        assert run["samples"] == 8
        assert run["single_nll"] >= run["nll"]
        assert run["single_nll"] - run["nll"] == pytest.approx(run["ambiguity"])
        assert ("converged" in run) == (name != "DeepEnsemble")
    assert found[CONTROL][0]["lr"] != found["SGHMC"][0]["lr"]
    assert "explores" in (tmp_path / "table.md").read_text()

    monkeypatch.setattr(experiment.Runs, "_train", lambda *_, **__: pytest.fail("a finished run was repeated"))
    explore.main(["--out", str(tmp_path)])
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == found


def test_every_run_is_compared_with_the_chains_of_hmc_of_the_other_seeds(small, tmp_path, monkeypatch):
    rows = {"HMC": Row("HMC", 0.03, times=12), "SGHMC": Row("SGHMC", 0.05)}
    monkeypatch.setitem(experiment.ROWS, "digits", rows)
    monkeypatch.setitem(explore.SEEDS, "digits", 3)
    explore.main(["--out", str(tmp_path), "--seeds", "3"])
    found = json.loads((tmp_path / "results.json").read_text())["rows"]

    def test(name):
        return load_file(tmp_path / f"predictions/{name}.safetensors")["test"].double()

    chains = [test(f"HMC_lr0.03_seed{seed}") for seed in range(3)]
    for seed in range(3):
        others = sum(each for k, each in enumerate(chains) if k != seed) / 2
        for name, own in (("HMC", chains[seed]), ("SGHMC", test(f"SGHMC_lr0.05_seed{seed}"))):
            assert found[name][seed]["total_variation"] == pytest.approx(metrics.total_variation(own, others))
            assert found[name][seed]["agreement"] == pytest.approx(metrics.agreement(own, others))


def test_the_protocol_is_that_of_the_paper():
    digits, fashion = SETTINGS["digits"], SETTINGS["fashion"]
    assert (digits.steps, fashion.steps) == (74_400, 600 * 421)
    for settings, per_epoch in ((digits, 12), (fashion, 421)):
        assert settings.steps // settings.cycles == 50 * per_epoch
        assert (settings.cycles - settings.burn_in_cycles) == settings.num_samples == settings.ensemble_size
        assert settings.steps * (1 - settings.burn_in) == pytest.approx(50 * per_epoch * settings.num_samples)
    assert SEEDS == {"digits": 6, "fashion": 3}
    hmc = ROWS["digits"]["HMC"].settings(digits)
    assert hmc.trajectories(808) * (hmc.leapfrog_steps + 1) == pytest.approx(74_400, rel=1e-3)  # full gradients
    for part, rows in ROWS.items():
        assert all(row.rate(SETTINGS[part]) > 0 for row in rows.values())
    assert weights.load_card(weights.find(ROWS["digits"]["L2E, network l2e"].network or ""))["name"] == "l2e"


@pytest.mark.parametrize(
    ("barrier", "single", "cyclical", "verdict"),
    [(0.2, 1.04, 0.01, True), (0.09, 1.0, 0.01, False), (0.2, 1.06, 0.01, False), (0.2, 1.0, 0.03, False)],
)
def test_the_criterion(barrier, single, cyclical, verdict):
    row = {"barrier": barrier, "single_nll": single}
    assert explores(row, {"barrier": cyclical}, {"single_nll": 1.0}) is verdict


def test_an_unknown_row_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"rows.*SGHMM"):
        explore.main(["--rows", "SGHMM", "--out", str(tmp_path)])
    assert Row("SGHMC").rate(SETTINGS["digits"]) == 0.05
