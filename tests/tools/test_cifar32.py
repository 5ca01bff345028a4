"""The table at 32×32 on a handful of small images: methods run, a run that was broken off goes on, rates are chosen."""

from __future__ import annotations

import json

import pytest
import torch
from experiments.cifar32 import run as runs
from experiments.cifar32 import study
from experiments.cifar32.methods import DERIVED, METHODS, ROWS
from experiments.cifar32.run import file_of
from experiments.cifar32.study import Study, chosen, table


@pytest.fixture(autouse=True)
def small(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    known = {}
    for name, count in (("train", 560), ("val", 20), ("test", 20), ("cifar100", 10), ("photos", 10)):
        known[f"{name}_images"] = torch.randn(count, 3, 8, 8, generator=generator)
        known[f"{name}_labels"] = torch.randint(10, (count,), generator=generator)
    known["hmc"] = torch.rand(20, 10, generator=generator)
    monkeypatch.setattr(runs, "data", lambda root, device="cpu": known)
    monkeypatch.setattr(
        runs,
        "resnet20_frn",
        lambda shape, classes: torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, classes)
        ),
    )
    monkeypatch.setattr(torch, "compile", lambda function: function)
    return known


@pytest.mark.parametrize("name", [name for name in METHODS | DERIVED if "SOAP" not in name])
def test_every_method_runs(name, tmp_path):
    method = (METHODS | DERIVED)[name]
    found = runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)
    assert found["samples"] == (method.networks if method.average in ("last", "ema") else runs.SAMPLES)
    assert 0 <= found["open_test_photos_auroc"] <= 1
    assert json.loads(file_of(tmp_path, name, 0.01, 10, 1).with_suffix(".json").read_text()) == found
    assert found == runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)  # read back


@pytest.mark.parametrize(
    "name", ["L2E", "Adam, moving average", "5 networks by SGD", "L2E in cycles", "5 chains of AdaptedSGHMC"]
)
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


@pytest.mark.parametrize("name", ["SGHMC in cycles", "Adam, moving average"])
def test_a_run_that_another_device_began_goes_on_here(name, tmp_path, monkeypatch):
    save, load, to = torch.save, torch.load, []

    def saved_elsewhere(state, path):
        if state["epoch"] == 4:
            raise KeyboardInterrupt
        save({**state, "network": {**state["network"], "device": "cuda", "rng": torch.zeros(16)}}, path)

    def load_noted(path, device=None, **kwargs):
        to.append(device)
        return load(path, device, **kwargs)

    monkeypatch.setattr(torch, "save", saved_elsewhere)
    with pytest.raises(KeyboardInterrupt):
        runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)
    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr(torch, "load", load_noted)
    assert runs.run(name, 0.01, 10, 1, tmp_path, tmp_path)["samples"] == (10 if "cycles" in name else 1)
    assert to == ["cpu"]  # predictions lie there; the network moves what is its own


def test_the_rate_with_the_lowest_mean_is_chosen_and_a_collapsed_run_counts_as_a_guess(tmp_path):
    values = {0.05: (1.0, 1.1, 1.2), 0.1: (0.9, 0.9, None), 0.2: (1.3, 1.3, 50.0)}
    for number, seed in enumerate(study.TUNING_SEEDS):
        for lr, found in values.items():
            # Nothing before a seed has all rates; a seed that has not is not compared.
            assert chosen("SGD, cosine", tmp_path) == (None if not number else 0.1)
            place = file_of(tmp_path, "SGD, cosine", lr, study.TUNING_EPOCHS, seed)
            place.with_suffix(".json").write_text(json.dumps({"validation_nll": found[number]}))
    assert chosen("SGD, cosine", tmp_path) == 0.05
    assert chosen("5 networks by SGD", tmp_path) == 0.05
    assert chosen("AdaptedSGHMC(warmup=L2E), as it comes", tmp_path) == 0.002


def test_the_closed_half_is_scored_by_its_own_option_alone(tmp_path, small):
    runs.run("SGHMC", 0.05, 10, 1, tmp_path, tmp_path)
    shown, opened = table(tmp_path), table(tmp_path, small)
    assert "closed" not in "".join(path.read_text() for path in tmp_path.glob("*.json"))
    assert shown.splitlines()[0] == opened.splitlines()[0]
    assert shown.splitlines()[2] != opened.splitlines()[2]
    assert "–" not in shown.splitlines()[2]


@pytest.fixture
def few(monkeypatch):
    """Two methods, one of them in cycles, in place of all."""
    methods = {name: METHODS[name] for name in ("SGHMC", "SGD, cosine")}
    monkeypatch.setattr(study, "TUNING_EPOCHS", 10)
    for name, value in {"METHODS": methods, "ROWS": ("SGD, cosine", "SGHMC in cycles"), "SEEDS": (1,)}.items():
        monkeypatch.setattr(study, name, value)


def test_a_study_ends_with_all_rows_at_all_epochs(few, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "EPOCHS", (20, 15))
    said: list[str] = []
    Study(tmp_path, tmp_path).all(said.append)
    assert len(said) == 2 * 3 * 3 + 2
    rows = table(tmp_path).splitlines()[2:]
    assert [row.split(" | ")[2] for row in rows] == ["20", "20"]
    assert rows[1].startswith("| SGHMC in cycles |")
    Study(tmp_path, tmp_path).all(said.append)  # read back
    assert said[: len(said) // 2] == said[len(said) // 2 :]


def test_where_minutes_are_limited_seeds_and_then_epochs_become_fewer(few, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "_seconds", lambda out, name: 10.0)  # of a tuning run: 100 seconds of 100 epochs
    one = Study(tmp_path, tmp_path, minutes=4)
    assert one._fit([], study.ROWS, 100)
    assert not one._fit([name for name in study.METHODS for _ in range(3)], study.ROWS, 100)
    monkeypatch.setattr(study, "EPOCHS", (100, 50, 20))
    monkeypatch.setattr(study, "_seconds", lambda out, name: 30.0)
    one.all(lambda said: None)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert {each["seed"] for each in found} == {100, 1}
    assert {each["epochs"] for each in found} == {10, 20}


def test_every_row_has_a_method():
    assert set(ROWS) == (METHODS | DERIVED).keys()
