"""Networks and data of a user's own in the tools and from Python; a regression against its closed form."""

import json
import math
import random
import subprocess
import sys

import compare as compare_tool
import numpy as np
import pytest
import sample
import torch
from experiments.images import own_models
from experiments.images.from_python import compare
from experiments.images.likelihood import Regression
from torch import nn

from meta_tasks.datasets import array_data

FACTORY = """
from torch import nn

def network(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))

def not_one():
    return 3
"""


@pytest.fixture(autouse=True)
def _restore_threads():
    """The tools set torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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
    return tmp_path / "own.py"


SMALL = ["--steps", "60", "--batch-size", "16", "--num-samples", "6", "--seeds", "1", "--prior-precision", "1"]


@pytest.mark.parametrize("regression", [True, False])
def test_sample_with_a_factory_of_a_file_and_a_table(tmp_path, factory, capsys, regression):
    np.savez(tmp_path / "table.npz", **table(regression=regression))
    own = ["--model", f"{factory}:network", "--dataset", f"npz:{tmp_path / 'table.npz'}"]
    budget = ["--steps", "600", "--leapfrog-steps", "2"]
    sample.main([*SMALL, *own, *budget, "--sampler", "SGHMC", "HMC", "SGD", "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "table.md").read_text()
    headings = ("RMSE", "CRPS", "90 % coverage") if regression else ("accuracy", "ECE")
    assert all(heading in text for heading in headings), text
    assert ("accuracy" in text) != regression
    assert "diverged" not in text
    assert ("regression of 1" if regression else "2 classes") in capsys.readouterr().out


def test_a_run_knows_the_code_of_its_network_and_its_data(tmp_path, factory):
    np.savez(tmp_path / "table.npz", **table())
    own = ["--model", f"{factory}:network", "--dataset", f"npz:{tmp_path / 'table.npz'}", "--sampler", "SGD"]
    arguments = [*SMALL, *own, "--out", str(tmp_path / "out")]
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


def test_compare_with_a_module_of_the_path(tmp_path, factory, monkeypatch):
    np.savez(tmp_path / "table.npz", **table())
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    own = ["--model", "own:network", "--dataset", f"npz:{tmp_path / 'table.npz'}", "--sampler", "SGHMC", "Adam"]
    tuning = ["--tries", "3", "--grid", "3", "--extensions", "1", "--tune-seeds", "1"]
    compare_tool.main([*SMALL, *own, *tuning, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "table.md").read_text()
    assert "RMSE" in text
    assert "accuracy" not in text


def test_from_python_the_scores_are_those_of_the_closed_form(tmp_path):
    data = array_data(table(), validation=20)
    sigma = 0.5
    # The predictive of Bayesian linear regression with weights N(0, 1), bias included.
    x, y = (torch.cat([z.double(), torch.ones(len(z), 1)], 1) for z in (data.train_x, data.test_x))
    covariance = torch.linalg.inv(x.T @ x / sigma**2 + torch.eye(4))
    mean = covariance @ x.T @ data.train_y.double() / sigma**2
    predicted, variance = y @ mean, sigma**2 + ((y @ covariance) * y).sum(1, keepdim=True)
    error = (data.test_y - predicted).square()
    expected = (0.5 * (error / variance + variance.log() + math.log(2 * math.pi))).mean().item()

    def network():
        return nn.Linear(3, 1)

    options = dict(noise=sigma, temperatures=(1.0,), steps=3000, batch_size=100, num_samples=200, tries=1, grid=1)
    options |= dict(extensions=0, tune_seeds=1, seeds=2, prior_precision=1.0, momentum_decays=(0.1,), temperature=1.0)
    found = compare(network, data, samplers=["BAOA"], out=tmp_path, **options)
    (numbers,) = found.numbers
    scores = numbers["methods"]["BAOA"]["mean"]
    assert scores["nll"] == pytest.approx(expected, abs=0.01)
    assert scores["rmse"] == pytest.approx(error.mean().sqrt().item(), abs=0.01)
    assert 0.8 < scores["coverage"] < 0.98
    assert "| BAOA" in str(found)
    assert "RMSE" in repr(found)
    # The same call reads its runs back; other data under the same settings are refused.
    before = sorted((tmp_path / "steps_3000" / "runs").iterdir())
    assert str(compare(network, data, samplers=["baoa"], out=tmp_path, **options)) == str(found)
    assert sorted((tmp_path / "steps_3000" / "runs").iterdir()) == before
    with pytest.raises(ValueError, match="from other data"):
        compare(network, array_data(table(seed=1), validation=20), samplers=["BAOA"], out=tmp_path, **options)


def test_tuning_alone_from_python_leaves_the_test_data_alone(tmp_path):
    few = dict(steps=40, batch_size=16, num_samples=4, tries=2, grid=2, extensions=0, tune_seeds=1, seeds=1)
    found = compare(lambda: nn.Linear(3, 2), table(), ["SGD"], out=tmp_path, tune_only=True, **few)
    assert (found.reports, found.numbers) == ([], [])
    assert "| validation NLL |" in str(found)
    assert str(found) in (tmp_path / "validation.md").read_text()
    runs = [json.loads(path.read_text()) for path in tmp_path.glob("steps_40/runs/*.json")]
    assert len(runs) == 2
    assert not any(run["result"]["scores"] for run in runs)
    assert not (tmp_path / "results.json").exists()


def test_a_network_may_give_the_noise(tmp_path):
    wide = nn.Linear(3, 2)
    likelihood, x, y = Regression(None), torch.randn(5, 3), torch.randn(5, 1)
    mean, log_variance = wide(x).chunk(2, 1)
    expected = nn.functional.gaussian_nll_loss(mean, y, log_variance.exp(), full=True)
    torch.testing.assert_close(likelihood.loss(wide(x), y), expected)
    found = compare(
        lambda: nn.Linear(3, 2),
        table(),
        samplers=["SGLD"],
        out=tmp_path,
        steps=30,
        tries=1,
        grid=1,
        extensions=0,
        tune_seeds=1,
        seeds=1,
        batch_size=16,
        num_samples=4,
    )
    assert "RMSE" in str(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "nothing.py:network"}, "there is no file"),
        ({"model": "no.such.module:network"}, "No module named"),
        ({"model": "math:nothing"}, "has no function nothing"),
        ({"model": "OWN:not_one"}, "must return a torch.nn.Module, got int"),
        ({"model": "cnn"}, "is for images"),
        ({"model": "unet"}, "must be one of 'mlp'"),
        ({"model": "OWN:network", "hidden": (3,)}, "hidden cannot be given"),
        ({"model": lambda: nn.Linear(3, 5)}, "even number|the network's means"),
        ({"samplers": ["SGHMC", "Nothing"]}, "samplers must be one of"),
        ({"momentum": 0.9}, "no option momentum"),
        ({"preset": "digits"}, "no option preset"),
        ({"corruptions": True, "corruption_files": True}, "no option corruption_files"),
        ({"reference": "nowhere.npy"}, "reference='nowhere.npy' holds probabilities, and this is a regression"),
        ({"reference": np.zeros(3)}, "reference must be a path, got ndarray"),
        ({"settings_of": "nowhere"}, "settings_of: no results.json"),
        ({"data": array_data(table()), "validation": 0.5}, "validation=0.5 cannot be applied"),
        ({"noise": -1.0}, "noise must be greater than 0"),
        ({"data": {"x_train": [[1.0]]}}, "lacks y_train, x_test, y_test"),
        ({"data": {**table(), "z": 1}}, "unknown arrays z"),
        ({"data": {**table(), "y_test": np.zeros(120, int)}}, "alike in all parts"),
        ({"data": {**table(), "x_train": np.zeros((120, 3), np.uint8)}}, "convert it"),
        ({"data": {**table(), "x_train": np.full((120, 3), np.nan)}}, "must be finite"),
        ({"data": {**table(), "x_train": np.zeros((120, 4))}}, "must have shapes"),
    ],
)
def test_refusals(tmp_path, factory, change, message):
    if isinstance(change.get("model"), str):
        change = {**change, "model": change["model"].replace("OWN", str(factory))}
    given = {"model": lambda: nn.Linear(3, 2), "data": table(), "samplers": ["SGD"], "steps": 5, "batch_size": 16}
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        compare(**{**given, "out": tmp_path / "out", **change})
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_a_package_that_the_users_folder_has(tmp_path, factory, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nets_here.py").write_text("from own_layers import network")
    (tmp_path / "mine" / "nets_lost.py").write_text("import no_such_thing")
    (tmp_path / "own_layers.py").write_text(FACTORY)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    with pytest.raises(ValueError, match=r"'mine.nets_here:network'.*write file.py:factory or package.module:factory"):
        own_models.factory_of("mine.nets_here:network")
    monkeypatch.chdir(tmp_path)
    assert own_models.build("mine.nets_here:network", (3,), 2)[2].out_features == 2
    before = own_models.code_of("mine.nets_here:network")
    (tmp_path / "own_layers.py").write_text(FACTORY + "#")
    assert own_models.code_of("mine.nets_here:network") != before, "the file that has the function counts, too"
    with pytest.raises(ValueError, match=r"imports what is not there: No module named 'no_such_thing'$"):
        own_models.factory_of("mine.nets_lost:network")
    with pytest.raises(ValueError, match=r"'' is no module; write file\.py"):
        own_models.factory_of(":network")


# What a file may hold beside functions: a class, a partial function, and a dataclass that looks its module up.
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


@pytest.mark.parametrize("name", ["Net", "narrow"])
def test_a_class_or_a_partial_function_is_read_back_until_its_file_changes(tmp_path, name):
    file, run = tmp_path / "classes.py", tmp_path / "out" / "runs" / "SGD_lr0.05_seed0.json"
    np.savez(tmp_path / "table.npz", **table())
    file.write_text(CLASSES)
    own = ["--model", f"{file}:{name}", "--dataset", f"npz:{tmp_path / 'table.npz'}", "--sampler", "SGD"]
    code = f"import sys; sys.path[:0] = {sys.path!r}; import sample; sample.main({[*SMALL, *own]!r} + sys.argv[1:])"

    def made():
        subprocess.run([sys.executable, "-c", code, "--out", str(tmp_path / "out")], check=True, capture_output=True)
        return run.stat().st_mtime_ns

    before = made()
    assert made() == before, "read back by another process"
    file.write_text(CLASSES.replace("8", "40").replace("width=4", "width=5"))
    assert made() != before, "another network"


def test_a_file_is_executed_once_and_leaves_nothing_where_it_fails(tmp_path, factory):
    model, known = f"{factory}:network", set(sys.modules)
    assert own_models.factory_of(model) is own_models.factory_of(model)
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(RuntimeError, match="broken"):
        own_models.factory_of(f"{tmp_path / 'broken.py'}:network")
    assert len(set(sys.modules) - known) == 1, "the first file alone"


def test_functions_of_the_same_text_are_told_apart(tmp_path):
    found = []
    few = dict(steps=40, batch_size=16, num_samples=4, tries=1, grid=1, extensions=0, tune_seeds=1, seeds=1)
    for width in (4, 64):

        def net():
            return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))  # noqa: B023

        found.append(compare(net, table(), ["SGD"], out=tmp_path, momentum_decays=(0.1,), **few))
    assert found[0].numbers[0]["methods"]["SGD"]["mean"]["nll"] != found[1].numbers[0]["methods"]["SGD"]["mean"]["nll"]


def test_what_a_network_is_when_it_is_new():
    class Scaled(nn.Linear):
        def extra_repr(self):
            return f"{object()}"

    def drawn(scale=1.0):
        network = nn.Linear(3, 2)
        nn.init.constant_(network.bias, scale * (random.random() + np.random.rand()))  # noqa: NPY002
        return network

    def numpys():
        return np.random.get_state()[1].tolist()  # noqa: NPY002

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

    numbers = torch.get_rng_state(), numpys(), random.getstate()
    assert found(drawn) == found(drawn)
    assert found(drawn) != found(lambda: drawn(2.0)), "values"
    assert found(lambda: nn.Dropout(0.1)) != found(lambda: nn.Dropout(0.2))
    assert found(lambda: Scaled(3, 2)) == found(lambda: Scaled(3, 2))
    assert computing(torch.relu) == computing(torch.relu)
    assert computing(torch.relu) != computing(torch.tanh), "of equal modules and weights"
    assert torch.equal(torch.get_rng_state(), numbers[0]), "no generator goes on"
    assert (numpys(), random.getstate()) == numbers[1:]


def test_code_without_a_source():
    one, other, again = {}, {}, {}
    for found, width in ((one, 4), (other, 5), (again, 4)):
        exec(f"class Net:\n    def width(self): return {width}", found)
    texts = [own_models._text_of(found["Net"]) for found in (one, other, again)]
    assert texts[0] == texts[2] != texts[1]
