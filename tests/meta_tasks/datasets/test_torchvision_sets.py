"""torchvision's sources, on small files written in the format of each."""

import gzip
import hashlib
import pickle
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision

from meta_tasks.datasets import load
from meta_tasks.datasets.files import read_idx
from tests.meta_tasks.datasets.test_npz import write_npz


def pixels(x):
    return (x * 255).round().numpy()


def write_idx(path: Path, array: np.ndarray, compress: bool = False) -> None:
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = header + array.astype(np.uint8).tobytes()
    if compress:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def write_idx_family(folder: Path, prefixes=("train", "t10k"), compress=False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    written = {}
    for prefix, n in zip(prefixes, (40, 20)):
        written[prefix] = random.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", written[prefix], compress)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(n) % 10, compress)
    return written


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("name", "folder", "prefixes"),
    [
        ("mnist", "MNIST", ("train", "t10k")),
        ("fashion_mnist", "FashionMNIST", ("train", "t10k")),
        ("kmnist", "KMNIST", ("train", "t10k")),
        ("emnist", "EMNIST", ("emnist-mnist-train", "emnist-mnist-test")),
        ("emnist_digits", "EMNIST", ("emnist-digits-train", "emnist-digits-test")),
    ],
)
def test_idx_files_unpacked_or_compressed(tmp_path, name, folder, prefixes, compress):
    written = write_idx_family(tmp_path / folder / "raw", prefixes, compress)[prefixes[1]]
    data = load(name, tmp_path, validation=10, download=False)
    assert (len(data.train_y), len(data.val_y), len(data.test_y), data.num_classes) == (30, 10, 20, 10)
    upright = written.transpose(0, 2, 1) if folder == "EMNIST" else written
    assert np.array_equal(pixels(data.test_x[:, 0]), upright)
    assert data.test_y.tolist() == [i % 10 for i in range(20)]


def test_notmnist_has_a_test_split_only(tmp_path):
    written = write_idx_family(tmp_path / "notmnist", compress=True)
    data = load("notmnist", tmp_path, download=False)
    assert data.num_data == len(data.val_y) == 0
    assert data.train_x.shape == (0, 1, 28, 28)
    assert np.array_equal(pixels(data.test_x[:, 0]), written["t10k"])
    with pytest.raises(ValueError, match="validation=5"):
        load("notmnist", tmp_path, validation=5, download=False)


def write_cifar(root: Path, monkeypatch, dataset_class, label_key: str) -> np.ndarray:
    """Batches as torchvision reads them, with their checksums put into its table."""
    folder = root / dataset_class.base_folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)

    def write(name: str, content: dict) -> str:
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return hashlib.md5(raw).hexdigest()

    test = np.empty(0)
    for table in ("train_list", "test_list"):
        rows = []
        for name, _ in getattr(dataset_class, table):
            test = random.integers(0, 256, (20, 3072), dtype=np.uint8)
            rows.append([name, write(name, {"data": test, label_key: [i % 10 for i in range(20)]})])
        monkeypatch.setattr(dataset_class, table, rows)
    meta = dataset_class.meta
    digest = write(meta["filename"], {meta["key"]: [str(i) for i in range(10)]})
    monkeypatch.setattr(dataset_class, "meta", {**meta, "md5": digest})
    return test.reshape(20, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "class_name", "label_key", "num_classes", "num_train"),
    [("cifar10", "CIFAR10", "labels", 10, 100), ("cifar100", "CIFAR100", "fine_labels", 100, 20)],
)
def test_cifar_in_torchvisions_layout(tmp_path, monkeypatch, name, class_name, label_key, num_classes, num_train):
    test = write_cifar(tmp_path, monkeypatch, getattr(torchvision.datasets, class_name), label_key)
    data = load(name, tmp_path, validation=10, download=False)
    assert data.num_classes == num_classes
    assert (len(data.train_y), len(data.val_y), len(data.test_y)) == (num_train - 10, 10, 20)
    assert np.array_equal(pixels(data.test_x), test)
    # A batch that is not the published one is never unpickled.
    batch = next((tmp_path / getattr(torchvision.datasets, class_name).base_folder).glob("*test*"))
    batch.write_bytes(batch.read_bytes() + b"x")
    with pytest.raises(FileNotFoundError, match=f"{name}: no complete"):
        load(name, tmp_path, download=False)


def test_cifar_trains_on_the_first_40960_images(tmp_path, monkeypatch):
    write_cifar(tmp_path, monkeypatch, torchvision.datasets.CIFAR10, "labels")
    monkeypatch.setattr("meta_tasks.datasets.torchvision_sets.CIFAR_TRAIN", 70)
    everything = torch.from_numpy(torchvision.datasets.CIFAR10(tmp_path).data).permute(0, 3, 1, 2) / 255
    data = load("cifar10", tmp_path, download=False)
    assert torch.equal(data.train_x, everything[:70])
    assert torch.equal(data.val_x, everything[70:])


def test_cifar10_from_an_npz(tmp_path):
    path = write_npz(tmp_path / "cifar10.npz")
    data = load("cifar10", tmp_path, download=False)
    assert (data.num_classes, len(data.val_y)) == (10, 6)
    assert np.array_equal(pixels(data.val_x), np.load(path)["val_images"].transpose(0, 3, 1, 2))


@pytest.mark.parametrize("folder", [".", "SVHN"])
def test_svhn_mat_files(tmp_path, monkeypatch, folder):
    random = np.random.default_rng(0)
    (tmp_path / folder).mkdir(exist_ok=True)
    splits = {}
    for split, n in (("train", 40), ("test", 20)):
        written = random.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        path = tmp_path / folder / f"{split}_32x32.mat"
        scipy.io.savemat(path, {"X": written, "y": (np.arange(n) % 10 + 1)[:, None]})
        url, file_name, _ = torchvision.datasets.SVHN.split_list[split]
        splits[split] = [url, file_name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", splits)
    data = load("svhn", tmp_path, validation=10, download=False)
    assert data.input_shape == (3, 32, 32)
    assert data.test_y[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0], "SVHN writes the digit 0 as label 10"
    assert np.array_equal(pixels(data.test_x), written.transpose(3, 2, 0, 1))


# --- idx files that are none --------------------------------------------------------------------------------------


def idx(*shape, content=bytes(784)):
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4) for n in shape) + content


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (idx(*(2**32 - 1,) * 3), "says that it unpacks to"),
        (idx(10**6, 28, 28), "says that it unpacks to"),
        (idx(100, 28, 28), "is truncated or too long"),
        (idx(1), "is truncated or too long"),
        (idx(*(1,) * 200), "is not an idx file"),
        (b"<html>not found</html>", "is not an idx file"),
    ],
)
def test_an_idx_file_whose_header_lies(tmp_path, compress, content, reason):
    path = tmp_path / ("images.gz" if compress else "images")
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(ValueError, match=rf"images(\.gz)? {reason}"):
        read_idx(path)


def test_a_truncated_gzip_file_and_a_bomb_are_not_unpacked(tmp_path):
    """A quarter of a gigabyte of zeros in 256 KB, behind a header of nine bytes: no more than nine are unpacked."""
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(28, 28))[:-5])
    with pytest.raises(ValueError, match=r"images\.gz is not a whole gzip file"):
        read_idx(path)
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(idx(9, content=b""))]
    parts += [packer.compress(bytes(2**20)) for _ in range(256)]
    path.write_bytes(b"".join([*parts, packer.flush()]))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"images\.gz is truncated or too long: more than 9 bytes"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
