"""The table at 32×32 on a handful of small images: methods run, a run that was broken off goes on, rates are chosen."""

from __future__ import annotations

import json

import cifar32
import pytest
import torch
from experiments.cifar32 import run as runs
from experiments.cifar32.methods import DERIVED, METHODS
from experiments.cifar32.run import file_of


@pytest.fixture(autouse=True)
def small(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    known = {}
    for name, count in (("train", 400), ("val", 20), ("test", 20), ("cifar100", 10)):
        known[f"{name}_images"] = torch.randn(count, 3, 8, 8, generator=generator)
        known[f"{name}_labels"] = torch.randint(10, (count,), generator=generator)
    monkeypatch.setattr(runs, "data", lambda root: known)
    monkeypatch.setattr(cifar32, "data", lambda root: known)
    monkeypatch.setattr(
        runs,
        "resnet20_frn",
        lambda shape, classes: torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, classes)
        ),
    )
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("name", [name for name in METHODS | DERIVED if "SOAP" not in name])
def test_every_method_runs(name, tmp_path):
    method = (METHODS | DERIVED)[name]
    found = runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)
    several = 1 if method.average in ("last", "ema") else runs.SAMPLES
    assert found["samples"] == method.networks * several
    assert json.loads(file_of(tmp_path, name, 0.01, 10, 1).with_suffix(".json").read_text()) == found
    assert found == runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)  # read back


@pytest.mark.parametrize("name", ["L2E", "Adam, moving average", "5 networks by SGD", "L2E in cycles"])
def test_a_run_that_was_broken_off_ends_as_one_that_was_not(name, tmp_path, monkeypatch):
    whole = runs.run(name, 0.01, 10, 1, tmp_path, tmp_path / "whole")
    save, count = torch.save, 0

    def save_thrice(*arguments):
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        save(*arguments)

    monkeypatch.setattr(torch, "save", save_thrice)
    with pytest.raises(KeyboardInterrupt):
        runs.run(name, 0.01, 10, 1, tmp_path, tmp_path / "broken")
    monkeypatch.setattr(torch, "save", save)
    resumed = runs.run(name, 0.01, 10, 1, tmp_path, tmp_path / "broken")
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}


def test_the_rate_with_the_lowest_mean_is_chosen_and_a_collapsed_run_counts_as_a_guess(tmp_path):
    values = {0.05: (1.0, 1.1, 1.2), 0.1: (0.9, 0.9, None), 0.2: (1.3, 1.3, 50.0)}
    for lr, found in values.items():
        for seed, value in zip(cifar32.TUNING_SEEDS, found, strict=True):
            assert cifar32.chosen("SGD, cosine", tmp_path) is None  # not before all are there
            place = file_of(tmp_path, "SGD, cosine", lr, cifar32.TUNING_EPOCHS, seed)
            place.with_suffix(".json").write_text(json.dumps({"validation_nll": value}))
    assert cifar32.chosen("SGD, cosine", tmp_path) == 0.05
    assert cifar32.chosen("5 networks by SGD", tmp_path) == 0.05


def test_the_closed_half_is_scored_by_its_own_command_alone(tmp_path):
    runs.run("SGD, cosine", 0.05, 5, 1, tmp_path, tmp_path)
    assert "closed" not in "".join(path.read_text() for path in tmp_path.glob("*.json")) + cifar32.table(tmp_path)
    assert "closed_test_nll" in cifar32.table(tmp_path, tmp_path)
