"""The command tools/compare.py: interrupts, how it tunes, what it will cost, presets, and options that it refuses."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import compare
import pytest
import torch
from experiments.images.comparison import Comparison
from experiments.images.options import parse_compare
from experiments.images.presets import PRESETS
from experiments.images.result import Result
from experiments.images.runner import ImageRuns
from experiments.images.settings import Settings
from tqdm import tqdm

from meta_tasks.tasks import FAMILIES, family_named
from tests.tools.compare_cases import ROOT, SMALL, TINY, cells


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_an_interrupt_says_that_finished_runs_are_kept(tmp_path):
    command = [sys.executable, "tools/compare.py", *TINY, *SMALL, "--sampler", "SGD", "--budgets", "100000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # A shell that runs in the background may have left the signal ignored.
    done = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "steps_100000" / "tensorboard").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    done.send_signal(signal.SIGINT)
    _, said = done.communicate(timeout=120)
    assert done.returncode == 1
    assert f"interrupted; finished runs are kept in {tmp_path}, the same command goes on from there" in said


def test_a_comparison_extends_and_halves(tmp_path, monkeypatch):
    """The whole of `Comparison.tune`, with the validation NLL a known function of learning rate and temperature."""
    options = parse_compare(
        [
            *TINY,
            "--sampler",
            "PSGLD",
            "--budgets",
            "10",
            "20",
            "40",
            "--grid",
            "3",
            "--tries",
            "6",
            "--keep",
            "2",
            "--extensions",
            "2",
            "--tune-seeds",
            "2",
            "--temperatures",
            "1",
            "0.1",
            "--out",
            str(tmp_path),
        ]
    )
    data, _ = options.load()
    calls = []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        calls.append((settings.steps, lr, settings.temperature, seed))
        bar.update(settings.steps)
        # The best rate goes down as the budget grows; the cold posterior is better at all of them.
        nll = abs(math.log(lr * settings.steps / 0.02)) + settings.temperature + 0.01 * seed
        return Result(method, lr, seed, {}, validation_nll=nll)

    monkeypatch.setattr(ImageRuns, "run", fake)
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)
        assert bar.total == ((6 + 2) * 2 + 3) * 10 + ((2 + 2) * 2 + 3) * (20 + 40), "three final runs at each budget"
        chosen = [comparison.tune("PSGLD", budget).chosen for budget in (10, 20, 40)]
    assert [setting.lr for setting in chosen] == [0.002, 0.001, 0.0005]
    assert {setting.also for setting in chosen} == {(("temperature", 0.1),)}
    for budget, tries in ((10, 8), (20, 4), (40, 4)):
        of_budget = [call for call in calls if call[0] == budget]
        assert len(of_budget) == len(set(of_budget)) == 2 * tries
        assert {seed for *_, seed in of_budget} == {1000, 1001}, "not the seeds of the final runs"


def test_a_method_whose_settings_diverge_tries_as_many_as_the_others(tmp_path, monkeypatch):
    options = parse_compare(
        [
            *TINY,
            "--sampler",
            "PSGLD",
            "SGD",
            "--budgets",
            "10",
            "20",
            "--tries",
            "4",
            "--keep",
            "3",
            "--extensions",
            "1",
            "--tune-seeds",
            "1",
            "--out",
            str(tmp_path),
        ]
    )
    (data, _), tried = options.load(), []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        tried.append((method, settings.steps))
        broken = method == "PSGLD" and tried.count((method, 10)) > 1 and settings.steps == 10
        return Result(method, lr, seed, {}, validation_nll=None if broken else lr, diverged="so" if broken else None)

    monkeypatch.setattr(ImageRuns, "run", fake)
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)
        for budget in (10, 20):
            for method in ("PSGLD", "SGD"):
                comparison.tune(method, budget)
    assert {each: tried.count(each) for each in tried} == {
        (method, budget): tries for method in ("PSGLD", "SGD") for budget, tries in ((10, 5), (20, 4))
    }


def test_a_dry_run_says_what_it_will_cost_and_leaves_nothing(tmp_path, capsys):
    arguments = [*TINY, "--sampler", "SGHMC", "MCLMC", "KineticL2E", "IVON", "--budgets", "40", "200", "--tries", "6"]
    arguments += ["--extensions", "1", "--keep", "2", "--tune-seeds", "2", "--seeds", "3"]
    compare.main([*arguments, "--dry-run", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    gradients = 40 * (7 * 2 + 3) + 200 * (3 * 2 + 3)
    for name in ("SGHMC", "MCLMC", "KineticL2E", "IVON"):
        assert cells(printed, "| method", name, "gradients") == str(gradients)
        assert float(cells(printed, "| method", name, "ms/gradient")) > 0
    # 64 inputs, 8 hidden units, 10 classes: two products of 32 images forward; backward both weights' and one input's.
    flops = 2 * 32 * (2 * 64 * 8 + 3 * 8 * 10)
    assert f"{4 * gradients} gradients of {flops / 1e9:.3g} GFLOP" in printed
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="HMC takes the whole training set"):
        compare.main([*TINY, "--sampler", "HMC", "--epochs", "200", "--dry-run"])


# --- options ------------------------------------------------------------------------------------------------------


def test_a_preset_sets_the_defaults_and_options_override_it():
    for arguments in (["--preset", "cifar10"], ["--preset=cifar10"]):
        options = parse_compare(arguments)
        assert options.settings == PRESETS["cifar10"][0]
        assert options.budgets == (1000, 5000)
        assert options.folder() == Path("runs/compare_cifar10")
    options = parse_compare(["--depth", "1", "--preset", "cifar10", "--budgets", "7", "--seeds", "1"])
    assert options.settings == replace(PRESETS["cifar10"][0], depth=1)
    assert (options.budgets, options.seeds) == ((7,), 1)
    assert parse_compare([]).settings == Settings()
    # A value that is tried, or where none is tried, or that the preset has beside others that are tried.
    assert parse_compare(["--temperature", "1", "--exploration-ratio", "0.9"]).settings.temperature == 1
    assert parse_compare(["--temperature", "0.5", "--temperatures"]).settings.temperature == 0.5
    assert parse_compare(["--preset", "cifar10", "--temperatures", "0.1"]).temperatures == (0.1,)
    # HMC tunes no burn-in, and a setting that is given may leave it out.
    burn_in = ["--burn-in", "0.7", "--burn-ins", "0.5"]
    assert parse_compare([*burn_in, "--sampler", "SGHMC", "HMC"]).settings.burn_in == 0.7
    assert parse_compare([*burn_in, "--sampler", "SGD", "--given", "SGD:lr=.1"]).settings.burn_in == 0.7


def test_the_presets_are_what_they_are_for():
    settings = PRESETS["digits"][0]
    for family in map(family_named, FAMILIES):
        mine = {"hidden": settings.hidden, "activation": settings.activation}
        assert (settings.model, mine) not in family.architectures
        assert "cifar10" not in family.dataset_names
    factors = {500: 10, 80: 2}  # by batch: Meta-SGMCMC's experiments, and the long one at 32×32
    for settings, budgets in (each for name, each in PRESETS.items() if not name.endswith("_full")):
        assert budgets[1] == factors.get(settings.batch_size, 4 if settings.width == 8 else 5) * budgets[0]
        assert settings.num_samples == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "imagenet"], "imagenet"),
        (["--sampler", "SGD", "sgd"], "sampler must hold names, each once"),
        (["--grid", "0"], "grid must be at least 1, got 0"),
        (["--keep", "0"], "keep must be at least 1, got 0"),
        (["--validations", "0"], "validations must be at least 1, got 0"),
        (["--labels", "3"], "classes must be two or more different labels of digits in [0, 10), got (3,)"),
        (["--tune-seeds", "0"], "tune_seeds must be at least 1, got 0"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--division", "-1"], "division must not be negative, got -1"),
        (["--extensions", "-1"], "extensions must not be negative, got -1"),
        (["--momentum-decays", "0"], "momentum_decays must lie in (0, 1], got (0.0,)"),
        (["--weight-decays", "-1"], "weight_decays must not be negative, got -1.0"),
        (["--weight-decays", "0", "inf"], "weight_decays must be finite, got inf"),
        (["--temperatures", "-1"], "temperatures must not be negative, got -1.0"),
        (["--temperatures", "inf"], "temperatures must be finite, got inf"),
        (["--prior-precision", "inf"], "prior_precision must be finite, got inf"),
        (["--exploration-ratios", "1"], "exploration_ratios must lie in [0, 1), got"),
        (["--tries", "0"], "tries must be at least 1, got 0"),
        (["--sampler", "SGLRW", "--temperatures", "0"], "temperature must be greater than 0, got 0.0"),
        (["--budgets", "5", "5"], "budgets must be positive and differ, got (5, 5)"),
        (["--budgets", "5", "--steps", "5"], "budgets=(5,) and steps=5 exclude each other"),
        (["--preset", "digits", "--epochs", "3"], "budgets=(400, 2000) and epochs=3 exclude each other"),
        (["--temperature", "0.5"], "temperature=0.5 is not among temperatures=(1.0, 0.1, 0.01), which are tried: take"),
        (["--preset", "digits", "--temperature", "0.5"], "take --temperatures 0.5"),
        (["--momentum-decay", "0.2"], "momentum_decay=0.2 is not among momentum_decays=(0.05, 0.1, 0.3)"),
        (["--exploration-ratio", "0.7"], "take --exploration-ratios 0.7"),
        (
            ["--burn-in", "0.7", "--burn-ins", ".3", ".5"],
            "burn_in=0.7 is not among burn_ins=(0.3, 0.5), which are tried",
        ),
        (["--final-lr", "0.1", "--final-lrs", "1", ".5"], "final_lr=0.1 is not among final_lrs=(1.0, 0.5), which are"),
        (["--corruption-images", "5"], "corruption_images=5 says which images --corruptions takes, which is not given"),
        (["--sampler", "SGD", "--given", "SGD:lr=.1", "--tries", "3"], "tries=3 is of a balanced choice of settings"),
        (["--epochs", "50", "--steps", "100"], "epochs=50 and steps=100 exclude each other"),
        (["--noise", "0.3"], "noise=0.3 is that of a regression's observations, digits has classes"),
        (["--ood", "photo"], "ood='photo' is unknown"),
        (["--ood", "mnist", "mnist"], "ood must hold names, each once, got ('mnist', 'mnist')"),
        (["--reference", "nowhere.npy"], "nowhere.npy"),
        (["--validation", "0"], "tuning needs validation images, which digits lacks"),
        (["--budgets", "4", "400"], "num_samples=30 exceeds the steps after burn-in"),
        (["--sampler", "L2E", "--l2e-network", "nowhere.safetensors"], "which L2E needs: no such weight file"),
        (["--sampler", "L2EPaper", "--l2e-paper-network", "none"], "l2e_paper_network='none', which L2EPaper"),
    ],
)
def test_wrong_options_are_explained_before_anything_is_trained(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        compare.main([*arguments, "--out", str(tmp_path / "out")])
    assert caught.value.code
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert message in said
    assert not (tmp_path / "out").exists()


def test_help_explains_the_tuning(capsys):
    with pytest.raises(SystemExit):
        compare.main(["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "successive halving" in text
    for flag in ("--preset", "--budgets", "--keep", "--l2e-network", "--momentum-decays", "--extensions"):
        assert flag in text
