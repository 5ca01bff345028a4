"""Files in MedMNIST's layout, and one's own like them: read back, refused where they are wrong or hostile."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from meta_tasks import datasets
from meta_tasks.datasets import load
from meta_tasks.datasets.files import read_npy


def write_npz(path: Path, **changes) -> Path:
    random = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 30), ("val", 6), ("test", 9)):
        arrays[f"{split}_images"] = random.integers(0, 256, (n, 10, 10, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(n, dtype=np.uint8)[:, None] % 3
    arrays = {key: value for key, value in {**arrays, **changes}.items() if value is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def test_npz_in_medmnist_layout(tmp_path):
    path = write_npz(tmp_path / "mine.npz")
    data = load(f"npz:{path}")
    assert (data.num_classes, data.input_shape) == (3, (3, 10, 10))
    assert (len(data.train_y), len(data.val_y), len(data.test_y)) == (30, 6, 9)
    pixels = np.load(path)["test_images"]
    assert np.array_equal((data.test_x * 255).round().numpy(), pixels.transpose(0, 3, 1, 2))
    assert load(f"npz:{path}", grayscale=True, size=5).input_shape == (1, 5, 5)
    with pytest.raises(ValueError, match=r"validation=0.2 cannot be applied.*6 validation images of its own"):
        load(f"npz:{path}", validation=0.2)


def test_npz_without_validation_holds_a_tenth_out_and_takes_grey_floats(tmp_path):
    images, labels = np.linspace(0, 1, 30 * 16).reshape(30, 4, 4), np.arange(30) % 3
    arrays = {"train_images": images, "test_images": images[:9], "train_labels": labels}
    data = load(f"npz:{write_npz(tmp_path / 'mine.npz', val_images=None, val_labels=None, **arrays)}")
    assert (len(data.train_y), len(data.val_y)) == (27, 3)
    assert torch.equal(data.test_x[:, 0], torch.from_numpy(images[:9]).float())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"test_labels": None}, "lacks test_labels"),
        ({"val_labels": None}, "val_labels"),
        ({"train_labels": np.zeros((30, 2), np.uint8)}, "train_labels"),
        ({"train_labels": np.zeros(30)}, "train_labels"),
        ({"train_images": np.zeros((30, 10, 10, 2), np.uint8)}, r"train_images.*got \(30, 10, 10, 2\)"),
        ({"train_images": np.zeros((30, 10, 10), np.int32)}, "train_images"),
        ({"train_images": np.full((30, 10, 10, 3), 2.0)}, "train_images"),
        ({"train_images": np.zeros((30, 10, 10, 3))}, "mixes uint8 and floating-point"),
        ({"test_images": np.array([None] * 9, dtype=object)}, "cannot be read as an npz of plain arrays"),
        *(({"test_labels": np.array([0] * 8 + [bad])}, "test_labels") for bad in (2**40, 2**16, -1)),
        ({"test_labels": np.array([0] * 8 + [2**63 + 1], np.uint64)}, "test_labels"),
    ],
)
def test_npz_with_a_wrong_array_is_refused_by_name(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        load(f"npz:{write_npz(tmp_path / 'mine.npz', **changes)}")


def npy_header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.fixture
def little_memory():
    """Two gigabytes more than now: whoever believes a header gets a MemoryError, which no reader may raise."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="knows no sizes of processes")
@pytest.mark.usefixtures("little_memory")
def test_npz_that_would_fill_the_memory(tmp_path):
    path, member = tmp_path / "mine.npz", "train_images.npy"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:  # 300 MB of zeros in 300 kB
        archive.writestr(member, npy_header((300, 1000, 1000)) + bytes(300 * 10**6))
    with pytest.raises(ValueError, match=r"mine\.npz says that it unpacks to 300000\d+ bytes, which is more than 100"):
        load(f"npz:{path}")
    with zipfile.ZipFile(path, "w") as archive:  # an array that says of itself that it has a terabyte
        archive.writestr(member, npy_header((10**6, 1000, 1000)) + bytes(100))
    with pytest.raises(ValueError, match=r"mine\.npz cannot be read"):
        load(f"npz:{path}")
    data = bytearray(path.read_bytes())  # and an archive that says so too
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = data.index(signature) + place
        data[start : start + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"mine\.npz says that it unpacks to 4294967294 bytes"):
        load(f"npz:{path}")
    nested = b"\x93NUMPY\x01\x00\xff\xff{" + b"(" * 70000
    for content in (npy_header((10**12,)), npy_header((2**62, 2**62)) + bytes(8), nested):
        (tmp_path / "one.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"one\.npy cannot be read as an npy of numbers"):
            read_npy(tmp_path / "one.npy")


def test_npz_with_any_byte_changed_is_read_or_refused_in_one_line(tmp_path):
    path = write_npz(tmp_path / "mine.npz", val_images=None, val_labels=None)
    content, random = path.read_bytes(), np.random.default_rng(0)
    headers = [place for place in range(len(content)) if content[place : place + 2] == b"PK" or content[place] == 0x93]
    refused: list[str] = []
    for trial in range(300):
        data = bytearray(content)
        near = headers[trial % len(headers)] + int(random.integers(60))
        data[min(near, len(data) - 1)] = random.integers(256)
        path.write_bytes(data[: random.integers(len(data))] if trial % 10 == 0 else data)
        try:
            load(f"npz:{path}")
        except ValueError as error:
            refused.append(str(error))
    assert 100 < len(refused) < 300
    assert all("mine.npz" in line and "\n" not in line for line in refused)


@pytest.mark.parametrize("folder", ["medmnist", "."])
def test_medmnist_flags_are_found_in_both_places(tmp_path, monkeypatch, folder):
    write_npz(tmp_path / folder / "bloodmnist.npz")
    assert load("bloodmnist", tmp_path).num_classes == 8, "the class count is MedMNIST's, not the largest label seen"
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path))
    assert len(load("bloodmnist").test_y) == 9
    assert {"bloodmnist", "retinamnist", "npz:FILE", "emnist"} <= set(datasets.names())
    assert "chestmnist" not in datasets.names(), "its images have several labels"
