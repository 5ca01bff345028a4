"""`load`, `match` and `out_of_distribution`, on embedded data and on small files made in the format of each source."""

import os
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_tasks import datasets
from meta_tasks.datasets import ImageData, load, match
from meta_tasks.datasets.images import RawSplits
from meta_tasks.datasets.loading import READERS

SPLITS = ("train", "val", "test")


def test_digits_are_scikit_learns_scaled_to_one():
    data = load("digits")
    assert data.input_shape == (1, 8, 8)
    assert data.num_classes == 10
    assert (len(data.train_y), len(data.val_y), len(data.test_y)) == (808, 90, 899)
    assert data.num_data == 808
    everything = torch.cat([data.train_x, data.val_x, data.test_x])
    assert set((everything * 16).unique().tolist()) == set(range(17))
    assert len(everything.flatten(1).unique(dim=0)) == 1797, "a digit lies in two splits, or is missing"


def test_the_seed_moves_validation_but_never_the_test_split():
    first, again, other = load("digits"), load("digits"), load("digits", seed=1)
    assert torch.equal(first.train_x, again.train_x)
    assert torch.equal(first.val_x, again.val_x)
    assert torch.equal(first.test_x, other.test_x)
    assert not torch.equal(first.val_x, other.val_x)


def test_a_new_division_has_the_same_images_and_numbers_and_moves_test_images_too():
    data = load("digits")
    first, again, other = (datasets.divide_anew(data, seed) for seed in (1, 1, 2))
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(first, f"{split}_x"), getattr(again, f"{split}_x"))
        assert len(getattr(first, f"{split}_y")) == len(getattr(data, f"{split}_y"))
    assert not torch.equal(first.test_x, other.test_x)
    labelled = [
        torch.cat([torch.cat([getattr(d, f"{s}_x").flatten(1), getattr(d, f"{s}_y")[:, None]], 1) for s in SPLITS])
        for d in (data, first)
    ]
    before, after = (each.unique(dim=0) for each in labelled)
    assert torch.equal(before, after), "an image lost its label, or was lost itself"


@settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(20, 440), st.integers(20, 440), st.integers(0, 5))
def test_limit_and_validation_give_the_asked_numbers_with_classes_in_proportion(limit, validation, seed):
    data = load("digits", limit=limit, validation=validation, seed=seed)
    assert (len(data.train_y), len(data.val_y)) == (limit, validation)
    for y in (data.train_y, data.val_y):
        share = torch.bincount(y, minlength=10) / len(y)
        assert (share - 0.1).abs().max() < 0.02 + 1 / len(y)
    pixels = torch.cat([data.train_x, data.val_x]).flatten(1)
    assert len(pixels.unique(dim=0)) == limit + validation, "a training image is also a validation image"


def test_validation_as_a_fraction_and_none_at_all():
    assert len(load("digits", validation=0.25).val_y) == 224
    assert len(load("digits", validation=0).val_y) == 0
    assert load("digits", validation=0).num_data == 898


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"limit": 5}, ValueError, "limit=5"),
        ({"limit": 5000}, ValueError, "limit=5000 exceeds the 808"),
        ({"limit": 0}, ValueError, "limit must be at least 1, got 0"),
        ({"limit": 10.5}, TypeError, "limit must be an integer, got 10.5"),
        ({"size": -1}, ValueError, "size must be at least 1, got -1"),
        ({"size": True}, TypeError, "size must be an integer, got True"),
        ({"validation": 1.0}, ValueError, r"validation must be a fraction in \[0, 1\).*got 1.0"),
        ({"validation": -3}, ValueError, "got -3"),
        ({"validation": 3}, ValueError, "validation=3"),
        ({"validation": "0.1"}, TypeError, "validation must be a fraction.*got '0.1'"),
    ],
)
def test_bad_arguments_are_named_with_their_value(options, error, match):
    with pytest.raises(error, match=match):
        load("digits", **options)


def test_unknown_names():
    with pytest.raises(ValueError, match="name='digit' is unknown; choose one of digits, mnist"):
        load("digit")
    with pytest.raises(TypeError, match="name must be a string, got 3"):
        load(3)
    with pytest.raises(ValueError, match="unknown"):
        datasets.out_of_distribution("digit")


