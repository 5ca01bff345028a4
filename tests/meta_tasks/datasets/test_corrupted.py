"""CIFAR-10-C's loader on small files in the published layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from meta_tasks.datasets import CORRUPTIONS, load_corrupted
from meta_tasks.datasets.cifar_c import EXTRA_CORRUPTIONS

COUNT = 7


def write(root, folder="CIFAR-10-C", classes=10, stem="fog"):
    """Image i of severity s is all 20·s + i in red, 1 in green, 2 in blue; its label is i modulo the classes."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    images = np.zeros((5 * COUNT, 32, 32, 3), np.uint8)
    for severity in range(1, 6):
        for i in range(COUNT):
            images[(severity - 1) * COUNT + i] = (20 * severity + i, 1, 2)
    np.save(place / f"{stem}.npy", images)
    np.save(place / "labels.npy", np.tile(np.arange(COUNT) % classes, 5).astype(np.uint8))
    return place


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_the_images_of_one_severity_with_their_labels(tmp_path, severity):
    write(tmp_path)
    data = load_corrupted("cifar10", "fog", severity, tmp_path)
    assert data.name == f"cifar10 with fog {severity}"
    assert (data.test_x.shape, data.num_classes, len(data.train_y), len(data.val_y)) == ((COUNT, 3, 32, 32), 10, 0, 0)
    expected = (20 * severity + torch.arange(COUNT)) / 255
    torch.testing.assert_close(data.test_x[:, 0].mean((1, 2)), expected)
    torch.testing.assert_close(data.test_x[:, 1:].mean((0, 2, 3)), torch.tensor([1.0, 2.0]) / 255)
    assert torch.equal(data.test_y, torch.arange(COUNT))


def test_sizes_grey_and_the_hundred_classes(tmp_path):
    write(tmp_path, "CIFAR-100-C", 100, "saturate")
    data = load_corrupted("cifar100", "saturate", 2, tmp_path, size=16, grayscale=True)
    assert (data.test_x.shape, data.num_classes) == ((COUNT, 1, 16, 16), 100)


def test_the_benchmark_has_fifteen_corruptions():
    assert len(set(CORRUPTIONS)) == 15
    assert not set(CORRUPTIONS) & set(EXTRA_CORRUPTIONS)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10-C/fog\.npy.*unpack CIFAR-10-C\.tar"):
        load_corrupted("cifar10", "fog", 1, tmp_path)
    (write(tmp_path) / "labels.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10-C/labels\.npy"):
        load_corrupted("cifar10", "fog", 1, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("cifar11", "fog", 1), "name"),
        (("cifar10", "mist", 1), "corruption"),
        (("cifar10", "fog", 6), "severity"),
        (("cifar10", "fog", 0), "severity"),
    ],
)
def test_bad_arguments(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=match):
        load_corrupted(*arguments, tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "match"),
    [
        ("fog", np.zeros((34, 32, 32, 3), np.uint8), r"\(5·n, 32, 32, 3\)"),
        ("fog", np.zeros((0, 32, 32, 3), np.uint8), r"\(5·n, 32, 32, 3\)"),
        ("fog", np.zeros((35, 32, 32, 3), np.float32), "uint8"),
        ("fog", np.zeros((35, 3, 32, 32), np.uint8), "got uint8 of shape"),
        ("labels", np.zeros(7, np.uint8), "must hold 35 integers"),
        ("labels", np.full(35, 10), r"must lie in \[0, 10\)"),
    ],
)
def test_damaged_files_are_refused(tmp_path, file, array, match):
    np.save(write(tmp_path) / f"{file}.npy", array)
    with pytest.raises(ValueError, match=match):
        load_corrupted("cifar10", "fog", 1, tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = write(tmp_path) / "fog.npy"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="cannot be read"):
        load_corrupted("cifar10", "fog", 1, tmp_path)
