"""tools/multi_task.py: choices by validation alone, and the command end to end."""

from __future__ import annotations

import json

import multi_task
import numpy as np
import pytest
import torch
from experiments.multi_task import comparison
from experiments.multi_task.methods import METHODS
from experiments.multi_task.runner import Result

EVERY = tuple(name for name, method in METHODS.items() if not method.separate)


@pytest.fixture(autouse=True)
def _restore_threads():
    """The script sets torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Sources in MNIST's layout: a class is a bright bar at its own height."""
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
    return folder


@pytest.fixture(autouse=True)
def _few_held_out(monkeypatch):
    """The sources here have too few images for 6,000 of them to be held out."""
    plain = comparison.load_overlaid
    monkeypatch.setattr(comparison, "load_overlaid", lambda *args, **more: plain(*args, validation=50, **more))


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
            assert each["scores"]["accuracy, top left"] == [100 * r["scores"]["accuracy"][0] for r in each["runs"]]
    table = (tmp_path / "table.md").read_text()
    assert table.startswith("`python tools/multi_task.py --particles 2")
    assert all(name in table and name in printed for name in EVERY)
    assert "multi_fashion_mnist, bottom right" in table
    trial = content["data sets"]["multi_mnist"]["MGDA"]["tuning"][0]
    assert f"lr {trial['lr']:g}, {trial['energy']}: {trial['validation_nll']:.4f}" in table
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
