"""tools/compare.py with given settings, as a user runs it on a network of theirs: nothing is tuned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import compare
import pytest
from experiments.harness.tables import spread
from safetensors.torch import load_file

from learned_samplers import metrics
from tests.tools.compare_cases import cells, numbers

ROOT = Path(__file__).parents[2]
TINY = ["--epochs", "4", "--limit", "320", "--channels", "4", "--num-samples", "4", "--cycles", "2", "--depth", "1"]
SMALL = ["--dataset", "digits", "--model", "mlp", "--hidden", "8", "--steps", "60", "--num-samples", "4"]
pytestmark = pytest.mark.usefixtures("undrawn")


def methods_of(folder):
    (budget,) = numbers(folder).values()
    return budget


def test_the_script_runs_as_a_user_runs_it(tmp_path):
    rows = ["SGD", "SGHMC"]
    command = [sys.executable, "tools/compare.py", *TINY, "--given-settings", "--ood", "photos", "--seeds", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--sampler", *rows, "--out", str(tmp_path)],
        **dict(cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300),
    )
    assert done.returncode == 0, done.stderr
    assert "80 gradients in all: 1 minute or more" in done.stdout
    for text in ("accuracy", "NLL", "ECE", "Brier", "AUROC photos", "seconds", "±", *rows):
        assert text in done.stdout
    methods = methods_of(tmp_path)
    assert list(methods) == rows
    for method in methods.values():
        assert [run["gradients"] for run in method["runs"]] == [20, 20]
        assert method["tuning"] == []
    assert len(list((tmp_path / "steps_20" / "samples").glob("*.safetensors"))) == 4
    assert not list((tmp_path / "state").glob("*")), "states of finished runs are removed"


def test_with_hmc_every_run_is_compared_with_its_chains_of_other_seeds(tmp_path):
    hmc = ["--epochs", "12", "--leapfrog-steps", "1", "--sampler", "SGD", "HMC", "--model", "mlp", "--given-settings"]
    options = ["--limit", "320", "--num-samples", "4", "--hidden", "10", "--out", str(tmp_path)]
    compare.main([*options, *hmc, "--seeds", "1"])
    assert "| total variation" not in (tmp_path / "table.md").read_text(), "there is no other chain"
    compare.main([*options, *hmc, "--seeds", "3"])
    folder, methods = tmp_path / "steps_60" / "predictions", methods_of(tmp_path)
    chains = [load_file(path)["test"].double() for path in sorted(folder.glob("HMC*"))]
    for name in ("HMC", "SGD"):
        predictions = [load_file(path)["test"].double() for path in sorted(folder.glob(f"{name}*"))]
        references = [sum(c for i, c in enumerate(chains) if i != k) / 2 for k in range(3)]
        far = [metrics.total_variation(predictions[k], references[k]) for k in range(3)]
        assert [run["total_variation"] for run in methods[name]["runs"]] == pytest.approx(far)
        table = (tmp_path / "table.md").read_text()
        header = next(line for line in table.splitlines() if "total variation" in line and line.startswith("| method"))
        assert cells(table, header, name, "total variation") == spread(far, 4)


def test_scores_of_the_other_half_are_of_the_same_run(tmp_path):
    arguments = [*SMALL, "--sampler", "SGHMC", "--given-settings", "--seeds", "1", "--out", str(tmp_path)]
    runs = {}
    for half in ("all", "even", "odd"):
        compare.main([*arguments, "--half", half])
        (runs[half],) = methods_of(tmp_path)["SGHMC"]["runs"]
    assert len({run["seconds"] for run in runs.values()}) == 1, "trained once"
    assert runs["all"]["nll"] == pytest.approx((450 * runs["even"]["nll"] + 449 * runs["odd"]["nll"]) / 899, rel=1e-4)


def test_a_command_that_runs_out_of_minutes_leaves_its_table_and_goes_on(tmp_path, capsys):
    arguments = [*SMALL, "--sampler", "SGD", "SGHMC", "--lr", "0.02", "--seeds", "1", "--out"]
    compare.main([*arguments, str(tmp_path / "whole")])
    whole = methods_of(tmp_path / "whole")
    assert [method["lr"] for method in whole.values()] == [0.02, 0.02], "a rate that is given is that of every method"
    state = tmp_path / "state"
    compare.main([*arguments, str(tmp_path / "out"), "--state", str(state), "--minutes", "0"])
    assert "the time is up; the same command goes on" in capsys.readouterr().out
    (path,) = state.glob("*.pt")
    assert path.name.startswith("steps_60_SGD")
    assert path.stat().st_size < 200_000
    compare.main([*arguments, str(tmp_path / "out"), "--state", str(state)])
    assert not list(state.glob("*")), "a finished run needs no state"
    timed = ("seconds", "ess_per_second")
    for name, method in whole.items():
        (again,) = methods_of(tmp_path / "out")[name]["runs"]
        assert {k: v for k, v in again.items() if k not in timed} == {
            k: v for k, v in method["runs"][0].items() if k not in timed
        }


def test_runs_beside_each_other_give_the_same_table(tmp_path):
    arguments = [*SMALL, "--sampler", "SGHMC", "--tries", "2", "--grid", "2", "--extensions", "0", "--values"]
    arguments += ["temperature=0.1", "weight_decay=0", "--tune-seeds", "1", "--seeds", "1", "--momentum-decay", "0.1"]
    compare.main([*arguments, "--out", str(tmp_path / "one")])
    compare.main([*arguments, "--out", str(tmp_path / "two"), "--jobs", "2"])
    alone, parallel = (methods_of(tmp_path / name)["SGHMC"] for name in ("one", "two"))
    assert [run["nll"] for run in alone["runs"]] == [run["nll"] for run in parallel["runs"]]
    assert json.dumps(alone["tuning"]) == json.dumps(parallel["tuning"])
