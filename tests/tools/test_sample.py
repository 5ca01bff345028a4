"""tools/sample.py end to end on a tiny budget: what it prints, writes, reads back and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sample
from experiments.harness.runs.result import Result
from experiments.harness.tables import spread
from experiments.sample import report
from safetensors.torch import load_file

from learned_samplers import metrics

ROOT = Path(__file__).parents[2]
TINY = ["--epochs", "4", "--limit", "320", "--channels", "4", "--num-samples", "4", "--cycles", "2", "--depth", "1"]


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
    assert list(content["methods"]) == ["SGD", "DeepEnsemble", "SGHMC", "AdaptedSGHMC", "WhitenedSGHMC"]
    for method in content["methods"].values():
        assert [r["gradient_evaluations"] for r in method["runs"]] == [20, 20]
        assert set(method["mean"]) == {"accuracy", "nll", "ece", "brier", "ood_auroc"}
    assert len(list((tmp_path / "samples").glob("*.safetensors"))) == 10


def test_a_method_as_it_comes_gives_as_many_samples_as_were_asked_for(tmp_path):
    """All of them after its own warm-up, which is longer than the usual burn-in."""
    small = ["--dataset", "digits", "--model", "mlp", "--hidden", "8", "--steps", "60", "--num-samples", "4"]
    sample.main([*small, "--sampler", "AdaptedAsItComes", "--seeds", "1", "--out", str(tmp_path)])
    (run,) = results_of(tmp_path)["methods"]["AdaptedAsItComes"]["runs"]
    assert run["num_samples"] == 4


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


def test_a_diverged_seed_is_counted_and_left_out_of_the_mean(tmp_path):
    good = Result("SGD", 0.1, 0, {}, scores={"accuracy": 0.5, "nll": 1.0, "ece": 0.1, "brier": 0.2})
    row = report.rows({"SGD": [good, Result("SGD", 0.1, 1, {}, diverged="so")]}, tmp_path)[0]
    assert (row["method"], row["accuracy"]) == ("SGD (1 of 2 diverged)", "0.5000")
