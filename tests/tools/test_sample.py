"""tools/sample.py end to end on a tiny budget: what it prints, writes, reads back and refuses."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import sample
import torch
from experiments.images.methods import METHODS
from experiments.images.report import markdown, mean_and_std, rows, spread
from experiments.images.runner import Result, load_samples, predictions, run
from experiments.images.settings import Settings
from experiments.images.training import batches, collection, cyclical_collection, parameter_groups
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learned_samplers import metrics
from learned_samplers.classical.cyclical import cyclical_phase
from meta_tasks.networks import architectures

ROOT = Path(__file__).parents[2]
HAVE_MOMENTUM = ("sghmc", "sgnht", "cyclical")
TINY = ["--epochs", "4", "--limit", "320", "--channels", "4", "--num-samples", "4", "--cycles", "2", "--depth", "1"]


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(learned_weights):
    """Settings of seconds, with their data."""
    settings = Settings(
        **{**learned_weights, "epochs": 12, "limit": 320, "channels": 2, "depth": 1, "num_samples": 4, "cycles": 2},
        leapfrog_steps=1,
        ensemble_size=3,
    )
    return settings, *settings.load(None)


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_the_script_runs_as_a_user_runs_it(tmp_path):
    command = [sys.executable, "tools/sample.py", *TINY, "--seeds", "2", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SGHMC, seed 1: 100%" in done.stderr, "no progress bar"
    for text in ("accuracy", "NLL", "ECE", "Brier", "OOD AUROC", "seconds", "±", "deep ensemble", "tensorboard.main"):
        assert text in done.stdout
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    content = results_of(tmp_path)
    assert list(content["methods"]) == ["sgd", "sghmc", "cyclical", "deep_ensemble"]
    for method in content["methods"].values():
        assert [r["gradient_evaluations"] for r in method["runs"]] == [20, 20]
        assert set(method["mean"]) == {"accuracy", "nll", "ece", "brier", "ood_auroc"}
    assert str(tmp_path / "samples") in done.stdout
    assert len(list((tmp_path / "samples").glob("*.safetensors"))) == 8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_spends_the_same_budget_and_leaves_its_files(tmp_path, tiny, method):
    settings, data, ood = tiny
    learned = [name for name, each in METHODS.items() if each.network]
    result = run(settings, method, METHODS[method].lr, 3, data, ood, tmp_path)
    assert result.diverged is None
    assert result.gradient_evaluations == 60
    wanted = {"optimizer": 1, "ensemble": 3, "average": 4, "sampler": 4, "full_batch": 4}[METHODS[method].kind]
    assert result.num_samples == len(result.accuracy_curve) == len(result.nll_curve) == wanted
    assert (result.acceptance_rate is None) == (method != "hmc")
    saved = predictions(result, tmp_path)
    assert result.scores == pytest.approx(metrics.summary(saved["test"], saved["test_labels"], saved["ood"]))
    assert result.accuracy_curve[-1] == pytest.approx(result.scores["accuracy"])
    again = load_samples(result, settings, data, tmp_path).predict(data.test_x)
    torch.testing.assert_close(again, saved["test"], rtol=1e-4, atol=1e-6)
    assert result.validation_nll == pytest.approx(
        metrics.nll(load_samples(result, settings, data, tmp_path).predict(data.val_x), data.val_y), rel=1e-4
    )
    curves = EventAccumulator(str(tmp_path / "tensorboard" / result.name)).Reload()
    tags = set(curves.Tags()["scalars"])
    assert {"train/loss", "validation/accuracy", "model_average/accuracy", "model_average/nll"} <= tags
    assert [event.step for event in curves.Scalars("model_average/accuracy")] == list(range(1, wanted + 1))
    assert ("temperature_kinetic/linear" in tags) == (method in (*HAVE_MOMENTUM, *learned))
    assert ("temperature_configurational/convolutions" in tags) == (METHODS[method].kind == "sampler")


def test_a_finished_run_is_read_back_unless_its_settings_changed(tmp_path, tiny):
    settings, data, ood = tiny
    first = run(settings, "sgld", 0.1, 0, data, ood, tmp_path)
    path = tmp_path / "runs" / f"{first.name}.json"
    stamp = path.stat().st_mtime_ns
    assert run(settings, "sgld", 0.1, 0, data, ood, tmp_path) == first
    assert path.stat().st_mtime_ns == stamp
    fresh = run(settings, "sgld", 0.1, 0, data, ood, tmp_path, fresh=True)
    assert path.stat().st_mtime_ns > stamp
    assert fresh.scores == first.scores, "the same seed gives the same run"
    other = run(Settings(**{**vars(settings), "temperature": 0.5}), "sgld", 0.1, 0, data, ood, tmp_path)
    assert other.settings["temperature"] == 0.5
    assert other.scores != first.scores
    assert run(settings, "sgld", 0.1, 1, data, ood, tmp_path).scores != first.scores, "the seed has no effect"
    assert len(list((tmp_path / "tensorboard" / first.name).glob("events*"))) == 1, "curves of an older run are left"


def test_a_damaged_result_is_refused_by_name(tmp_path, tiny):
    settings, data, ood = tiny
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "sgd_lr0.1_seed0.json").write_text('{"method": "sgd"')
    with pytest.raises(ValueError, match=r"sgd_lr0.1_seed0.json is not the result of a run"):
        run(settings, "sgd", 0.1, 0, data, ood, tmp_path)


@pytest.mark.parametrize("method", ["sgd", "deep_ensemble", "sghmc", "psgld"])
def test_a_run_that_diverges_says_so_and_has_no_scores(tmp_path, tiny, method):
    settings, data, ood = tiny
    result = run(settings, method, 1e12, 0, data, ood, tmp_path)
    assert result.diverged
    assert result.scores == {}
    assert result.validation_nll is None
    row = rows({method: [result]}, tmp_path)[0]
    assert row["method"].endswith("(1 of 1 diverged)")
    assert row["NLL"] == "–"


def test_tuning_takes_the_lowest_validation_nll_of_a_grid_around_each_methods_own(tmp_path, capsys):
    grid = ["--tune", "--lr-grid", "1e9", "1", "1e-6", "--sampler", "sgd", "sgld", "--seeds", "2"]
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
    sample.main([*TINY, "--tune", "--lr-grid", "1e-3", "1", "--sampler", "sgd", "--seeds", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "at the edge of the grid" in printed
    assert "mean ± standard deviation over 1 seed; ECE" in printed


def test_with_hmc_the_others_are_compared_with_it(tmp_path, capsys):
    hmc = ["--epochs", "12", "--leapfrog-steps", "1", "--sampler", "sgd", "hmc", "--seeds", "1", "--model", "mlp"]
    options = ["--limit", "320", "--num-samples", "4", "--hidden", "10"]
    sample.main([*options, *hmc, "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("| method"))
    cells = [cell.strip() for cell in next(line for line in lines if line.startswith("| HMC")).split("|")]
    assert cells[[cell.strip() for cell in header.split("|")].index("agreement with HMC")] == "1.0000"
    assert cells[[cell.strip() for cell in header.split("|")].index("total variation")] == "0.0000"


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
        (["--sampler", "l2e", "--l2e-network", "nowhere"], "l2e_network='nowhere', which L2E needs: no shipped"),
        (["--batch-size", "5000"], "batch_size=5000 exceeds the 808 training images"),
        (["--burn-in", "1"], r"burn_in must lie in [0, 1), got 1.0"),
        (["--temperature", "-1"], "temperature must not be negative, got -1.0"),
        (["--momentum-decay", "0"], "momentum_decay must lie in (0, 1], got 0.0"),
        (["--lr", "-0.1", "--sampler", "sgd"], "lr must be positive, got -0.1"),
        (["--sampler", "sgd", "sgd"], "sampler must name methods, each once"),
        (["--sampler", "hmc"], "num_samples=30 exceeds the steps after burn-in"),
        (["--sampler", "cyclical", "--epochs", "2"], "needs 7 steps in a sampling phase, which has 1"),
        (["--cycles", "3", "--burn-in-cycles", "3"], "burn_in_cycles must lie in [0, cycles=3), got 3"),
        (["--sampler", "cyclical", "--cycles", "5000"], "cycles=5000 exceeds the budget"),
        (["--sampler", "deep_ensemble", "--ensemble-size", "5000"], "ensemble_size=5000 exceeds the budget"),
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


def test_the_command_line_knows_every_method():
    assert set(get_args(sample.MethodName)) == set(METHODS)


def test_help_explains_every_flag(capsys):
    with pytest.raises(SystemExit):
        sample.main(["--help"])
    text = capsys.readouterr().out
    for flag in ("--dataset", "--sampler", "--temperature", "--prior-precision", "--lr-grid", "--device", "--data"):
        assert flag in text
    assert "1/weight²" in text


# --- parts --------------------------------------------------------------------------------------------------------


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(1, 60))
def test_a_constant_chain_keeps_exactly_the_samples_asked_for(steps, burn_in, num_samples):
    settings = Settings(burn_in=burn_in, num_samples=num_samples)
    if round(steps * (1 - burn_in)) < num_samples:
        with pytest.raises(ValueError, match=f"num_samples={num_samples} exceeds the steps after burn-in"):
            collection(settings, steps)
        return
    kept = collection(settings, steps)
    states = range(kept["burn_in"] + kept["thinning"], steps + 1, kept["thinning"])
    assert len(states) == num_samples
    assert states[-1] == steps
    # HMC adapts in the first int(burn_in · steps) of them, which must be over before the first sample.
    assert states[0] > int(burn_in * steps)


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 3000), st.floats(0, 0.99), st.integers(1, 60), st.integers(1, 10), st.integers(0, 9))
def test_every_cycle_gives_its_share_of_the_samples(steps, ratio, num_samples, cycles, without):
    assume(steps >= cycles > without)
    settings = Settings(exploration_ratio=ratio, num_samples=num_samples, cycles=cycles, burn_in_cycles=without)
    length, each = steps // cycles, max(1, num_samples // (cycles - without))
    phase = sum(cyclical_phase(step, length, ratio)[1] for step in range(1, length + 1))
    if phase < each:
        with pytest.raises(ValueError, match=f"needs {each} steps in a sampling phase, which has {phase}"):
            cyclical_collection(settings, steps)
        return
    kept = cyclical_collection(settings, steps)
    assert kept["burn_in"] == without * length
    assert each <= phase // kept["thinning"] < 2 * each + 1


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_sees_every_image_once(num_batches, batch_size, extra):
    num_data = num_batches * batch_size + min(extra, batch_size - 1)
    stream = batches(num_data, batch_size, torch.device("cpu"))
    seen = torch.cat([next(stream) for _ in range(num_batches)])
    assert len(seen.unique()) == len(seen) == num_batches * batch_size
    assert all(len(next(stream)) == batch_size for _ in range(num_batches + 1))


@pytest.mark.parametrize("name", architectures.names())
def test_parameter_groups_hold_every_parameter_once(name):
    model = architectures.build(name, (1, 16, 16), 10)
    groups = parameter_groups(model)
    grouped = [p for group in groups for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))
    assert len({group["name"] for group in groups}) == len(groups)


def test_table_cells():
    assert spread([0.5], 2) == "0.50"
    assert spread([0.5, 0.7], 2) == "0.60 ± 0.14"
    assert spread([], 2) == "–"
    assert math.isnan(mean_and_std([1.0])[1])
    table = markdown([{"method": "SGD", "NLL": "0.1"}, {"method": "a longer one", "NLL": "0.25"}]).splitlines()
    assert table[1] == "|--------------|-----:|"
    assert len({len(line) for line in table}) == 1


def test_a_diverged_seed_is_counted_and_left_out_of_the_mean(tmp_path, tiny):
    settings, data, ood = tiny
    good = run(settings, "sgd", 0.1, 0, data, ood, tmp_path)
    bad = Result("sgd", 0.1, 1, good.settings, good.versions, diverged="the training loss is nan at step 3")
    row = rows({"sgd": [good, bad]}, tmp_path)[0]
    assert row["method"] == "SGD (1 of 2 diverged)"
    assert row["accuracy"] == f"{good.scores['accuracy']:.4f}"
