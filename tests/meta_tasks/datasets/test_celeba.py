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
        zipped(place)
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
IMAGES, ARCHIVE, SECOND = "img_align_celeba", "img_align_celeba.zip", "img_align_celeba/000002.jpg"


def zipped(folder, **members):
    """The archive in the place of the folder of images; with ``members`` in the place of its own."""
    with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for image in sorted((folder / IMAGES).iterdir()):
            archive.writestr(f"{IMAGES}/{image.name}", members.get(f"_{image.stem}", image.read_bytes()))
    shutil.rmtree(folder / IMAGES)


def text(name, change):
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def giant(side):
    """A megabyte of file; Pillow itself warns of the smaller and refuses the larger."""
    return lambda folder: Image.new("1", (side, side)).save(folder / SECOND, format="PNG")


def no_archive(folder):
    shutil.rmtree(folder / IMAGES)
    (folder / ARCHIVE).write_bytes(b"no archive")


def damaged_member(folder):
    zipped(folder)
    content = bytearray((folder / ARCHIVE).read_bytes())
    content[60:400] = b"\xff" * 340  # within the first image's compressed bytes
    (folder / ARCHIVE).write_bytes(content)


def missing_member(folder):
    (folder / IMAGES / "000001.jpg").unlink()
    zipped(folder)


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (text(LISTS[0], lambda t: t.replace("28", "27", 1)), ValueError, "must start with its number of images"),
        (text(LISTS[0], lambda t: ""), ValueError, "must start with its number of images"),
        (text(LISTS[0], lambda t: t[:-3] + "0\n"), ValueError, "line 30"),
        (text(LISTS[1], lambda t: t.replace(".jpg 2", ".jpg 3")), ValueError, "line 23"),
        (text(LISTS[1], lambda t: t + "9.jpg 0\n"), ValueError, "9.jpg has no line in list_attr_celeba"),
        (lambda folder: (folder / LISTS[0]).unlink(), FileNotFoundError, "celeba: no list_attr_celeba.txt in .*mmlab"),
        (lambda folder: (folder / LISTS[1]).unlink(), FileNotFoundError, "list_eval_partition.txt is missing"),
        (lambda folder: shutil.rmtree(folder / IMAGES), FileNotFoundError, f"neither the folder .*{IMAGES} nor"),
        (lambda folder: (folder / SECOND).unlink(), FileNotFoundError, "000002.jpg"),
        (lambda folder: (folder / SECOND).write_bytes(b"no image"), ValueError, "000002.jpg cannot be decoded"),
        (giant(5000), ValueError, "000002.jpg cannot be decoded as an image: it has 5000×5000"),
        (giant(20000), ValueError, "000002.jpg cannot be decoded as an image: .*pixels"),
        (no_archive, ValueError, "img_align_celeba.zip is not a whole zip archive"),
        (missing_member, FileNotFoundError, "lacks img_align_celeba/000001.jpg"),
        (damaged_member, ValueError, "img_align_celeba/000001.jpg in .* is damaged"),
        (lambda folder: zipped(folder, _000001=bytes(2**24 + 1)), ValueError, "000001.jpg in .*zip has 16777217 bytes"),
    ],
)
def test_missing_and_damaged_files_are_refused_by_name(root, tmp_path, damage, error, match):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "celeba")
    with pytest.raises(error, match=match):
        load_celeba(tmp_path, size=4)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"attributes": ("Bald", "Winged")}, ValueError, "attributes has Winged"),
        ({"attributes": ("Bald", "Bald")}, ValueError, "attributes"),
        ({"attributes": ()}, ValueError, "attributes"),
        ({"limit": 17}, ValueError, "limit=17"),
        ({"limit_test": 0}, ValueError, "limit_test"),
        ({"size": 2.0}, TypeError, "size"),
    ],
)
def test_bad_arguments(root, options, error, named):
    with pytest.raises(error, match=named):
        load_celeba(root, **{"size": 4, **options})
