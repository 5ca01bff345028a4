"""tools/sample.py end to end on a tiny budget: what it prints, writes, reads back and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sample
import torch
from experiments.harness.tables import spread
from experiments.images.methods import METHODS
from safetensors.torch import load_file

from learned_samplers import metrics

ROOT = Path(__file__).parents[2]
TINY = ["--epochs", "4", "--limit", "320", "--channels", "4", "--num-samples", "4", "--cycles", "2", "--depth", "1"]


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_the_script_runs_as_a_user_runs_it(tmp_path):
    command = [sys.executable, "tools/sample.py", *TINY, "--seeds", "2", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SGHMC, seed 1: 100%" in done.stderr, "no progress bar"
    for text in ("accuracy", "NLL", "ECE", "Brier", "OOD AUROC", "seconds", "±", "DeepEnsemble", "tensorboard.main"):
        assert text in done.stdout
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    content = results_of(tmp_path)
    assert list(content["methods"]) == ["SGD", "DeepEnsemble", "SGHMC", "ScaleAdaptedSGHMC", "L2E"]
    for method in content["methods"].values():
        assert [r["gradient_evaluations"] for r in method["runs"]] == [20, 20]
        assert set(method["mean"]) == {"accuracy", "nll", "ece", "brier", "ood_auroc"}
    assert str(tmp_path / "samples") in done.stdout
    assert len(list((tmp_path / "samples").glob("*.safetensors"))) == 10


def test_tuning_takes_the_lowest_validation_nll_of_a_grid_around_each_methods_own(tmp_path, capsys):
    grid = ["--tune", "--lr-grid", "1e9", "1", "1e-6", "--sampler", "SGD", "SGLD", "--seeds", "2"]
    sample.main([*TINY, *grid, "--out", str(tmp_path)])
    for name, method in results_of(tmp_path)["methods"].items():
        own = METHODS[name].lr
        tried = sorted(trial["lr"] for trial in method["tuning"])
        assert tried == pytest.approx([own * 1e-6, own, own * 1e9])
        means = {
            trial["lr"]: sum(trial["validation_nll"]) for trial in method["tuning"] if all(trial["validation_nll"])
        }
        assert method["lr"] == min(means, key=means.get)
        chosen = next(trial for trial in method["tuning"] if trial["lr"] == own)
        assert [r["validation_nll"] for r in method["runs"]] == chosen["validation_nll"], "the same two seeds"
    printed = capsys.readouterr().out
    assert printed.count("diverged") == 2
    assert "edge" not in printed
    sample.main([*TINY, "--tune", "--lr-grid", "1e-3", "1", "--sampler", "SGD", "--seeds", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "at the edge of the grid" in printed
    assert "mean ± standard deviation over 1 seed; ECE" in printed


def test_a_reference_takes_the_place_of_hmc(tmp_path):
    arguments = [*TINY, "--sampler", "SGD", "--seeds", "1", "--out", str(tmp_path / "out")]
    sample.main(arguments)
    (saved,) = (tmp_path / "out" / "predictions").glob("*.safetensors")
    own = load_file(saved)["test"].double()
    # The same predictions, but for the first half of the images, where half of all probability has moved.
    other, half = own.clone(), len(own) // 2
    other[:half] = 0.5 * own[:half] + 0.5 * own[:half].roll(1, dims=1)
    np.save(tmp_path / "reference.npy", other.numpy())
    sample.main([*arguments, "--reference", str(tmp_path / "reference.npy")])
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    header, _, row = [line for line in table if line.startswith("|")]
    cells = dict(zip((c.strip() for c in header.split("|")), (c.strip() for c in row.split("|")), strict=True))
    distance = 0.5 * (own - other).abs().sum(1).mean().item()
    assert distance > 0.01
    assert float(cells["total variation"]) == pytest.approx(distance, abs=6e-5)
    agreement = (own.argmax(1) == other.argmax(1)).double().mean().item()
    assert float(cells["agreement with the reference"]) == pytest.approx(agreement, abs=6e-5)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 10)) / 10, "must have the shape"),
        (np.ones((899, 10)), "must hold probabilities that sum to 1"),
        (np.full((899, 10), np.nan), "must hold probabilities"),
        (np.array(["a"]), "is no .npy file of numbers"),
        (None, "nowhere.npy"),
    ],
)
def test_a_reference_that_fits_nothing_is_refused(tmp_path, capsys, array, message):
    path = tmp_path / "nowhere.npy"
    if array is not None:
        np.save(path, array)
    with pytest.raises(SystemExit) as caught:
        sample.main([*TINY, "--reference", str(path), "--out", str(tmp_path / "out")])
    assert message in " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_with_hmc_the_others_are_compared_with_it(tmp_path, capsys):
    hmc = ["--epochs", "12", "--leapfrog-steps", "1", "--sampler", "SGD", "HMC", "--model", "mlp"]
    options = ["--limit", "320", "--num-samples", "4", "--hidden", "10", "--out", str(tmp_path)]

    def cells(seeds):
        sample.main([*options, *hmc, "--seeds", str(seeds)])
        lines = capsys.readouterr().out.splitlines()
        table = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
        return {row[1]: dict(zip(table[0], row, strict=True)) for row in table[1:]}

    alone = cells(1)
    assert alone["HMC"]["total variation"] == alone["HMC"]["agreement with HMC"] == "–", "it is the reference"
    two = cells(2)
    first, second = (load_file(path)["test"] for path in sorted(tmp_path.glob("predictions/HMC*")))
    # Half of this, as each is in the average of the two, would be too near.
    apart = metrics.total_variation(first, second)
    assert two["HMC"]["total variation"] == f"{apart:.4f} ± 0.0000"
    others = [load_file(path)["test"] for path in sorted(tmp_path.glob("predictions/SGD*"))]
    far = [metrics.total_variation(p, (first + second) / 2) for p in others]
    assert two["SGD"]["total variation"] == spread(far, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "digit"], "dataset='digit' is unknown"),
        (["--ood", "photo"], "ood='photo' is unknown"),
        (["--device", "gpu"], "device='gpu' cannot be used"),
        (["--model", "mlp", "--depth", "2"], "mlp has no option depth"),
        (["--model", "lenet"], "too small for lenet"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--sampler", "L2E", "--l2e-network", "nowhere"], "l2e_network='nowhere', which L2E needs: no shipped"),
        (["--batch-size", "5000"], "batch_size=5000 exceeds the 808 training images"),
        (["--burn-in", "1"], r"burn_in must lie in [0, 1), got 1.0"),
        (["--noise", "0.3"], "noise=0.3 is that of a regression's observations, digits has classes"),
        (["--temperature", "-1"], "temperature must not be negative, got -1.0"),
        (["--momentum-decay", "0"], "momentum_decay must lie in (0, 1], got 0.0"),
        (["--lr", "-0.1", "--sampler", "SGD"], "lr must be positive, got -0.1"),
        (["--sampler", "SGD", "sgd"], "sampler must hold names, each once"),
        (["--sampler", "HMC"], "num_samples=30 exceeds the steps after burn-in"),
        (["--sampler", "CyclicalSGMCMC", "--epochs", "2"], "needs 7 steps in a sampling phase, which has 1"),
        (["--cycles", "3", "--burn-in-cycles", "3"], "burn_in_cycles must lie in [0, cycles=3), got 3"),
        (["--sampler", "CyclicalSGMCMC", "--cycles", "5000"], "cycles=5000 exceeds the budget"),
        (["--sampler", "DeepEnsemble", "--ensemble-size", "5000"], "ensemble_size=5000 exceeds the budget"),
        (["--epochs", "50", "--steps", "100"], "epochs=50 and steps=100 exclude each other"),
        (["--chains", "4", "--seeds", "5"], "seeds=5 and chains=4 exclude each other"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--tune-seeds", "0"], "tune_seeds must be at least 1, got 0"),
        (["--tune", "--lr-grid", "0", "1"], "lr_grid must hold positive factors"),
        (["--dataset", "npz:/nowhere/x.npz"], "there is no file /nowhere/x.npz"),
    ],
)
def test_wrong_options_are_explained_before_anything_is_trained(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        sample.main([*arguments, "--out", str(tmp_path / "out")])
    assert caught.value.code
    # What the options themselves refuse is printed by tyro, in a box; the rest is the exit message.
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert message in said
    assert not (tmp_path / "out").exists()


def test_help_explains_every_flag(capsys):
    with pytest.raises(SystemExit):
        sample.main(["--help"])
    text = capsys.readouterr().out
    for flag in ("--dataset", "--sampler", "--temperature", "--prior-precision", "--lr-grid", "--device", "--data"):
        assert flag in text
    assert "1/weight²" in text
