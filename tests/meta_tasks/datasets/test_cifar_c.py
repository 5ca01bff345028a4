"""CIFAR-10-C's loader on small files in the published layout."""

import numpy as np
import pytest
import torch

from meta_tasks.datasets import find_corrupted, load_corrupted

COUNT = 7


def write(root, folder="CIFAR-10-C", classes=10, stem="fog"):
    """Image i of severity s is all 20·s + i in red, 1 in green, 2 in blue; its label is i modulo the classes."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    images = np.empty((5, COUNT, 32, 32, 3), np.uint8)
    images[...] = [0, 1, 2]
    images[..., 0] = (20 * np.arange(1, 6)[:, None] + np.arange(COUNT))[:, :, None, None]
    np.save(place / f"{stem}.npy", images.reshape(-1, 32, 32, 3))
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
    write(tmp_path, "CIFAR-100-C", 100, "contrast")
    data = load_corrupted("cifar100", "contrast", 2, tmp_path, size=16, grayscale=True)
    assert (data.test_x.shape, data.num_classes) == ((COUNT, 1, 16, 16), 100)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10-C/fog\.npy.*unpack CIFAR-10-C\.tar"):
        load_corrupted("cifar10", "fog", 1, tmp_path)
    (write(tmp_path) / "labels.npy").unlink()
    for call in (lambda: load_corrupted("cifar10", "fog", 1, tmp_path), lambda: find_corrupted("cifar10", tmp_path)):
        with pytest.raises(FileNotFoundError, match=r"CIFAR-10-C/.*\.npy"):
            call()


@pytest.mark.parametrize(
    ("file", "array"),
    [
        ("fog", np.zeros((34, 32, 32, 3), np.uint8)),
        ("fog", np.zeros((0, 32, 32, 3), np.uint8)),
        ("fog", np.zeros((35, 32, 32, 3), np.float32)),
        ("fog", np.zeros((35, 3, 32, 32), np.uint8)),
        ("fog", b"\x93NUMPY cut off"),
        ("labels", np.zeros(7, np.uint8)),
        ("labels", np.full(35, 10)),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, file, array):
    path = write(tmp_path) / f"{file}.npy"
    path.write_bytes(array) if isinstance(array, bytes) else np.save(path, array)
    with pytest.raises(ValueError, match=rf"{file}\.npy"):
        load_corrupted("cifar10", "fog", 1, tmp_path)
