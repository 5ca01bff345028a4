"""The table at 32×32: its rows, on a handful of small images, and its rates."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import compare
import numpy as np
import pytest
from experiments.compare import presets
from experiments.compare.cifar32 import PER_EPOCH, ROWS
from experiments.compare.presets import PRESETS
from experiments.harness.runs.methods import METHODS

from tests.tools.compare_cases import numbers


@pytest.fixture
def small(tmp_path, monkeypatch):
    """CIFAR-10 of random images, a sheet of CIFAR-100, and an MLP at few gradients."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 160), ("val", 40), ("test", 30)):
        arrays[f"{split}_images"] = draw.integers(0, 256, (count, 32, 32, 3), np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar10.npz", **arrays)
    image.fromarray(draw.integers(0, 256, (64, 96, 3), np.uint8)).save(tmp_path / "cifar100.webp", lossless=True)
    np.save(tmp_path / "hmc.npy", np.full((30, 10), 0.1))
    preset = PRESETS["cifar32"]
    settings = replace(preset.settings, model="mlp", hidden=(4,), num_samples=10, batch_size=20, compiled=False)
    small = replace(
        preset, settings=settings, budgets=(200,), options={**preset.options, "tune_budget": 100, "seeds": 1}
    )
    monkeypatch.setitem(presets.PRESETS, "cifar32", small)
    return ["--preset", "cifar32", "--data", str(tmp_path), "--reference", str(tmp_path / "hmc.npy")]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore:the sample of step")  # a chain of 40 steps has not settled
def test_rows_run_at_the_rate_that_was_chosen_for_them(small, tmp_path):
    rows = ["SGHMC", "SGHMC, T = 0", "Shampoo, cosine", "5 networks by Shampoo", "5 chains of AdaptedSGHMC(warmup=L2E)"]
    compare.main([*small, "--sampler", *rows, "--out", str(tmp_path / "out")])
    content = numbers(tmp_path / "out")
    assert list(content) == ["200"], "what was tuned has no table"
    methods = content["200"]
    assert list(methods) == rows
    assert [len(methods[name]["tuning"]) for name in rows] == [3, 0, 3, 0, 0]
    assert methods["SGHMC, T = 0"]["lr"] == methods["SGHMC"]["lr"]
    assert methods["5 networks by Shampoo"]["lr"] == methods["Shampoo, cosine"]["lr"]
    for name, samples in zip(rows, (10, 10, 1, 5, 10)):
        (run,) = methods[name]["runs"]
        assert (run["num_samples"], run["gradients"]) == (samples, 200)
        assert {"AUROC cifar100", "AUROC photos", "agreement", "total_variation"} <= run.keys()


def test_the_protocol():
    preset = PRESETS["cifar32"]
    assert (preset.options["tune_budget"], preset.budgets) == (5 * PER_EPOCH, (50 * PER_EPOCH,))
    assert preset.settings.budget(40_960) == preset.settings.epochs * PER_EPOCH
    assert preset.settings.half == "even"
    for name, row in ROWS.items():
        assert row.method in METHODS
        assert row.rate_of in ("", *ROWS)
        assert name in preset.rows


@pytest.mark.skipif(not find_spec("pytorch_optimizer"), reason="SOAP comes with a package of its own")
def test_soap_runs(small, tmp_path, monkeypatch):
    preset = presets.PRESETS["cifar32"]
    settings = replace(preset.settings, model="cnn", hidden=None, channels=2)  # of an MLP it has a matrix of 3072²
    monkeypatch.setitem(presets.PRESETS, "cifar32", replace(preset, settings=settings))
    options = ["--budgets", "20", "--tune-budget", "20", "--sampler", "SOAP, moving average"]
    compare.main([*small, *options, "--out", str(tmp_path / "out")])
