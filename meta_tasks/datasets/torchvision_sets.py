"""Sources that torchvision downloads (the MNIST family, CIFAR, SVHN), and notMNIST, which comes as idx files too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.base.optional import require
from meta_tasks.datasets.files import fetch, find, read_idx
from meta_tasks.datasets.images import RawSplits
from meta_tasks.datasets.npz import read_splits

# The split of the 50,000 CIFAR training images that L2E and the HMC reference of Izmailov et al. (2021) train on.
CIFAR_TRAIN = 40_960

#: Name → torchvision's class.
IDX_CLASSES = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "emnist": "EMNIST",
    "emnist_digits": "EMNIST",
}
EMNIST_SPLITS = {"emnist": "mnist", "emnist_digits": "digits"}
_ARRAYS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx_family(name: str, root: Path, download: bool) -> RawSplits:
    """MNIST, Fashion-MNIST, KMNIST and the two 10-class splits of EMNIST, from <root>/<class>/raw.

    Read here, not by torchvision, which takes a second to import and does not read .gz. EMNIST stores its images
    transposed; they are turned upright here, as in MNIST.
    """
    split = EMNIST_SPLITS.get(name)
    prefixes = ("train", "t10k") if split is None else (f"emnist-{split}-train", f"emnist-{split}-test")
    options = {} if split is None else {"split": split}
    stems = [f"{prefix}-{array}" for prefix in prefixes for array in _ARRAYS]
    folder = root / IDX_CLASSES[name] / "raw"

    def get() -> None:
        fetch_by_torchvision(name, _wanted(stems, folder), IDX_CLASSES[name], root, [options], download)

    train_x, train_y, test_x, test_y = _read_stems(folder, stems, get)
    if split is not None:
        train_x, test_x = train_x.transpose(1, 2), test_x.transpose(1, 2)
    return RawSplits(10, 255.0, train=(train_x[:, None], train_y.long()), test=(test_x[:, None], test_y.long()))


def read_notmnist(root: Path) -> RawSplits:
    """10,000 letters A to J, 28×28, with a test split only: <root>/notmnist/t10k-*-ubyte, unpacked or .gz."""
    folder, stems = root / "notmnist", [f"t10k-{array}" for array in _ARRAYS]
    how = "take the two t10k files of https://github.com/davidflanagan/notMNIST-to-MNIST"
    x, y = _read_stems(folder, stems, lambda: fetch("notmnist", _wanted(stems, folder), how, None))
    return RawSplits(10, 255.0, test=(x[:, None], y.long()))


def read_cifar(name: str, root: Path, download: bool) -> RawSplits:
    """CIFAR-10 or CIFAR-100 from torchvision's folder in <root>, or <root>/<name>.npz in MedMNIST layout.

    The first 40,960 training images are the training split and the other 9,040 the validation split. torchvision
    checks the MD5 of every file before it unpickles it.
    """
    num_classes = {"cifar10": 10, "cifar100": 100}[name]
    folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    npz = root / f"{name}.npz"
    if not folder.is_dir() and npz.is_file():
        return read_splits(npz, num_classes)
    dataset_class = getattr(require("torchvision.datasets", "meta"), name.upper())

    def read() -> list[tuple[Tensor, Tensor]]:
        parts = [dataset_class(str(root), train=train) for train in (True, False)]
        return [(torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets)) for part in parts]

    wanted = f"complete {folder} (torchvision's layout) or {npz} (MedMNIST layout)"
    (x, y), test = _read_or_fetch(name, wanted, name.upper(), root, [{}], download, read)
    train, val = zip(*(tensor.split([min(CIFAR_TRAIN, len(y)), max(len(y) - CIFAR_TRAIN, 0)]) for tensor in (x, y)))
    return RawSplits(num_classes, 255.0, train=train, val=val if len(val[1]) else None, test=test)


def read_svhn(root: Path, download: bool) -> RawSplits:
    """Street View House Numbers, cropped digits: <root>/train_32x32.mat and test_32x32.mat, or in <root>/SVHN."""
    folder = root if (root / "test_32x32.mat").is_file() else root / "SVHN"
    dataset_class = require("torchvision.datasets", "meta").SVHN
    options = [{"split": split} for split in ("train", "test")]

    def read() -> list[tuple[Tensor, Tensor]]:
        parts = [dataset_class(str(folder), **keywords) for keywords in options]
        return [(torch.from_numpy(part.data), torch.from_numpy(part.labels)) for part in parts]

    wanted = f"complete train_32x32.mat and test_32x32.mat in {folder}"
    train, test = _read_or_fetch("svhn", wanted, "SVHN", folder, options, download, read)
    return RawSplits(10, 255.0, train=train, test=test)


def fetch_by_torchvision(
    name: str, wanted: str, class_name: str, root: Path, options: Sequence[dict[str, str]], download: bool
) -> None:
    """Have torchvision's class download to ``root``, once for each of the options; errors as `files.fetch`."""
    dataset_class = getattr(require("torchvision.datasets", "meta"), class_name)
    keywords = [[f"{name}={value!r}" for name, value in values.items()] for values in options]
    calls = [", ".join([f"'{root}'", *words, "download=True"]) for words in keywords]
    code = "; ".join(["import torchvision", *(f"torchvision.datasets.{class_name}({call})" for call in calls)])

    def get() -> None:
        root.mkdir(parents=True, exist_ok=True)
        for values in options:
            dataset_class(str(root), **values, download=True)

    fetch(name, wanted, f'on a machine with network, python -c "{code}"', get if download else None)


def _read_or_fetch(
    name: str,
    wanted: str,
    class_name: str,
    root: Path,
    options: Sequence[dict[str, str]],
    download: bool,
    read: Callable[[], list[tuple[Tensor, Tensor]]],
) -> list[tuple[Tensor, Tensor]]:
    """Call `read`, after a download where torchvision finds the files missing or damaged."""
    try:
        return read()
    except RuntimeError:  # torchvision's "Dataset not found or corrupted"
        fetch_by_torchvision(name, wanted, class_name, root, options, download)
    return read()


def _wanted(stems: Sequence[str], folder: Path) -> str:
    return f"{', '.join(stems)} (or .gz) in {folder}"


def _read_stems(folder: Path, stems: Sequence[str], get: Callable[[], None]) -> list[Tensor]:
    """The arrays of idx files, unpacked or .gz; ``get`` is called where one is missing."""

    def paths() -> list[Path]:
        files = (find([folder / stem, folder / f"{stem}.gz"]) for stem in stems)
        return [path for path in files if path is not None]

    if len(paths()) < len(stems):
        get()
    if len(there := paths()) < len(stems):
        raise FileNotFoundError(f"a file is missing in {folder} although torchvision reported a complete download")
    return [read_idx(path) for path in there]
