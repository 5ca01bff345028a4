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


IMAGE, LIST = "train/n01/images/n01_2.JPEG", "val/val_annotations.txt"


def no_class(folder):
    for path in (folder / "train" / "n03" / "images").iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (lambda f: (f / IMAGE).write_bytes((f / IMAGE).read_bytes()[:300]), ValueError, "n01_2.* cannot be decoded"),
        (lambda f: (f / IMAGE).write_bytes(bytes(2**24 + 1)), ValueError, r"n01_2\.JPEG has 16777217 bytes"),
        (lambda f: Image.new("RGB", (32, 64)).save(f / IMAGE), ValueError, r"n01_2\.JPEG has 64×32 pixels, the others"),
        (lambda f: Image.new("1", (5000, 5000)).save(f / IMAGE, "PNG"), ValueError, r"n01_2\.JPEG .* 5000×5000 pixels"),
        (lambda f: (f / LIST).write_text("val_0.JPEG\tn99\t0\t0\t1\t1\n"), ValueError, "line 1, must be .*'val_0"),
        (lambda f: (f / LIST).write_text("../../secret\tn01\t0\t0\t1\t1\n"), ValueError, "line 1, must be .*secret"),
        (lambda f: (f / LIST).write_text(""), ValueError, "is empty"),
        (lambda f: (f / "wnids.txt").write_text("n01\n../n02\n"), ValueError, r"wnids\.txt must hold"),
        (lambda f: (f / LIST).unlink(), FileNotFoundError, f"{LIST} is missing"),
        (lambda f: (f / "val/images/val_1.JPEG").unlink(), FileNotFoundError, "val_1.JPEG is missing"),
        (no_class, FileNotFoundError, "n03/images holds no JPEG files"),
    ],
)
def test_missing_and_damaged_files_are_refused_by_name(tmp_path, damage, error, match):
    damage(write(tmp_path))
    with pytest.raises(error, match=match):
        load("tiny_imagenet", tmp_path)
