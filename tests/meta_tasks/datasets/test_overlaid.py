"""Multi-MNIST and its like: geometry, labels, reproducibility, and that no source image is in two splits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_tasks import datasets
from meta_tasks.datasets import load_overlaid, scaled
from meta_tasks.datasets.overlaid import CANVAS, IMAGE, SHIFT, overlay
from tests.meta_tasks.datasets.test_torchvision_sets import write_idx

CLASSES = 10
COUNTS = (30, 20)  # training and test images of each source


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """MNIST and Fashion-MNIST whose image i has one pixel, top left, of level 1 + i; of Fashion-MNIST 128 + i."""
    folder = tmp_path_factory.mktemp("data")
    for name, base in (("MNIST", 1), ("FashionMNIST", 128)):
        start = base
        for prefix, count in zip(("train", "t10k"), COUNTS):
            levels = start + np.arange(count)
            images = np.zeros((count, IMAGE, IMAGE))
            images[:, 0, 0] = levels
            write_idx(folder / name / "raw" / f"{prefix}-images-idx3-ubyte", images)
            write_idx(folder / name / "raw" / f"{prefix}-labels-idx1-ubyte", levels % CLASSES)
            start += count
    return folder


def found(x):
    """Grey levels of the image top left and of the one bottom right, each (n,), and their places (n, 2, 2)."""
    levels, places = [], []
    for image in x[:, 0]:
        # The first one's pixel lies at most SHIFT from the top and the left, the second one's at least that.
        both = sorted(image.nonzero().tolist(), key=lambda place: max(place) > SHIFT or place == [SHIFT, SHIFT])
        assert len(both) == 2, "choose another seed: here one pixel covers the other"
        levels.append([int(image[row, column]) for row, column in both])
        places.append(both)
    return *torch.tensor(levels).T, torch.tensor(places)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(*[st.integers(0, SHIFT)] * 4), min_size=1, max_size=6))
def test_where_the_images_lie(shifts):
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(256, (2, len(shifts), IMAGE, IMAGE), generator=generator).to(torch.uint8)
    made = overlay(first, second, torch.tensor(shifts))
    for image, a, b, (down, right, up, left) in zip(made, first, second, shifts, strict=True):
        canvas_a, canvas_b = torch.zeros(2, CANVAS, CANVAS, dtype=torch.uint8)
        canvas_a[down : down + IMAGE, right : right + IMAGE] = a
        top, start = CANVAS - IMAGE - up, CANVAS - IMAGE - left
        canvas_b[top : top + IMAGE, start : start + IMAGE] = b
        assert torch.equal(image, torch.maximum(canvas_a, canvas_b))


@pytest.mark.parametrize(
    ("name", "bases"), [("multi_mnist", (1, 1)), ("multi_fashion", (128, 128)), ("multi_fashion_mnist", (128, 1))]
)
def test_images_labels_and_splits(root, name, bases):
    data = load_overlaid(name, root, size=CANVAS, validation=10, seed=1, download=False)
    assert data.input_shape == (1, CANVAS, CANVAS)
    assert [len(y) for y in (data.train_y, data.val_y, data.test_y)] == [40, 20, 40]
    seen = {}
    for split in ("train", "val", "test"):
        x, y = getattr(data, f"{split}_x"), getattr(data, f"{split}_y")
        for k, (level, base) in enumerate(zip(found(x), bases)):
            assert torch.equal(level % CLASSES, y[:, k])
            index = level - base
            assert ((index < COUNTS[0]) if split != "test" else (index >= COUNTS[0])).all()
            assert (torch.bincount(index, minlength=50)[index] == 2).all(), "every image lies in two pairs"
            seen.setdefault(k, []).append(set(level.tolist()))
    for train, val, test in seen.values():
        assert len(train) == 20
        assert len(val) == 10
        assert not train & val
        assert not (train | val) & test
    if bases[0] == bases[1]:
        assert not seen[0][0] & seen[1][1], "a validation image of one task is a training image of the other"
    places = torch.cat([found(getattr(data, f"{split}_x"))[2] for split in ("train", "val", "test")])
    for coordinate in (0, 1):
        assert set(places[:, 0, coordinate].tolist()) == set(range(SHIFT + 1))
        assert set(places[:, 1, coordinate].tolist()) == set(range(SHIFT, 2 * SHIFT + 1))


def test_the_seed_moves_everything_but_the_test_images(root):
    first, again, reseeded = (
        load_overlaid("multi_fashion_mnist", root, validation=10, seed=seed, download=False) for seed in (0, 0, 1)
    )
    for split in ("train", "val", "test"):
        for array in "xy":
            a, b = getattr(first, f"{split}_{array}"), getattr(again, f"{split}_{array}")
            assert torch.equal(a, b)
            changed = getattr(reseeded, f"{split}_{array}")
            assert torch.equal(a, changed) == (split == "test")
    assert first.input_shape == (1, 28, 28)
    x = scaled(first.train_x)
    assert x.dtype == torch.float32
    assert 0 <= x.min() < x.max() <= 1


def test_of_a_cluttered_image_the_one_top_left_is_named(root):
    data = datasets.load("cluttered_fashion", root, download=False)
    assert (data.input_shape, data.num_classes) == ((1, 36, 36), 10)
    assert [len(y) for y in (data.train_y, data.val_y, data.test_y)] == [27, 3, 20]
    firsts = []
    for split in ("train", "val", "test"):
        first, second, _ = found((getattr(data, f"{split}_x") * 255).round().to(torch.uint8))
        assert torch.equal(first % CLASSES, getattr(data, f"{split}_y"))
        assert not torch.equal(second % CLASSES, getattr(data, f"{split}_y"))
        firsts.append(set(first.tolist()) | set(second.tolist()))
    assert not firsts[0] & firsts[1]
    assert not (firsts[0] | firsts[1]) & firsts[2]


def test_limits_take_some_of_the_pairs(root):
    limits = {"limit": 15, "limit_validation": 4, "limit_test": 7}
    data = load_overlaid("multi_mnist", root, size=CANVAS, validation=10, download=False, **limits)
    assert [len(y) for y in (data.train_y, data.val_y, data.test_y)] == [15, 4, 7]
    assert torch.equal(torch.stack(found(data.test_x)[:2], 1) % CLASSES, data.test_y)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"name": "multi_kmnist"}, ValueError, "name"),
        ({"size": 0}, ValueError, "size"),
        ({"partners": 0}, ValueError, "partners"),
        ({"validation": 30}, ValueError, "validation"),
        ({"validation": 0.1}, TypeError, "validation"),
        ({"limit": True}, TypeError, "limit"),
        ({"limit_test": 41}, ValueError, "limit_test=41"),
        ({"root": "/nowhere"}, FileNotFoundError, "train-images-idx3-ubyte"),
    ],
)
def test_bad_arguments(root, options, error, named):
    with pytest.raises(error, match=named):
        load_overlaid(**{"name": "multi_mnist", "root": root, "validation": 10, "download": False, **options})
