"""`load`, `match` and the rest by name, on embedded data; missing files, and the real ones where they are."""

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
from meta_tasks.datasets.images import SPLITS, RawSplits
from meta_tasks.datasets.loading import READERS


def make_image_data(**changes):
    x, y = torch.rand(4, 3, 6, 6), torch.tensor([0, 1, 2, 1])
    splits = {f"{split}_{axis}": value for split in SPLITS for axis, value in (("x", x), ("y", y))}
    return ImageData("made", 3, **{**splits, **changes})


SMALL_COLOUR = make_image_data()


def test_digits_are_scikit_learns_scaled_to_one_and_the_seed_moves_validation_alone():
    data = load("digits")
    assert (data.input_shape, data.num_classes, data.num_data) == ((1, 8, 8), 10, 808)
    assert [len(data.split(name)[1]) for name in SPLITS] == [808, 90, 899]
    everything = torch.cat([data.split(name)[0] for name in SPLITS])
    assert set((everything * 16).unique().tolist()) == set(range(17))
    assert len(everything.flatten(1).unique(dim=0)) == 1797, "a digit lies in two splits, or is missing"
    assert all(map(torch.equal, data.split("val"), load("digits").split("val")))
    reseeded = load("digits", seed=1)
    assert torch.equal(data.test_x, reseeded.test_x)
    assert not torch.equal(data.val_x, reseeded.val_x)


@settings(deadline=None, max_examples=15)  # a deadline fails on a busy machine
@given(st.integers(20, 440), st.integers(20, 440), st.integers(0, 5))
def test_limit_and_validation_give_the_asked_numbers_with_classes_in_proportion(limit, validation, seed):
    data = load("digits", limit=limit, validation=validation, seed=seed)
    assert (len(data.train_y), len(data.val_y)) == (limit, validation)
    for y in (data.train_y, data.val_y):
        share = torch.bincount(y, minlength=10) / len(y)
        assert (share - 0.1).abs().max() < 0.02 + 1 / len(y)
    pixels = torch.cat([data.train_x, data.val_x]).flatten(1)
    assert len(pixels.unique(dim=0)) == limit + validation, "a training image is also a validation image"


@pytest.mark.parametrize(("validation", "held"), [(0.25, 224), (0, 0)])
def test_validation_as_a_fraction_and_none_at_all(validation, held):
    data = load("digits", validation=validation)
    assert (len(data.val_y), data.num_data) == (held, 898 - held)


def test_size_resizes_without_leaving_the_unit_interval():
    for side in (4, 16):
        data = load("digits", size=side)
        assert data.input_shape == (1, side, side)
        assert 0 <= data.test_x.min() <= data.test_x.max() <= 1
    # With antialiasing the result is nearer to the mean of 2×2 blocks than without, where a stripe can vanish.
    stripes = torch.zeros(1, 1, 16, 16)
    stripes[..., ::4] = 1
    images = dict.fromkeys(("train_x", "val_x", "test_x"), stripes.repeat(4, 3, 1, 1))
    assert (match(make_image_data(**images), (1, 4, 4)).test_x - 0.25).abs().max() < 0.12


@pytest.mark.parametrize(("size", "grayscale", "shape"), [(None, False, (3, 32, 32)), (8, True, (1, 8, 8))])
def test_photos_fill_the_contrast_range(size, grayscale, shape):
    data = load("photos", size=size, grayscale=grayscale)
    assert data.input_shape == shape
    assert [len(data.split(name)[1]) for name in SPLITS] == [0, 0, 2000]
    assert torch.allclose(data.test_x.flatten(1).amin(1), torch.zeros(2000))
    assert torch.allclose(data.test_x.flatten(1).amax(1), torch.ones(2000))
    assert torch.equal(data.test_x, load("photos", size=size, grayscale=grayscale, seed=7).test_x)


def test_partners_are_known_without_files():
    partners = {"digits": "photos", "mnist": "fashion_mnist", "fashion_mnist": "mnist", "npz:some.npz": "photos"}
    assert {name: datasets.out_of_distribution(name) for name in partners} == partners


@settings(deadline=None, max_examples=15)
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
    assert torch.equal(match(digits, (3, 8, 8)).test_x, digits.test_x.expand(-1, 3, -1, -1))
    assert torch.allclose(match(match(digits, (3, 8, 8)), digits).test_x, digits.test_x, atol=1e-3)


def test_kept_labels_are_renumbered_in_their_order():
    kept = datasets.keep_labels(SMALL_COLOUR, (2, 1))
    assert (kept.num_classes, kept.test_y.tolist()) == (2, [1, 0, 1])
    assert torch.equal(kept.test_x, SMALL_COLOUR.test_x[1:])


def test_a_data_set_needs_a_reader_and_its_entry_alone(monkeypatch):
    def read(request):
        assert (request.name, request.size, request.download) == ("stripes", 4, False)
        x, y = torch.arange(20 * 64).view(20, 1, 8, 8) % 256, torch.arange(20) % 2
        return RawSplits(2, 255.0, train=(x, y), test=(x, y))

    with pytest.raises(ValueError, match="stripes"):
        load("stripes")
    monkeypatch.setitem(READERS, "stripes", read)
    data = load("stripes", size=4, download=False)
    assert (data.input_shape, len(data.val_y)) == ((1, 4, 4), 2)
    assert "stripes" in datasets.names()
    assert datasets.out_of_distribution("stripes") == "photos"


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[meta\]'"):
        load("digits")


# --- files --------------------------------------------------------------------------------------------------------


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
    assert ("downloading failed" in message) == (download and name != "notmnist")


def test_the_default_root_is_in_the_home_cache(monkeypatch):
    monkeypatch.delenv("LEARNED_SAMPLERS_DATA", raising=False)
    assert datasets.data_root() == Path("~/.cache/learned_samplers").expanduser()
    assert datasets.data_root("~/elsewhere") == Path("~/elsewhere").expanduser()
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", "/from/environment")
    assert datasets.data_root() == Path("/from/environment")
    assert datasets.data_root("/argument") == Path("/argument")


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
