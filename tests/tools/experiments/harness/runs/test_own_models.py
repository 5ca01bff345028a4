"""Networks and data of a user's own in the tools; a regression against its closed form."""

import json
import math
import subprocess
import sys

import compare
import numpy as np
import pytest
import sample
import torch
from experiments.harness.runs import own_models
from torch import nn

from meta_tasks.datasets import array_data

FACTORY = """
from torch import nn

def network(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))

def linear(input_shape, outputs):
    return nn.Linear(input_shape[0], outputs)
"""
SMALL = ["--steps", "60", "--batch-size", "16", "--num-samples", "6", "--seeds", "1", "--prior-precision", "1"]


def table(n=240, *, regression=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=n)
    y = y if regression else (y > 0).astype(int)
    cut = n // 2
    return {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}


@pytest.fixture
def factory(tmp_path):
    (tmp_path / "own.py").write_text(FACTORY)
    np.savez(tmp_path / "table.npz", **table())
    return tmp_path / "own.py"


def own(factory, name="network"):
    return ["--model", f"{factory}:{name}", "--dataset", f"npz:{factory.parent / 'table.npz'}"]


@pytest.mark.parametrize("regression", [True, False])
def test_sample_with_a_factory_of_a_file_and_a_table(tmp_path, factory, capsys, regression):
    np.savez(tmp_path / "table.npz", **table(regression=regression))
    budget = ["--steps", "600", "--leapfrog-steps", "2", "--sampler", "SGHMC", "HMC", "SGD"]
    sample.main([*SMALL, *own(factory), *budget, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "table.md").read_text()
    headings = ("RMSE", "CRPS", "90 % coverage") if regression else ("accuracy", "ECE")
    assert all(heading in text for heading in headings), text
    assert ("accuracy" in text) != regression
    assert "diverged" not in text
    assert ("regression of 1" if regression else "2 classes") in capsys.readouterr().out


def test_a_run_knows_the_code_of_its_network_and_its_data(tmp_path, factory):
    arguments = [*SMALL, *own(factory), "--sampler", "SGD", "--out", str(tmp_path / "out")]
    run = tmp_path / "out" / "runs" / "SGD_lr0.05_seed0.json"
    sample.main(arguments)
    before = run.stat().st_mtime_ns
    sample.main(arguments)
    assert run.stat().st_mtime_ns == before, "read back"
    factory.write_text(FACTORY.replace("8", "9"))
    sample.main(arguments)
    assert run.stat().st_mtime_ns != before, "another network"
    np.savez(tmp_path / "table.npz", **table(seed=1))
    with pytest.raises(SystemExit, match="from other data"):
        sample.main(arguments)
    sample.main([*arguments, "--fresh"])


def test_the_scores_of_a_regression_are_those_of_the_closed_form(tmp_path, factory):
    """The predictive of Bayesian linear regression with weights N(0, 1), bias included."""
    data, sigma = array_data(table(), validation=20), 0.5
    x, y = (torch.cat([z.double(), torch.ones(len(z), 1)], 1) for z in (data.train_x, data.test_x))
    covariance = torch.linalg.inv(x.T @ x / sigma**2 + torch.eye(4))
    mean = covariance @ x.T @ data.train_y.double() / sigma**2
    predicted, variance = y @ mean, sigma**2 + ((y @ covariance) * y).sum(1, keepdim=True)
    error = (data.test_y - predicted).square()
    expected = (0.5 * (error / variance + variance.log() + math.log(2 * math.pi))).mean().item()
    given = ["--given", "BAOA:lr=.05,temperature=1,momentum_decay=.1", "--extensions", "0", "--sampler", "BAOA"]
    budget = ["--steps", "3000", "--batch-size", "100", "--num-samples", "200", "--validation", "20", "--noise", "0.5"]
    compare.main([*SMALL, *own(factory, "linear"), *given, *budget, "--seeds", "2", "--out", str(tmp_path / "out")])
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["budgets"]["3000"]
    scores = numbers["methods"]["BAOA"]["mean"]
    assert scores["nll"] == pytest.approx(expected, abs=0.01)
    assert scores["rmse"] == pytest.approx(error.mean().sqrt().item(), abs=0.01)
    assert 0.8 < scores["coverage"] < 0.98
    text = (tmp_path / "out" / "table.md").read_text()
    assert "RMSE" in text
    assert "accuracy" not in text


def test_a_package_that_the_users_folder_has(tmp_path, factory, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nets_here.py").write_text("from own_layers import network")
    (tmp_path / "mine" / "nets_lost.py").write_text("import no_such_thing")
    (tmp_path / "own_layers.py").write_text(FACTORY)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    with pytest.raises(ValueError, match=r"model='mine.nets_here:network'"):
        own_models.factory_of("mine.nets_here:network")
    monkeypatch.chdir(tmp_path)
    assert own_models.build("mine.nets_here:network", (3,), 2)[2].out_features == 2
    before = own_models.code_of("mine.nets_here:network")
    (tmp_path / "own_layers.py").write_text(FACTORY + "#")
    assert own_models.code_of("mine.nets_here:network") != before, "the file that has the function counts, too"
    with pytest.raises(ValueError, match=r"No module named 'no_such_thing'"):
        own_models.factory_of("mine.nets_lost:network")


# What a file may hold beside functions: a partial function, and a dataclass that looks its module up.
CLASSES = """
from __future__ import annotations
from dataclasses import dataclass
from functools import partial
from torch import nn

@dataclass
class Shape:
    width: int = 8

class Net(nn.Sequential):
    def __init__(self, input_shape, outputs, width=Shape().width):
        super().__init__(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, outputs))

narrow = partial(Net, width=4)
"""


def test_a_partial_function_is_read_back_by_another_process_until_its_file_changes(tmp_path, factory):
    factory.write_text(CLASSES)
    run, arguments = tmp_path / "out" / "runs" / "SGD_lr0.05_seed0.json", [*SMALL, *own(factory, "narrow")]
    code = f"import sys; sys.path[:0] = {sys.path!r}; import sample; sample.main({arguments!r} + sys.argv[1:])"

    def made():
        command = [sys.executable, "-c", code, "--sampler", "SGD", "--out", str(tmp_path / "out")]
        subprocess.run(command, check=True, capture_output=True)
        return run.stat().st_mtime_ns

    before = made()
    assert made() == before
    factory.write_text(CLASSES.replace("width=4", "width=5"))
    assert made() != before, "another network"


def test_what_a_network_is_when_it_is_new():
    class Scaled(nn.Linear):
        def extra_repr(self):
            return f"{object()}"

    def drawn(scale=1.0):
        network = nn.Linear(3, 2)
        nn.init.constant_(network.bias, scale)
        return network

    def found(make):
        return own_models.fingerprint_of(make, torch.linspace(-1, 1, 12).view(4, 3))

    class Activated(nn.Linear):
        def forward(self, x):
            return self.function(super().forward(x))

    def computing(function):
        def make():
            network = Activated(3, 2)
            network.function = function
            return network

        return found(make)

    numbers = torch.get_rng_state()
    assert found(drawn) == found(drawn)
    assert found(drawn) != found(lambda: drawn(2.0)), "values"
    assert found(lambda: nn.Dropout(0.1)) != found(lambda: nn.Dropout(0.2))
    assert found(lambda: Scaled(3, 2)) == found(lambda: Scaled(3, 2))
    assert computing(torch.relu) == computing(torch.relu)
    assert computing(torch.relu) != computing(torch.tanh), "of equal modules and weights"
    assert torch.equal(torch.get_rng_state(), numbers), "no generator goes on"
