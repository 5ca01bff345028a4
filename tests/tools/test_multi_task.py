"""tools/multi_task.py: networks against plain modules, choices by validation alone, and the command end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import multi_task
import numpy as np
import pytest
import torch
from experiments.multi_task import options
from experiments.multi_task.methods import METHODS
from experiments.multi_task.networks import ResNet18
from experiments.multi_task.runner import Result, constant_particles
from safetensors.torch import load_file
from torch import nn

from meta_tasks.datasets.celeba import FIRST_TEN
from tests.meta_tasks.datasets.celeba_archive import write_celeba

EVERY = tuple(name for name, method in METHODS.items() if not method.separate)


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Sources in MNIST's layout, and CelebA's: a class of the former is a bright bar at its own height."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True)
        for prefix, count in (("train", 200), ("t10k", 40)):
            y = np.arange(count) % 10
            x = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
            for image, label in zip(x, y, strict=True):
                image[4 + 2 * label : 6 + 2 * label] = 255
            for kind, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
                header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
                (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    write_celeba(folder)
    return folder


@pytest.fixture(autouse=True)
def _few_held_out(monkeypatch):
    """The sources here have too few images for 6,000 of them to be held out."""
    plain = options.load_overlaid
    monkeypatch.setattr(options, "load_overlaid", lambda *args, **more: plain(*args, validation=50, **more))


# ---------------------------------------------------------------- the command


def read(path):
    """A run on disk."""
    record = json.loads(path.read_text())
    return Result(**record["made_of"]["settings"], **record["result"])


TINY = ["--particles", "2", "--epochs", "1", "--batch-size", "25", "--seeds", "2", "--rates", "0.02", "0.1"]
TINY += ["--extensions", "0", "--train", "100", "--validation", "40", "--test", "30", "--device", "cpu"]


def test_the_command_on_two_data_sets(root, tmp_path, capsys):
    arguments = [*TINY, "--dataset", "multi_mnist", "multi_fashion_mnist", "--data", str(root), "--out", str(tmp_path)]
    multi_task.main(arguments)
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert list(content["data sets"]) == ["multi_mnist", "multi_fashion_mnist"]
    for methods in content["data sets"].values():
        assert tuple(methods) == EVERY
        for name, each in methods.items():
            assert [r["seed"] for r in each["runs"]] == [0, 1]
            assert len({(r["lr"], r["energy"]) for r in each["runs"]}) == 1
            assert len(each["tuning"]) == (4 if METHODS[name].repels else 2)
            best = min(each["tuning"], key=lambda trial: trial["validation_nll"])
            assert (best["lr"], best["energy"]) == (each["runs"][0]["lr"], each["runs"][0]["energy"])
            assert each["mean"]["accuracy, top left"] == pytest.approx(
                np.mean([100 * r["scores"]["accuracy"][0] for r in each["runs"]])
            )
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("`python tools/multi_task.py --particles 2")
    assert all(name in table and name in printed for name in EVERY)
    assert "multi_fashion_mnist, bottom right" in table
    trial = content["data sets"]["multi_mnist"]["MGDA"]["tuning"][0]
    assert f"{trial['lr']:g}: {trial['validation_nll']:.3f}" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # The losers of the tuning never see a test image.
    runs = [read(path) for path in (tmp_path / "runs").iterdir()]
    chosen = {
        (dataset, method, each["runs"][0]["lr"], each["runs"][0]["energy"])
        for dataset, methods in content["data sets"].items()
        for method, each in methods.items()
    }
    for result in runs:
        assert bool(result.scores) == ((result.dataset, result.method, result.lr, result.energy) in chosen)
    # Again, from what is on disk.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    multi_task.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stamps


CELEBA = ["--preset", "celeba", "--size", "32", "--train", "16", "--epochs", "1", "--batch-size", "8", "--seeds", "1"]
CELEBA += ["--rates", "0.01", "--method", "MTSGD", "--energies", "posterior", "--device", "cpu"]


def small_trunk():
    """A stand-in whose ten gradients are not of 11 million numbers each."""
    layers = [nn.Conv2d(3, 8, 5, stride=4), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(392, 512))


@pytest.mark.parametrize(
    ("particles", "attributes"), [(5, FIRST_TEN), (2, ("Bald", "Bangs"))], ids=["ten tasks", "resnet18"]
)
def test_celeba_two_steps(root, tmp_path, monkeypatch, particles, attributes):
    if len(attributes) == 10:
        monkeypatch.setattr(ResNet18, "one", staticmethod(small_trunk))
    own = ["--data", str(root), "--out", str(tmp_path), "--particles", str(particles), "--attributes", *attributes]
    multi_task.main([*CELEBA, *own])
    content = json.loads((tmp_path / "results.json").read_text())["data sets"]["celeba"]
    (result,) = content["MTSGD"]["runs"]
    assert result["steps"] == 2
    assert result["diverged"] is None
    assert len(result["scores"]["ece"]) == len(result["weights"]) == len(attributes)
    table = (tmp_path / "table.md").read_text()
    assert f"celeba, {attributes[-1]}" in table
    assert "over 1 seed; calibration" in table


def test_single_tasks_are_networks_of_their_own(root, tmp_path):
    """Table 2's baseline: what one task's network learns depends on no other task."""
    common = [*CELEBA, "--data", str(root), "--particles", "2", "--method", "SingleTask", "LinearScalarisation"]
    alone, beside = ("--attributes", "Bald"), ("--attributes", "Bald", "Bangs")
    for name, chosen in (("alone", alone), ("beside", beside)):
        multi_task.main([*common, *chosen, "--out", str(tmp_path / name)])
    kept = {}
    for name in ("alone", "beside"):
        (path,) = (tmp_path / name / "particles").glob("celeba_SingleTask_*")
        kept[name] = load_file(path)
    assert {key.split(".")[1] for key in kept["beside"]} == {"0", "1"}
    assert len(kept["beside"]) == 2 * len(kept["alone"])
    for key, value in kept["alone"].items():
        assert torch.equal(kept["beside"][key], value), f"{key} was moved by the other task"
    content = json.loads((tmp_path / "beside" / "results.json").read_text())["data sets"]["celeba"]
    assert len(content["SingleTask"]["runs"][0]["scores"]["ece"]) == 2
    # Twice the trunks of the network that shares its own.
    (path,) = (tmp_path / "beside" / "particles").glob("celeba_LinearScalarisation_*")
    assert sum("trunk" in key for key in kept["beside"]) == 2 * sum("trunk" in key for key in load_file(path))


def test_constant_particles_are_counted():
    p = torch.rand(2, 3, 20, 10).softmax(-1)
    assert constant_particles(p) == 0
    p[:, 1] = p[:, 1, :1].clone()
    assert constant_particles(p) == 1
    p[0, 2] = p[0, 2, :1].clone()
    assert constant_particles(p) == 1, "the other task's head still sees the image"


def test_presets():
    cpu, paper, celeba = (options.parse(["--preset", name]) for name in ("cpu", "paper", "celeba"))
    assert cpu.settings.train < 20_000
    assert (paper.settings.epochs, paper.settings.batch_size, paper.rates) == (100, 256, (1e-3,))
    assert paper.settings.train is None
    assert len(paper.method) == 7
    assert celeba.dataset == ("celeba",)
    assert (celeba.settings.network, celeba.settings.train, len(celeba.settings.attributes)) == ("resnet18", 40_000, 10)
    assert "ParetoMTL" not in celeba.method
    assert celeba.method[0] == "SingleTask"
    changed = options.parse(["--preset", "cpu", "--epochs", "9", "--first-kernel", "9", "--size", "36"])
    assert (changed.settings.epochs, changed.settings.train) == (9, cpu.settings.train)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--train", "0"], "train must be at least 1, got 0"),
        (["--rates", "0.1", "-1"], "rates must be positive"),
        (["--momentum", "1"], r"momentum must lie in \[0, 1\)"),
        (["--warm-up", "1"], r"warm_up must lie in \[0, 1\)"),
        (["--halve-every", "0"], r"halve_every must lie in \(0, 1\]"),
        (["--kernel-on", "features"], "kernel_on=features needs target_weights=gradients"),
        (["--prior-precision", "1"], "prior_precision would be N times stronger with mean_loss"),
        (["--dataset", "celeba"], "ParetoMTL has preferences for two tasks"),
        (["--method", "MGDA", "mgda"], "method must hold names, each once"),
        (["--data", "/nowhere", "--preset", "celeba"], "celeba: no list_attr_celeba.txt"),
        (["--size", "12", "--dataset", "multi_mnist", "--train", "10"], "too small for a first kernel of 5"),
    ],
)
def test_bad_options(root, tmp_path, capsys, arguments, match):
    common = ["--out", str(tmp_path)] + ([] if "--data" in arguments else ["--data", str(root)])
    with pytest.raises(SystemExit) as caught:
        multi_task.main([*common, *arguments])
    said = " ".join(f"{caught.value.code} {capsys.readouterr().err}".replace("│", " ").split())
    assert re.search(match, said), said
    assert not list(Path(tmp_path).rglob("*.json"))


def test_every_option_is_explained_by_itself(capsys):
    with pytest.raises(SystemExit):
        multi_task.main(["--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("Data sets, in the order", "Validation images", "Number of particles", "Images in a minibatch"):
        assert text in said
