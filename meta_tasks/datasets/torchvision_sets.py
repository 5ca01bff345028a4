"""Sources that torchvision downloads (the MNIST family, CIFAR, SVHN), and notMNIST, which comes as idx files too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.base.optional import require
from meta_tasks.datasets.files import fetch, find, find_idx, read_idx
from meta_tasks.datasets.images import RawSplits
from meta_tasks.datasets.npz import read_splits

# The split of the 50,000 CIFAR training images that L2E and the HMC reference of Izmailov et al. (2021) train on.
CIFAR_TRAIN = 40_960

IDX_CLASSES = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "emnist": "EMNIST",
    "emnist_digits": "EMNIST",
}
EMNIST_SPLITS = {"emnist": "mnist", "emnist_digits": "digits"}


def read_idx_family(name: str, root: Path, download: bool) -> RawSplits:
    """MNIST, Fashion-MNIST, KMNIST and the two 10-class splits of EMNIST, from <root>/<class>/raw.

    EMNIST stores its images transposed; they are turned upright here, as in MNIST.
    """
    class_name = IDX_CLASSES[name]
    folder = root / class_name / "raw"
    prefixes = ("train", "t10k")
    arguments = ""
    kwargs = {}
    if name in EMNIST_SPLITS:
        kwargs = {"split": EMNIST_SPLITS[name]}
        prefixes = (f"emnist-{kwargs['split']}-train", f"emnist-{kwargs['split']}-test")
        arguments = f"split={kwargs['split']!r}, "
    stems = [f"{prefix}-{kind}" for prefix in prefixes for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    if any(find_idx(folder, stem) is None for stem in stems):
        dataset_class = getattr(require("torchvision.datasets", "meta"), class_name)
        source = dataset_class.url if name in EMNIST_SPLITS else " or ".join(dataset_class.mirrors)
        fetch(
            name,
            f"{', '.join(stems)} (or .gz) in {folder}",
            f'on a machine with network, python -c "import torchvision; torchvision.datasets.{class_name}'
            f"('{root}', {arguments}download=True)\" (files of {source})",
            (lambda: dataset_class(str(root), download=True, **kwargs)) if download else None,
        )
    train_x, train_y, test_x, test_y = (_read_stem(folder, stem) for stem in stems)
    if name in EMNIST_SPLITS:
        train_x, test_x = train_x.transpose(1, 2), test_x.transpose(1, 2)
    return RawSplits(10, 255.0, train=(train_x[:, None], train_y.long()), test=(test_x[:, None], test_y.long()))


def _read_stem(folder: Path, stem: str) -> Tensor:
    path = find_idx(folder, stem)
    if path is None:
        raise FileNotFoundError(f"{folder / stem} is missing although torchvision reported a complete download")
    return read_idx(path)


def read_notmnist(root: Path) -> RawSplits:
    """10,000 letters A to J, 28×28, with a test split only: <root>/notmnist/t10k-*-ubyte, unpacked or .gz."""
    folder = root / "notmnist"
    stems = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    if any(find_idx(folder, stem) is None for stem in stems):
        fetch(
            "notmnist",
            f"{', '.join(stems)} (or .gz) in {folder}",
            "take the two t10k files of https://github.com/davidflanagan/notMNIST-to-MNIST",
            None,
        )
    x, y = (_read_stem(folder, stem) for stem in stems)
    return RawSplits(10, 255.0, test=(x[:, None], y.long()))


def read_cifar(name: str, root: Path, download: bool) -> RawSplits:
    """CIFAR-10 or CIFAR-100 from torchvision's folder in <root>, or <root>/<name>.npz in MedMNIST layout.

    The first 40,960 training images are the training split and the other 9,040 the validation split. torchvision
    checks the MD5 of every file before it unpickles it.
    """
    num_classes = {"cifar10": 10, "cifar100": 100}[name]
    folder = root / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[name]
    npz = find([root / f"{name}.npz"])
    if not folder.is_dir() and npz is not None:
        return read_splits(npz, num_classes)
    dataset_class = getattr(require("torchvision.datasets", "meta"), name.upper())

    def build() -> list[tuple[Tensor, Tensor]]:
        parts = [dataset_class(str(root), train=train) for train in (True, False)]
        return [(torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets)) for part in parts]

    wanted = f"{folder} (torchvision's layout) or {root / f'{name}.npz'} (MedMNIST layout)"
    (x, y), test = _torchvision_or_fetch(
        name,
        build,
        wanted,
        dataset_class.__name__,
        dataset_class.url,
        root,
        (lambda: dataset_class(str(root), download=True)) if download else None,
    )
    return RawSplits(
        num_classes,
        255.0,
        train=(x[:CIFAR_TRAIN], y[:CIFAR_TRAIN]),
        val=(x[CIFAR_TRAIN:], y[CIFAR_TRAIN:]) if len(y) > CIFAR_TRAIN else None,
        test=test,
    )


def read_svhn(root: Path, download: bool) -> RawSplits:
    """Street View House Numbers, cropped digits: <root>/train_32x32.mat and test_32x32.mat, or in <root>/SVHN."""
    folder = root if find([root / "test_32x32.mat"]) else root / "SVHN"
    dataset_class = require("torchvision.datasets", "meta").SVHN

    def build() -> list[tuple[Tensor, Tensor]]:
        parts = [dataset_class(str(folder), split=split) for split in ("train", "test")]
        return [(torch.from_numpy(part.data), torch.from_numpy(part.labels)) for part in parts]

    def get() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            dataset_class(str(folder), split=split, download=True)

    train, test = _torchvision_or_fetch(
        "svhn",
        build,
        f"train_32x32.mat and test_32x32.mat in {folder}",
        "SVHN",
        "http://ufldl.stanford.edu/housenumbers",
        folder,
        get if download else None,
    )
    return RawSplits(10, 255.0, train=train, test=test)


def _torchvision_or_fetch(
    name: str,
    build: Callable[[], list[tuple[Tensor, Tensor]]],
    wanted: str,
    class_name: str,
    url: str,
    root: Path,
    download: Callable[[], object] | None,
) -> list[tuple[Tensor, Tensor]]:
    """What `build` reads, after a download where torchvision finds the files missing or damaged."""
    try:
        return build()
    except RuntimeError:  # torchvision's "Dataset not found or corrupted"
        extra = ", split='train'" if class_name == "SVHN" else ""
        also = " and again with split='test'" if class_name == "SVHN" else ""
        fetch(
            name,
            f"complete {wanted}",
            f'on a machine with network, python -c "import torchvision; torchvision.datasets.{class_name}'
            f"('{root}'{extra}, download=True)\"{also} (files of {url})",
            download,
        )
    return build()
