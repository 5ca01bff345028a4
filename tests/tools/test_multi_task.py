"""tools/multi_task.py: choices by validation alone, and the command end to end."""

from __future__ import annotations

import json
import shlex

import multi_task
import numpy as np
import pytest
from experiments.multi_task import experiment
from experiments.multi_task.methods import METHODS

#: One that repels, whose energy is tuned too, and one that does not; `test_runs.py` has every method.
EVERY = ("LinearScalarisation", "MTSGD")


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
            for suffix, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
                header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
                (raw / f"{prefix}-{suffix}-ubyte").write_bytes(header + array.tobytes())
    return folder


@pytest.fixture(autouse=True)
def _few_held_out(monkeypatch):
    """The sources here have too few images for 6,000 of them to be held out."""
    plain = experiment.load_overlaid
    monkeypatch.setattr(experiment, "load_overlaid", lambda *args, **more: plain(*args, validation=50, **more))


# ---------------------------------------------------------------- the command

TINY = shlex.split("--particles 2 --epochs 1 --batch-size 25 --seeds 2 --rates 0.02 0.1 --extensions 0")
TINY += [*shlex.split("--train 100 --validation 40 --test 30 --device cpu"), "--method", *EVERY]


def test_the_command_on_two_data_sets(root, tmp_path, capsys):
    arguments = [*TINY, "--dataset", "multi_mnist", "multi_fashion_mnist", "--data", str(root), "--out", str(tmp_path)]
    multi_task.main(arguments)
    printed = capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert list(content["runs"]) == ["multi_mnist", "multi_fashion_mnist"]
    table = (tmp_path / "table.md").read_text()
    for problem, methods in content["runs"].items():
        assert tuple(methods) == EVERY
        for name in methods:
            of_it = [t for t in content["tuning"] if (t["problem"], t["method"]) == (problem, name)]
            assert len(of_it) == (4 if METHODS[name].repels else 2)
            best = min(of_it, key=lambda trial: trial["score"])
            chosen = next(c for c in content["chosen"] if (c["problem"], c["method"]) == (problem, name))
            assert (best["lr"], best["energy"]) == (chosen["lr"], chosen["energy"])
            assert f"lr {best['lr']:g}, {best['energy']}: {best['score']:.4f}" in table
    row = next(line for line in table.splitlines() if line.startswith("| multi_mnist, top left"))
    values = [100 * run["accuracy top left"] for run in content["runs"]["multi_mnist"][EVERY[0]]]
    assert row.split("|")[2].strip() == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert table.startswith("`python tools/multi_task.py --particles 2")
    assert all(name in table and name in printed for name in EVERY)
    assert "multi_fashion_mnist, bottom right" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    # Runs that tune never see a test image.
    for path in (tmp_path / "runs").iterdir():
        record = json.loads(path.read_text())
        assert ("accuracy_of_one" in record["result"]) == (not record["made_of"]["settings"]["tuning"])
    # Again, from what is on disk.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    multi_task.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stamps
