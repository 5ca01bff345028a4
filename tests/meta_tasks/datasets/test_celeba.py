"""CelebA's loader on a small archive in its layout."""

from __future__ import annotations

import shutil
import zipfile

import pytest
import torch
from PIL import Image

from meta_tasks.datasets import load_celeba
from meta_tasks.datasets.celeba import FIRST_TEN
from tests.meta_tasks.datasets.celeba_archive import ATTRIBUTES, write_celeba


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("celeba")
    write_celeba(folder)
    return folder


@pytest.mark.parametrize("kind", ["folder", "zip", "CelebA"])
def test_images_and_attributes(root, tmp_path, kind):
    place = tmp_path / ("CelebA" if kind == "CelebA" else "celeba")
    shutil.copytree(root / "celeba", place)
    if kind == "zip":
        with zipfile.ZipFile(place / "img_align_celeba.zip", "w") as archive:
            for image in sorted((place / "img_align_celeba").iterdir()):
                archive.write(image, f"img_align_celeba/{image.name}")
        shutil.rmtree(place / "img_align_celeba")
    data = load_celeba(tmp_path, size=8)
    assert data.tasks == FIRST_TEN
    assert data.num_classes == 2
    assert data.input_shape == (3, 8, 8)
    assert [len(y) for y in (data.train_y, data.val_y, data.test_y)] == [16, 6, 6]
    # The archive's image i has attribute k where bit k % 5 of i is set, and i codes its colour.
    numbers = torch.cat([torch.arange(1, 17), torch.arange(17, 23), torch.arange(23, 29)])
    expected = numbers[:, None] >> (torch.arange(10) % 5) & 1
    assert torch.equal(torch.cat([data.train_y, data.val_y, data.test_y]), expected)
    colours = torch.cat([data.train_x, data.val_x, data.test_x]).float().mean((2, 3))
    assert (colours[:, 0] - 8 * numbers).abs().max() < 4, "an image stands beside another's attributes"
    assert (colours[:, 1] - 100).abs().max() < 4, "not the middle was cut out"


def test_other_attributes_and_limits(root):
    data = load_celeba(root, attributes=("Young", "Bald"), size=4, limit=5, limit_validation=2, limit_test=3)
    assert data.tasks == ("Young", "Bald")
    assert [len(y) for y in (data.train_y, data.val_y, data.test_y)] == [5, 2, 3]
    numbers = (data.train_x.float()[:, 0].mean((1, 2)) / 8).round().long()
    places = torch.tensor([ATTRIBUTES.index("Young"), ATTRIBUTES.index("Bald")])
    assert torch.equal(data.train_y, numbers[:, None] >> (places % 5) & 1)
    again, other = (load_celeba(root, size=4, limit=5, seed=seed) for seed in (0, 1))
    assert torch.equal(again.train_x, data.train_x)
    assert not torch.equal(other.train_x, data.train_x)


LISTS = ("list_attr_celeba.txt", "list_eval_partition.txt")


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        (LISTS[0], lambda text: text.replace("28", "27", 1), "must start with its number of images"),
        (LISTS[0], lambda text: "", "must start with its number of images"),
        (LISTS[0], lambda text: text[:-3] + "0\n", "line 30, must be a file name and 12 times"),
        (LISTS[1], lambda text: text.replace(".jpg 2", ".jpg 3"), "line 23, must be .* 0, 1 or 2"),
        (LISTS[1], lambda text: text + "9.jpg 0\n", "9.jpg has no line in list_attr_celeba"),
    ],
    ids=["count", "empty", "sign", "split", "unknown"],
)
def test_damaged_lists(root, tmp_path, name, change, match):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "celeba" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=match):
        load_celeba(tmp_path, size=4)


@pytest.mark.parametrize(
    ("missing", "match"),
    [
        ("list_attr_celeba.txt", "celeba: no list_attr_celeba.txt in .*mmlab"),
        ("list_eval_partition.txt", "list_eval_partition.txt is missing"),
        ("img_align_celeba", "neither the folder .*img_align_celeba nor .*img_align_celeba.zip"),
        ("img_align_celeba/000003.jpg", "000003.jpg"),
    ],
)
def test_missing_files(root, tmp_path, missing, match):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "celeba" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=match):
        load_celeba(tmp_path, size=4)


def test_damaged_images(root, tmp_path):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    image = tmp_path / "celeba" / "img_align_celeba" / "000002.jpg"
    image.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"000002.jpg cannot be decoded"):
        load_celeba(tmp_path, size=4)
    shutil.rmtree(image.parent)
    archive = tmp_path / "celeba" / "img_align_celeba.zip"
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"img_align_celeba.zip is not a whole zip archive"):
        load_celeba(tmp_path, size=4)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("img_align_celeba/000009.jpg", b"")
    with pytest.raises(FileNotFoundError, match=r"lacks img_align_celeba/000001.jpg"):
        load_celeba(tmp_path, size=4)


def test_a_damaged_member_of_the_archive(root, tmp_path):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "celeba"
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for image in sorted((folder / "img_align_celeba").iterdir()):
            archive.write(image, f"img_align_celeba/{image.name}")
    shutil.rmtree(folder / "img_align_celeba")
    path = folder / "img_align_celeba.zip"
    content = bytearray(path.read_bytes())
    content[60:400] = b"\xff" * 340  # within the first image's compressed bytes
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"img_align_celeba/000001.jpg in .* is damaged"):
        load_celeba(tmp_path, size=4)


def test_images_that_would_fill_the_memory(root, tmp_path):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    image = tmp_path / "celeba" / "img_align_celeba" / "000002.jpg"
    for side in (5000, 20000):  # a megabyte; Pillow itself warns of the one and refuses the other
        Image.new("1", (side, side)).save(image, format="PNG")
        with pytest.raises(ValueError, match=r"000002.jpg cannot be decoded as an image: (it has 5000×5000|.*pixels)"):
            load_celeba(tmp_path, size=4)
    shutil.rmtree(image.parent)
    with zipfile.ZipFile(tmp_path / "celeba" / "img_align_celeba.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("img_align_celeba/000001.jpg", bytes(2**24 + 1))
    with pytest.raises(ValueError, match=r"000001.jpg in .*zip has 16777217 bytes, an image at most 16777216"):
        load_celeba(tmp_path, size=4)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"attributes": ("Bald", "Winged")}, ValueError, "attributes has Winged, which .* lacks"),
        ({"attributes": ("Bald", "Bald")}, ValueError, "attributes must be names, each once"),
        ({"attributes": ()}, ValueError, "attributes must be names"),
        ({"limit": 17}, ValueError, "limit=17 exceeds the 16 images"),
        ({"limit_test": 0}, ValueError, "limit_test must be at least 1, got 0"),
        ({"size": 2.0}, TypeError, "size must be an integer, got 2.0"),
    ],
)
def test_bad_arguments(root, options, error, match):
    with pytest.raises(error, match=match):
        load_celeba(root, **{"size": 4, **options})