def test_size_resizes_without_leaving_the_unit_interval():
    small, large = load("digits", size=4), load("digits", size=16)
    assert small.input_shape == (1, 4, 4)
    assert large.input_shape == (1, 16, 16)
    assert 0 <= small.test_x.min() <= small.test_x.max() <= 1
    # With antialiasing the result is nearer to the mean of 2×2 blocks than without, where a stripe can vanish.
    stripes = torch.zeros(1, 1, 16, 16)
    stripes[..., ::4] = 1
    shrunk = match(
        make_image_data(**dict.fromkeys(("train_x", "val_x", "test_x"), stripes.repeat(4, 3, 1, 1))), (1, 4, 4)
    )
    assert (shrunk.test_x - 0.25).abs().max() < 0.12


@pytest.mark.parametrize(("size", "grayscale", "shape"), [(None, False, (3, 32, 32)), (8, True, (1, 8, 8))])
def test_photos_fill_the_contrast_range(size, grayscale, shape):
    data = load("photos", size=size, grayscale=grayscale)
    assert data.input_shape == shape
    assert len(data.test_y) == 2000
    assert data.num_data == len(data.val_y) == 0
    assert torch.allclose(data.test_x.flatten(1).amin(1), torch.zeros(2000))
    assert torch.allclose(data.test_x.flatten(1).amax(1), torch.ones(2000))
    assert torch.equal(data.test_x, load("photos", size=size, grayscale=grayscale, seed=7).test_x)


def test_photos_larger_than_the_photographs_are_refused():
    with pytest.raises(ValueError, match="size=500 is larger than the photographs"):
        load("photos", size=500)


def test_out_of_distribution_partners():
    assert datasets.out_of_distribution("digits") == "photos"
    assert datasets.out_of_distribution("mnist") == "fashion_mnist"
    assert datasets.out_of_distribution("fashion_mnist") == "mnist"
    assert datasets.out_of_distribution("npz:some.npz") == "photos"


@settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.sampled_from([1, 3]), st.integers(2, 20), st.integers(2, 20))
def test_match_fits_images_to_another_shape(channels, height, width):
    for data in (load("digits", limit=20, validation=20), SMALL_COLOUR):
        fitted = match(data, (channels, height, width))
        assert fitted.input_shape == (channels, height, width)
        assert torch.equal(fitted.test_y, data.test_y)
        assert 0 <= fitted.test_x.min() <= fitted.test_x.max() <= 1


def test_match_keeps_what_already_fits_and_repeats_grey():
    digits = load("digits")
    assert torch.equal(match(digits, digits).test_x, digits.test_x)
    colour = match(digits, (3, 8, 8)).test_x
    assert torch.equal(colour, digits.test_x.expand(-1, 3, -1, -1))
    assert torch.allclose(match(match(digits, (3, 8, 8)), digits).test_x, digits.test_x, atol=1e-3)
    with pytest.raises(ValueError, match="like must have 1 or 3 channels, got 2"):
        match(digits, (2, 8, 8))


def make_image_data(**changes):
    x, y = torch.rand(4, 3, 6, 6), torch.tensor([0, 1, 2, 1])
    splits = {f"{split}_{kind}": value for split in ("train", "val", "test") for kind, value in (("x", x), ("y", y))}
    return ImageData("made", 3, **{**splits, **changes})


SMALL_COLOUR = make_image_data()


def test_image_data_checks_itself():
    with pytest.raises(TypeError, match="train_x must be"):
        make_image_data(train_x=torch.zeros(4, 3, 6, 6, dtype=torch.uint8))
    with pytest.raises(ValueError, match="val_x must be"):
        make_image_data(val_x=torch.zeros(4, 1, 6, 6))
    with pytest.raises(ValueError, match="val_y"):
        make_image_data(val_y=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"test_y must lie in \[0, num_classes=3\), got labels from 0 to 3"):
        make_image_data(test_y=torch.tensor([0, 1, 2, 3]))


