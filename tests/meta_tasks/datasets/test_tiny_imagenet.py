"""Tiny-ImageNet from a small folder in its layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meta_tasks.datasets import load

CLASSES = ("n02", "n01", "n03")


def write(root: Path) -> Path:
    """Training image i of class c has the colour (80·c, 10·i, 0), the validation ones (80·c, 200, 0)."""
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(CLASSES) + "\n")

    def image(path: Path, *colour: int) -> None:
        Image.fromarray(np.full((64, 64, 3), colour, np.uint8)).save(path, "JPEG", quality=100, subsampling=0)

    for c, name in enumerate(CLASSES):
        (folder / "train" / name / "images").mkdir(parents=True)
        for i in range(4):
            image(folder / "train" / name / "images" / f"{name}_{i}.JPEG", 80 * c, 10 * i, 0)
    lines = []
    for i, c in enumerate((2, 0, 1)):
        image(folder / "val" / "images" / f"val_{i}.JPEG", 80 * c, 200, 0)
        lines.append(f"val_{i}.JPEG\t{CLASSES[c]}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_images_and_labels_are_those_of_the_folder(tmp_path):
    write(tmp_path)
    data = load("tiny_imagenet", tmp_path, validation=0)
    assert (data.num_classes, data.input_shape, data.num_data) == (3, (3, 64, 64), 12)
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    colours = (data.train_x[:, :, 30, 30] * 255).round().int().tolist()
    expected = [[80 * c, 10 * i, 0] for c in range(3) for i in range(4)]
    assert np.abs(np.array(colours) - expected).max() <= 2  # JPEG
    assert data.test_y.tolist() == [2, 0, 1]
    assert np.abs((data.test_x[:, 0, 5, 5] * 255).numpy() - [160, 0, 80]).max() <= 2
    small = load("tiny_imagenet", tmp_path, size=16, grayscale=True, validation=3)
    assert small.train_x.shape == (9, 1, 16, 16)


def damage(folder: Path, kind: str) -> None:
    image = folder / "train" / "n01" / "images" / "n01_2.JPEG"
    if kind == "truncated":
        image.write_bytes(image.read_bytes()[:300])
    elif kind == "large":
        image.write_bytes(bytes(2**24 + 1))
    elif kind == "other size":
        Image.new("RGB", (32, 64)).save(image)
    elif kind == "giant":
        Image.new("1", (5000, 5000)).save(image, "PNG")
    elif kind == "class":
        (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    elif kind == "path":
        (folder / "val" / "val_annotations.txt").write_text("../../secret\tn01\t0\t0\t1\t1\n")
    elif kind == "names":
        (folder / "wnids.txt").write_text("n01\n../n02\n")


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("truncated", r"n01_2\.JPEG cannot be decoded as an image"),
        ("large", r"n01_2\.JPEG has 16777217 bytes, an image at most 16777216"),
        ("other size", r"n01_2\.JPEG has 64×32 pixels, the others 64×64"),
        ("giant", r"n01_2\.JPEG cannot be decoded as an image: it has 5000×5000 pixels"),
        ("class", "line 1, must be a file name and a class of wnids.txt, got 'val_0"),
        ("path", "line 1, must be a file name and a class of wnids.txt, got '../../secret"),
        ("names", r"wnids\.txt must hold two or more names of classes"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, kind, match):
    damage(write(tmp_path), kind)
    with pytest.raises(ValueError, match=match):
        load("tiny_imagenet", tmp_path)


@pytest.mark.parametrize("missing", ["val/images/val_1.JPEG", "val/val_annotations.txt"])
def test_a_missing_file_is_named(tmp_path, missing):
    (write(tmp_path) / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"{missing} is missing"):
        load("tiny_imagenet", tmp_path)


def test_a_class_without_images_is_named(tmp_path):
    for path in (write(tmp_path) / "train" / "n03" / "images").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="n03/images holds no JPEG files"):
        load("tiny_imagenet", tmp_path)
