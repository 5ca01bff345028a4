"""Two tasks with one vocabulary: film reviews by their verdict, and documentation by the package that it is of."""

from __future__ import annotations

import ast
import json
import sysconfig
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.base.files import write_atomically
from meta_tasks.datasets import load_text
from meta_tasks.datasets.texts import SPECIAL, UNKNOWN, TokenData, mask_of, pad, words_of
from meta_tasks.progress import progress

#: Words kept of a text, docstrings shorter than which are left out, and reviews that are held out from all training.
LONGEST, SHORTEST, HELD_OUT = 400, 20, 2000
#: Package → words by which it would be known at once; they are hidden in all documentation.
PACKAGES = {
    "python": ("python", "py"),
    "numpy": ("numpy", "np", "ndarray"),
    "scipy": ("scipy",),
    "sklearn": ("sklearn", "scikit", "learn"),
    "sympy": ("sympy",),
    "matplotlib": ("matplotlib", "mpl", "plt", "pyplot"),
    "pandas": ("pandas", "pd"),
    "networkx": ("networkx", "nx"),
}
TASKS = ("reviews", "packages")
PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts in the words of one vocabulary.

    Attributes:
        tasks: texts with classes, cut to the same length: of reviews the last words, of documentation the first.
        unlabelled: the training texts of all tasks, uncut.
    """

    tasks: dict[str, TokenData]
    unlabelled: Tensor


Text = tuple[str, ...]


def docstrings(package: str) -> Iterator[tuple[str, Text]]:
    """Yield the file and the words of every docstring of an installed package, or of the standard library."""
    if package == "python":
        root = Path(sysconfig.get_paths()["stdlib"])
    elif (spec := find_spec(package)) is None or not spec.submodule_search_locations:
        raise ValueError(f"the documentation of {package} is part of the texts, and it is not installed")
    else:
        root = Path(spec.submodule_search_locations[0])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if {"tests", "test", "site-packages"} & set(name.parts):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words = tuple(words_of(ast.get_docstring(node) or ""))[:LONGEST]
                if len(words) >= SHORTEST:
                    yield f"{package}/{name}", words


def documentation(path: Path) -> dict[str, list[tuple[Text, int]]]:
    """Return docstrings and their package's number by part, each once; a file's are all in one part.

    They are read from the installed packages once, and from ``path`` afterwards.
    """
    if not path.is_file():
        found = {package: list(docstrings(package)) for package in progress(PACKAGES, desc="documentation")}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found).encode())
    parts: dict[str, list[tuple[Text, int]]] = {part: [] for part in PARTS}
    hidden = {word for words in PACKAGES.values() for word in words}
    seen = set[Text]()
    for number, texts in enumerate(json.loads(path.read_text()).values()):
        for file, words in texts:
            text = tuple(SPECIAL[UNKNOWN] if word in hidden else word for word in words)
            place = zlib.crc32(file.encode()) % 10
            if text not in seen:
                parts["test" if place < 2 else "validation" if place < 4 else "train"].append((text, number))
            seen.add(text)
    return parts


def corpus(root: str | None, vocabulary: int, length: int, folder: Path) -> Corpus:
    """Return both tasks and the texts without labels; documentation is kept in the folder.

    Args:
        root: the data folder, of reviews.
        vocabulary: words that are told apart, the most frequent ones of the training texts.
        length: words of a labelled text.
        folder: of what is read from packages.
    """
    reviews = load_text("imdb", root, length=LONGEST, validation=HELD_OUT)
    texts = documentation(folder / "documentation.json")
    names = {word: index for index, word in enumerate(reviews.vocabulary)}
    indices = {
        part: pad([[names.setdefault(word, len(names)) for word in text] for text, _ in pairs], LONGEST)
        for part, pairs in texts.items()
    }
    labels = {part: torch.tensor([number for _, number in pairs]) for part, pairs in texts.items()}
    unlabelled = torch.cat([pad(list(reviews.train_x.numpy()), LONGEST), indices["train"]])
    counts = torch.bincount(unlabelled.flatten(), minlength=len(names))
    counts[: len(SPECIAL)] = counts.max() + 1  # they stay in front
    kept = counts.argsort(descending=True, stable=True)[:vocabulary]
    number = torch.full((len(names),), UNKNOWN).scatter(0, kept, torch.arange(len(kept)))
    words = list(names)
    known = tuple(words[index] for index in kept.tolist())

    def task(name: str, classes: int, parts: Iterable[tuple[Tensor, Tensor]]) -> TokenData:
        """Return a task in the words that are known."""
        (train_x, train_y), (val_x, val_y), (test_x, test_y) = [(number[x], y) for x, y in parts]
        return TokenData(name, classes, train_x, train_y, val_x, val_y, test_x, test_y, vocabulary=known)

    review_parts = [reviews.split(part) for part in ("train", "val", "test")]
    tasks = {
        "reviews": task("reviews", 2, ((last_words(x, length), y) for x, y in review_parts)),
        "packages": task("packages", len(PACKAGES), ((indices[part][:, :length], labels[part]) for part in PARTS)),
    }
    return Corpus(tasks, number[unlabelled])


def last_words(x: Tensor, length: int) -> Tensor:
    """Return the last so many words of each text, and padding after them where it is shorter."""
    start = (mask_of(x).sum(1, keepdim=True) - length).clamp(min=0)
    place = start + torch.arange(length)
    return x.gather(1, place.clamp(max=x.shape[1] - 1)).where(place < x.shape[1], 0)
