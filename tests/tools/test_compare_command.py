"""The command tools/compare.py: interrupts, how it tunes, what is given, and presets."""

import json
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
from experiments.compare.comparison import Comparison
from experiments.compare.options import given_settings, parse_compare
from experiments.harness.runs.methods import METHODS, Setting
from experiments.harness.runs.presets import PRESETS
from experiments.harness.runs.result import Result
from experiments.harness.runs.runner import Runs
from experiments.harness.runs.settings import Settings
from tqdm import tqdm

from meta_tasks.datasets import ImageData
from tests.tools.compare_cases import ROOT, SMALL, TINY, cells, numbers


def test_an_interrupt_says_that_finished_runs_are_kept(tmp_path):
    command = [sys.executable, "tools/compare.py", *TINY, *SMALL, "--sampler", "SGD", "--budgets", "100000"]
    # A shell that runs in the background may have left the signal ignored.
    done = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    options = [*TINY, "--sampler", "PSGLD", "--budgets", "10", "20", "40", "--grid", "3", "--tries", "6", "--keep", "2"]
    options += ["--extensions", "2", "--tune-seeds", "2", "--values", "temperature=1,.1", "--out", str(tmp_path)]
    options = parse_compare(options)
    data, _ = options.load()
    calls = []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        calls.append((settings.steps, lr, settings.temperature, seed))
        bar.update(settings.steps)
        # The best rate goes down as the budget grows; the cold posterior is better at all of them.
        nll = abs(math.log(lr * settings.steps / 0.02)) + settings.temperature + 0.01 * seed
        return Result(method, lr, seed, {}, validation_nll=nll)

    monkeypatch.setattr(Runs, "run", fake)
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
    options = [*TINY, "--sampler", "PSGLD", "SGD", "--budgets", "10", "20", "--tries", "4", "--keep", "3"]
    options = parse_compare([*options, "--extensions", "1", "--tune-seeds", "1", "--out", str(tmp_path)])
    (data, _), tried = options.load(), []

    def fake(self, settings, method, lr, seed, *, bar, **_):
        tried.append((method, settings.steps))
        broken = method == "PSGLD" and tried.count((method, 10)) > 1 and settings.steps == 10
        return Result(method, lr, seed, {}, validation_nll=None if broken else lr, diverged="so" if broken else None)

    monkeypatch.setattr(Runs, "run", fake)
    with tqdm(disable=True) as bar:
        comparison = Comparison(options, data, bar)
        for budget in (10, 20):
            for method in ("PSGLD", "SGD"):
                comparison.tune(method, budget)
    assert {each: tried.count(each) for each in tried} == {
        (method, budget): tries for method in ("PSGLD", "SGD") for budget, tries in ((10, 5), (20, 4))
    }


def test_tuning_alone_looks_at_no_test_image_and_the_command_goes_on(tmp_path, monkeypatch):
    arguments = [*TINY, *SMALL, "--budgets", "8", "16", "--sampler", "SGHMC", "L2E", "--out", str(tmp_path)]
    compare.main([*arguments, "--tune-only"])
    text = (tmp_path / "validation.md").read_text()
    records = [json.loads(path.read_text())["result"] for path in tmp_path.glob("steps_*/runs/*.json")]
    assert len(records) == 8  # two methods, two settings, two budgets
    assert not any(record["scores"] for record in records)
    assert not list(tmp_path.glob("steps_*/predictions/*"))
    assert len(list(tmp_path.glob("steps_*/samples/*"))) == 4  # of the chosen settings alone
    best = min(record["validation_nll"] for record in records)
    assert f" {best:.4f} |" in text
    assert "L2E [" in text
    assert not (tmp_path / "results.json").exists()
    ran, run = [], Runs._train
    monkeypatch.setattr(Runs, "_train", lambda self, result, *rest: ran.append(result) or run(self, result, *rest))
    compare.main([*arguments, "--seeds", "1"])
    assert len(ran) == 4
    tuned = numbers(tmp_path)["16"]["methods"]["SGHMC"]["tuning"][0]["lr"]
    assert tuned == float(cells(text, "### 16 gradients", "SGHMC", "lr"))


def test_a_method_that_diverged_everywhere_has_had_its_tries(tmp_path):
    given = [f"SGHMC:lr={lr},momentum_decay=0.1,temperature=0.1,burn_in=0.5" for lr in ("1e15", "1e16")]
    others = [f"SGD:lr={lr},momentum_decay=0.1" for lr in (0.1, 0.2)]
    options = ["--budgets", "20", "40", "--keep", "1", "--extensions", "0", "--tune-seeds", "1", "--tune-only"]
    compare.main([*TINY, *options, "--sampler", "SGHMC", "SGD", "--given", *given, *others, "--out", str(tmp_path)])
    at_40 = (tmp_path / "validation.md").read_text().partition("### 40 gradients")[2]
    assert "SGHMC: at 20 gradients it diverged at every learning rate of [1000000000000000.0, 1e+16]" in at_40
    assert len(list((tmp_path / "steps_40" / "runs").glob("SGD*.json"))) == 1
    assert not list((tmp_path / "steps_40").glob("runs/SGHMC*.json"))