def test_to_keeps_every_split_in_its_place():
    data = load("digits")
    moved = data.to("cpu")
    for field in ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y"):
        assert torch.equal(getattr(moved, field), getattr(data, field))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_to_moves_every_tensor():
    moved = SMALL_COLOUR.to("cuda")
    splits = [getattr(moved, f"{split}_{kind}") for split in ("train", "val", "test") for kind in "xy"]
    assert all(tensor.is_cuda for tensor in splits)


# --- missing files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "how"),
    [
        ("kmnist", "KMNIST/raw", "torchvision.datasets.KMNIST"),
        ("emnist", "emnist-mnist-train-images-idx3-ubyte", "torchvision.datasets.EMNIST"),
        ("cifar10", "cifar-10-batches-py", "torchvision.datasets.CIFAR10"),
        ("cifar100", "cifar100.npz", "torchvision.datasets.CIFAR100"),
        ("svhn", "test_32x32.mat", "torchvision.datasets.SVHN"),
        ("bloodmnist", "medmnist/bloodmnist.npz", "medmnist.BloodMNIST"),
        ("notmnist", "t10k-images-idx3-ubyte", "https://github.com/davidflanagan"),
        ("tiny_imagenet", "wnids.txt", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    ],
)
@pytest.mark.parametrize("download", [True, False])
def test_a_missing_file_is_named_with_the_way_to_get_it(tmp_path, monkeypatch, name, file, how, download):
    def offline(*args, **kwargs):
        raise URLError("no network")

    for target in ("torchvision.datasets.mnist", "torchvision.datasets.cifar"):
        monkeypatch.setattr(f"{target}.download_and_extract_archive", offline)
    monkeypatch.setattr("torchvision.datasets.svhn.download_url", offline)
    monkeypatch.setattr("torchvision.datasets.utils.download_url", offline)
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path, download=download)
    message = str(caught.value)
    for part in (name, str(tmp_path), file, how, "LEARNED_SAMPLERS_DATA", "--data"):
        assert part in message
    assert ("downloading failed" in message) == (download and name not in ("notmnist", "tiny_imagenet"))


def test_the_default_root_is_in_the_home_cache(monkeypatch):
    monkeypatch.delenv("LEARNED_SAMPLERS_DATA", raising=False)
    assert datasets.data_root() == Path("~/.cache/learned_samplers").expanduser()
    assert datasets.data_root("~/elsewhere") == Path("~/elsewhere").expanduser()
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", "/from/environment")
    assert datasets.data_root() == Path("/from/environment")
    assert datasets.data_root("/argument") == Path("/argument")


# --- the real files, where they are -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder", "shape", "mean"),
    [
        ("mnist", "MNIST", (1, 28, 28), 0.1325),
        ("fashion_mnist", "FashionMNIST", (1, 28, 28), 0.2868),
        ("breastmnist", "medmnist/breastmnist.npz", (1, 28, 28), 0.3362),
        ("retinamnist", "medmnist/retinamnist.npz", (3, 28, 28), 0.2563),
        ("notmnist", "notmnist", (1, 28, 28), 0.4266),
    ],
)
def test_real_files(name, folder, shape, mean):
    root = os.environ.get("LEARNED_SAMPLERS_DATA")
    if not root or not (Path(root) / folder).exists():
        pytest.skip(f"no {folder} under LEARNED_SAMPLERS_DATA={root}")
    data = load(name, download=False)
    assert data.input_shape == shape
    assert data.test_x.mean().item() == pytest.approx(mean, abs=1e-3)


def test_a_data_set_needs_a_reader_and_its_entry_alone(monkeypatch):
    def read(request):
        assert (request.name, request.size, request.download) == ("stripes", 4, False)
        x, y = torch.arange(20 * 64).view(20, 1, 8, 8) % 256, torch.arange(20) % 2
        return RawSplits(2, 255.0, train=(x, y), test=(x, y))

    with pytest.raises(ValueError, match="name='stripes' is unknown"):
        load("stripes")
    monkeypatch.setitem(READERS, "stripes", read)
    data = load("stripes", size=4, download=False)
    assert data.input_shape == (1, 4, 4)
    assert len(data.val_y) == 2
    assert "stripes" in datasets.names()
    assert datasets.out_of_distribution("stripes") == "photos"


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "learned-samplers\[meta\]"'):
        load("digits")
