"""Networks and data of a user's own in the tools."""

import shlex
import subprocess
import sys

import compare
import numpy as np
import pytest
import torch
from experiments.harness.runs import own_models
from torch import nn

FACTORY = """
from torch import nn

def network(input_shape, outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))
"""
SMALL = shlex.split("--given-settings --steps 60 --batch-size 16 --num-samples 6 --seeds 1 --prior-precision 1")
pytestmark = pytest.mark.usefixtures("undrawn")


def table(n=240, *, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = (x @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=n) > 0).astype(int)
    cut = n // 2
    return {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}


@pytest.fixture
def factory(tmp_path):
    (tmp_path / "own.py").write_text(FACTORY)
    np.savez(tmp_path / "table.npz", **table())
    return tmp_path / "own.py"


def own(factory, name="network"):
    return ["--model", f"{factory}:{name}", "--dataset", f"npz:{factory.parent / 'table.npz'}"]


@pytest.mark.parametrize(
    ("layers", "named"),
    [("nn.Linear(3, 2), nn.Softmax(1)", "softmax"), ("nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)", "running")],
)
def test_networks_whose_samples_could_not_predict_are_refused_before_anything_is_trained(
    tmp_path, factory, layers, named
):
    factory.write_text(
        f"from torch import nn\n\ndef network(input_shape, outputs):\n    return nn.Sequential({layers})\n"
    )
    with pytest.raises(SystemExit, match=f"model=.*{named}"):
        compare.main([*SMALL, *own(factory), "--sampler", "SGD", "SGHMC", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_network_that_is_frozen_in_part(tmp_path, factory):
    factory.write_text(
        FACTORY.replace("nn.Linear(input_shape[0], 8)", "nn.Linear(input_shape[0], 8).requires_grad_(False)")
    )
    compare.main([*SMALL, *own(factory), "--sampler", "SGHMC", "--out", str(tmp_path / "out")])
    assert "NLL" in (tmp_path / "out" / "table.md").read_text()


def test_a_run_knows_the_code_of_its_network_and_its_data(tmp_path, factory):
    arguments = [*SMALL, *own(factory), "--sampler", "SGD", "--out", str(tmp_path / "out")]
    run = tmp_path / "out" / "steps_60" / "runs" / "SGD_lr0.05_seed0.json"
    compare.main(arguments)
    before = run.stat().st_mtime_ns
    compare.main(arguments)
    assert run.stat().st_mtime_ns == before, "read back"
    factory.write_text(FACTORY.replace("8", "9"))
    with pytest.raises(SystemExit, match=r"other settings \(model_code.*--fresh"):
        compare.main(arguments)
    assert run.stat().st_mtime_ns == before, "kept"
    compare.main([*arguments, "--fresh"])
    assert run.stat().st_mtime_ns != before, "another network"
    np.savez(tmp_path / "table.npz", **table(seed=1))
    with pytest.raises(SystemExit, match="from other data"):
        compare.main(arguments)
    compare.main([*arguments, "--fresh"])


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
    run = tmp_path / "out" / "steps_60" / "runs" / "SGD_lr0.05_seed0.json"
    arguments = [*SMALL, *own(factory, "narrow"), "--sampler", "SGD", "--out", str(tmp_path / "out")]
    compare.main(arguments)
    before = run.stat().st_mtime_ns
    code = f"import sys; sys.path[:0] = {sys.path!r}; import compare; compare.main({arguments!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert run.stat().st_mtime_ns == before
    factory.write_text(CLASSES.replace("width=4", "width=5"))
    with pytest.raises(SystemExit, match="other settings"):
        compare.main(arguments)


def test_what_a_network_is_when_it_is_new():
    class Activated(nn.Linear):
        def __init__(self, function, bias=0.0):
            super().__init__(3, 2)
            self.function = function
            nn.init.constant_(self.bias, bias)

        def forward(self, x):
            return self.function(super().forward(x))

        def extra_repr(self):
            return f"{object()}"  # an address in memory

    def fingerprint(make, *arguments):
        return own_models.network_fingerprint(lambda: make(*arguments), torch.linspace(-1, 1, 12).view(4, 3))

    numbers = torch.get_rng_state()
    assert fingerprint(Activated, torch.relu) == fingerprint(Activated, torch.relu)
    assert fingerprint(Activated, torch.relu) != fingerprint(Activated, torch.relu, 2.0), "values"
    assert fingerprint(Activated, torch.relu) != fingerprint(Activated, torch.tanh), "of equal modules and weights"
    assert fingerprint(nn.Dropout, 0.1) != fingerprint(nn.Dropout, 0.2), "modules without weights"
    assert torch.equal(torch.get_rng_state(), numbers), "no generator goes on"