# --- settings that are given --------------------------------------------------------------------------------------


def test_settings_are_read_for_their_method_in_the_order_of_what_it_tunes():
    given = (
        "sghmc:lr=.05, momentum-decay=.1,temperature=1",
        "SGD:lr=0.1,weight_decay=5e-4",
        "SGHMC:burn_in=.8,lr=.2",
        "SGD:lr=0.1,prior-precision=20",
    )
    assert given_settings(given, METHODS["SGHMC"], 400) == [
        Setting(0.05, (("temperature", 1.0), ("momentum_decay", 0.1))),
        Setting(0.2, (("burn_in", 0.8),)),
    ]
    assert given_settings(given, METHODS["SGD"], 400) == [
        Setting(0.1, (("prior_precision", 0.2),)),  # λ = 5e-4 · N
        Setting(0.1, (("prior_precision", 20.0),)),
    ]
    assert given_settings(given, METHODS["Adam"], 400) == []


@pytest.mark.parametrize(
    "text",
    [
        *("SGHCM:lr=.1", "lr=.1", "SGHMC", "SGHMC:lr", "SGHMC:lr=fast", "SGHMC:lr=nan", "SGHMC:lr=.1,temperature=-1"),
        *("SGHMC:lr=.1,", "SGHMC:temperature=1", "SGHMC:lr=0", "SGHMC:lr=.1,lr=.2", "SGHMC:lr=.1,weight_decay=0"),
    ],
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match="given"):
        given_settings([text], METHODS["SGHMC"], 400)


def test_what_is_given_is_tried_and_nothing_else(tmp_path):
    sampler = ["--sampler", "SGHMC", "SGD", "--seeds", "2", "--budgets", "20", "40", "--keep", "1"]
    sampler += ["--tune-seeds", "1", "--extensions", "0"]
    one = ["SGHMC:lr=.05,momentum_decay=.2", "SGD:lr=.1,weight_decay=0"]
    two = ["SGHMC:lr=.02,temperature=1", "SGD:lr=.2,momentum_decay=.5"]
    compare.main([*TINY, *sampler, "--given", *one, *two, "--out", str(tmp_path / "tuned")])
    tuned = numbers(tmp_path / "tuned")
    tried = {name: sorted(each["lr"] for each in m["tuning"]) for name, m in tuned["20"]["methods"].items()}
    assert tried == {"SGHMC": [0.02, 0.05], "SGD": [0.1, 0.2]}
    assert all(len(method["tuning"]) == 1 for method in tuned["40"]["methods"].values()), "the best one goes on"
    compare.main([*TINY, *sampler, "--given", *one, "--out", str(tmp_path / "taken")])
    taken = numbers(tmp_path / "taken")
    assert [taken[budget]["methods"]["SGHMC"]["momentum_decay"] for budget in ("20", "40")] == [0.2, 0.2]
    assert [taken[budget]["methods"]["SGD"]["tuning"][0]["seeds"] for budget in ("20", "40")] == [[], []]
    assert len(list((tmp_path / "taken" / "steps_20" / "runs").glob("*.json"))) == 4, "final runs alone"
    assert "Nothing was tuned here" in (tmp_path / "taken" / "table.md").read_text()


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


def alternatives(num_data, *arguments):
    x = torch.zeros(1, 1, 1, 1).expand(num_data, -1, -1, -1)
    y = torch.zeros(1, dtype=torch.int64).expand(num_data)
    data = ImageData("data", 2, x, y, x[:1], y[:1], x[:1], y[:1])
    return parse_compare(["--preset", "cifar10", *arguments]).alternatives(data)


def test_what_is_tried_beside_learning_rates():
    assert alternatives(100)["temperature"] == (1.0, 0.1, 0.01)
    assert alternatives(100, "--values", "temperature=.5,1,.5", "burn-in=.5,.8")["temperature"] == (0.5, 1.0)
    assert alternatives(100, "--values", "burn-in=.5,.8")["burn_in"] == (0.5, 0.8)
    assert alternatives(100, "--temperature", "0.3")["temperature"] == (0.3,), "an option takes the place of several"
    # On CIFAR-10 the prior's is 4.88e-4: 5e-4 would be a second run of the same in the place of another setting.
    decays = ["--values", "weight_decay=0,5e-4,5.2e-4"]
    assert alternatives(40_960, *decays)["prior_precision"] == (20.0, 0.0)
    assert alternatives(10_000, *decays)["prior_precision"] == (20.0, 0.0, 5.0)


@pytest.mark.parametrize("tool", ["compare", "sample"])
def test_the_help_text_names_methods_and_fits_two_screens(tool):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    command = [sys.executable, f"tools/{tool}.py", "--help"]
    text = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert all(f" {name}" in text for name in METHODS)
    assert len(text.splitlines()) < 130
