"""CelebA: photographs of faces with binary attributes, each a task.

The data are at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, for research that is not commercial; nothing
is downloaded here. In <root>/celeba (or <root>/CelebA) must lie list_attr_celeba.txt, list_eval_partition.txt, and the
images, as a folder img_align_celeba of JPEG files or as img_align_celeba.zip, which is read as it is.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.base.validation import integer
from meta_tasks.datasets.files import MOST_BYTES, data_root, decoded, find, missing
from meta_tasks.datasets.images import MultiTaskData, resize

#: The first ten attributes of the list, the tasks of the MT-SGD paper.
FIRST_TEN = (
    *("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald"),
    *("Bangs", "Big_Lips", "Big_Nose", "Black_Hair", "Blond_Hair"),
)
_ATTRIBUTES, _PARTITION, _IMAGES = "list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba"


def load_celeba(
    root: str | os.PathLike[str] | None = None,
    *,
    attributes: Sequence[str] = FIRST_TEN,
    size: int = 64,
    limit: int | None = None,
    limit_validation: int | None = None,
    limit_test: int | None = None,
    seed: int = 0,
) -> MultiTaskData:
    """Faces (n, 3, size, size) and their attributes, (n, K), 1 where a face has it; CelebA's own three splits.

    The images are cut to the square in their middle and resized (bilinear with antialiasing). All of them at 64 pixels
    take 2.5 GB.

    Args:
        root: the data folder, as for `load`.
        attributes: names out of the first lines of list_attr_celeba.txt, each a task.
        size: side in pixels.
        limit, limit_validation, limit_test: number of images of each split, chosen at random; None takes all. The
            paper has 40,000 training images.
        seed: of that choice.

    Raises:
        FileNotFoundError: a file or an image is missing; says which.
        ValueError, TypeError: an unknown attribute, a damaged file, or an argument out of range or of a wrong type.
    """
    integer("size", size)
    limits = {"limit": limit, "limit_validation": limit_validation, "limit_test": limit_test}
    for argument, value in limits.items():
        if value is not None:
            integer(argument, value)
    names = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"attributes must be names, each once, got {names}")
    folder = _folder(data_root(root))
    labels = _read_attributes(folder / _ATTRIBUTES, names)
    members = _read_partition(folder / _PARTITION, labels)
    stream = torch.Generator().manual_seed(seed)
    splits: list[Tensor] = []
    with ExitStack() as stack:
        read = _reader(folder, stack)
        for files, (argument, value) in zip(members, limits.items(), strict=True):
            if value is not None and value > len(files):
                raise ValueError(f"{argument}={value} exceeds the {len(files)} images that there are")
            order = torch.randperm(len(files), generator=stream)[:value].sort().values.tolist()
            chosen = [files[i] for i in order]
            x = torch.empty(len(chosen), 3, size, size, dtype=torch.uint8)
            for i, file in enumerate(chosen):
                x[i] = _square(decoded(read(file), f"celeba: {file}"), size)
            splits += [x, torch.tensor([labels[file] for file in chosen]).view(-1, len(names)).long()]
    return MultiTaskData("celeba", names, 2, *splits)


def _folder(root: Path) -> Path:
    folders = [root / "celeba", root / "CelebA"]
    found = find([folder / _ATTRIBUTES for folder in folders])
    if found is None:
        source = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
        how = f"take {_ATTRIBUTES}, {_PARTITION} and {_IMAGES}.zip of {source} and put them into {folders[0]}"
        missing("celeba", f"{_ATTRIBUTES} in {folders[0]}", how)
    if not (found.parent / _PARTITION).is_file():
        raise FileNotFoundError(f"celeba: {found.parent / _PARTITION} is missing beside {_ATTRIBUTES}")
    return found.parent


def _read_attributes(path: Path, names: Sequence[str]) -> dict[str, list[int]]:
    """File name → 0 or 1 for each of the attributes. The file: a count, the names, and a line of ±1 an image."""
    lines = path.read_text().splitlines()
    count, head, lines = "".join(lines[:1]), "".join(lines[1:2]), lines[2:]
    if count.strip() != str(len(lines)):
        raise ValueError(f"{path} must start with its number of images, here {len(lines)}, got {count!r:.100}")
    known = head.split()
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"attributes has {', '.join(unknown)}, which {path} lacks; it has {', '.join(known)}")
    columns = [known.index(name) + 1 for name in names]
    labels = {}
    for number, line in enumerate(lines, start=3):
        cells = line.split()
        if len(cells) != len(known) + 1 or any(cell not in ("-1", "1") for cell in cells[1:]):
            raise ValueError(f"{path}, line {number}, must be a file name and {len(known)} times 1 or -1, got {line!r}")
        labels[cells[0]] = [int(cells[column] == "1") for column in columns]
    return labels


def _read_partition(path: Path, labels: dict[str, list[int]]) -> list[list[str]]:
    """File names of the training, validation and test images."""
    members: list[list[str]] = [[], [], []]
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        cells = line.split()
        if len(cells) != 2 or cells[1] not in ("0", "1", "2"):
            raise ValueError(f"{path}, line {number}, must be a file name and 0, 1 or 2, got {line!r}")
        if cells[0] not in labels:
            raise ValueError(f"{path}, line {number}: {cells[0]} has no line in {_ATTRIBUTES}")
        members[int(cells[1])].append(cells[0])
    return members


def _reader(folder: Path, stack: ExitStack) -> Callable[[str], bytes]:
    """What gives an image file's bytes by its name, from the folder of images, or from the archive."""
    images, archive = folder / _IMAGES, folder / f"{_IMAGES}.zip"
    if images.is_dir():
        return lambda file: (images / file).read_bytes()
    if not archive.is_file():
        raise FileNotFoundError(f"celeba: neither the folder {images} nor {archive} is there")
    try:
        opened = stack.enter_context(zipfile.ZipFile(archive))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is not a whole zip archive: {error}") from error

    def read(file: str) -> bytes:
        name = f"{_IMAGES}/{file}"
        try:
            if (size := opened.getinfo(name).file_size) > MOST_BYTES:
                raise ValueError(f"{name} in {archive} has {size} bytes, an image at most {MOST_BYTES}")
            return opened.read(name)
        except KeyError as error:
            raise FileNotFoundError(f"{archive} lacks {name}") from error
        except (zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{name} in {archive} is damaged: {error}") from error

    return read


def _square(image: Tensor, size: int) -> Tensor:
    """The square in the middle of an image (3, H, W) in uint8, resized."""
    height, width = image.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    cut = image[:, top : top + side, left : left + side]
    return (resize(cut[None].float() / 255, size)[0] * 255).round().to(torch.uint8)
