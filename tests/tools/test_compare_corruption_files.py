"""tools/compare.py --corruption-files: finished runs scored on small files in the layout of CIFAR-10-C."""

import compare
import numpy as np
import pytest
import torch
from experiments.compare.corruptions import CorruptedImages
from experiments.compare.options import parse_compare
from experiments.harness.run_store import RunStore
from experiments.harness.runs.runner import Runs

from learned_samplers import metrics
from meta_tasks.datasets import CORRUPTIONS, load_corrupted
from meta_tasks.datasets.corruptions import RECREATED
from tests.tools.compare_cases import SMALL, numbers, read

TESTS = 20
NETWORK = ["--dataset", "cifar10", "--model", "mlp", "--hidden", "8", "--size", "8", "--batch-size", "32"]
RUN = [*NETWORK, *SMALL, "--validation", "40", "--num-samples", "4", "--sampler", "SGHMC", "--budgets", "20"]


@pytest.fixture
def files(tmp_path):
    """CIFAR-10 of random images, and its corruptions: other random images, with the same labels."""
    numbers, root = np.random.default_rng(0), tmp_path / "data"
    sets = {"train": 240, "test": TESTS}
    images = {f"{name}_images": numbers.integers(0, 256, (n, 32, 32, 3), np.uint8) for name, n in sets.items()}
    labels = {f"{name}_labels": numbers.integers(0, 10, n) for name, n in sets.items()}
    root.mkdir()
    np.savez(root / "cifar10.npz", **images, **labels)
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    for name in CORRUPTIONS:
        np.save(folder / f"{name}.npy", numbers.integers(0, 256, (5 * TESTS, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.tile(labels["test_labels"], 5).astype(np.uint8))
    return root


def test_the_files_have_the_corruptions_that_are_made_here():
    assert tuple(RECREATED) == CORRUPTIONS


def test_runs_are_scored_on_the_published_images(files, tmp_path):
    out = tmp_path / "out"
    arguments = [*RUN, "--seeds", "1", "--data", str(files), "--out", str(out)]
    compare.main([*arguments, "--corruptions", "13"])
    file = out / numbers(out)["20"]["methods"]["SGHMC"]["runs"][0]["file"]
    made, before = read(file), (out / "table.md").read_text()
    assert made.corruptions["source"] == "recreated"
    compare.main([*arguments, "--corruptions", "13", "--corruption-files"])
    result = read(file)
    assert result.seconds == made.seconds, "trained once"
    assert (result.corruptions["images"], result.corruptions["source"]) == (13, "published")
    options = parse_compare(arguments)
    data, _ = options.load()
    samples = Runs(data, {}, RunStore(out / "steps_20")).samples(result, options.settings)
    chosen = CorruptedImages(data, 13)
    places = [int((data.test_x == image).flatten(1).all(1).nonzero()[0, 0]) for image in chosen.images]
    for name in ("fog", "jpeg_compression"):
        for severity in (1, 5):
            found = load_corrupted("cifar10", name, severity, files, size=8)
            assert torch.equal(found.test_y[places], chosen.labels)
            nll = metrics.nll(samples.predict(found.test_x[places]), chosen.labels)
            assert result.corruptions["scores"][name]["nll"][severity - 1] == pytest.approx(nll, rel=1e-4)
    table = (out / "table.md").read_text()
    assert "re-creation" in before
    assert "re-creation" not in table
    assert "the published files, of 13 test images" in table
    # Asked for without them, the corruptions made here are scored anew.
    compare.main([*arguments, "--corruptions", "13"])
    assert read(file).corruptions == made.corruptions


def test_images_of_another_order_are_noticed(files):
    labels = np.load(files / "CIFAR-10-C" / "labels.npy")
    np.save(files / "CIFAR-10-C" / "labels.npy", (labels + 1) % 10)
    data, _ = parse_compare([*RUN, "--data", str(files)]).load()
    images = CorruptedImages(data, 5, {"name": "cifar10", "root": str(files), "size": 8})
    with pytest.raises(ValueError, match="cifar10 under fog have other labels than its test images"):
        images.under("fog")
