"""`TokenData`: sequences of words as indices, with their padding and vocabulary; `load_text` reads one by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.validation import one_of, whole
from meta_tasks.datasets.array_data import ArrayData, held_out
from meta_tasks.datasets.files import data_root
from meta_tasks.datasets.image_data import SPLITS, stratified_split
from meta_tasks.datasets.imdb import PADDING, UNKNOWN, RawText, Sequences, read_imdb

__all__ = ["TokenData", "load_text", "mask_of", "pad", "text_names"]

#: What stands in a vocabulary at the places of `PADDING` and `UNKNOWN`.
SPECIAL = ("<padding>", "<unknown>")
#: Name → what reads the data set from the data folder.
READERS: dict[str, Callable[[Path], RawText]] = {"imdb": read_imdb}


@dataclass(frozen=True, eq=False)
class TokenData(ArrayData):
    """Texts as indices of words: int64 (n, L), each text followed by padding (index 0) up to L words; and classes.

    Attributes:
        vocabulary: word of each index; those of 0 and 1 are ``<padding>`` and ``<unknown>``.

    Raises:
        TypeError, ValueError: inputs that are not int64 (n, L), an index outside the vocabulary, padding before a word
            or a text without words; and what `ArrayData` raises.
    """

    vocabulary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary[:2] != SPECIAL or len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError(f"vocabulary must begin with {SPECIAL} and hold each word once")
        for split in SPLITS:
            x = getattr(self, f"{split}_x")
            if x.dtype != torch.int64 or x.ndim != 2:
                raise TypeError(f"{split}_x must be int64 of shape (n, L), got {x.dtype} of shape {tuple(x.shape)}")
            if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < len(self.vocabulary):
                raise ValueError(
                    f"{split}_x must hold indices in [0, {len(self.vocabulary)}), got {int(x.min())} to {int(x.max())}"
                )
            words = mask_of(x)
            if not words[:, :1].all() or (words[:, 1:] & ~words[:, :-1]).any():
                raise ValueError(f"{split}_x must hold texts of one word or more, with padding after the last one only")

    def text(self, row: Tensor) -> str:
        """The words of one text (L,), without its padding."""
        return " ".join(self.vocabulary[index] for index in row[mask_of(row)].tolist())


def mask_of(tokens: Tensor) -> Tensor:
    """True where there is a word, False where there is padding."""
    return tokens != PADDING


def pad(sequences: Sequence[Sequence[int] | np.ndarray], length: int | None = None) -> Tensor:
    """Sequences of indices as one int64 tensor (n, length): cut after `length` words (None: the longest's), padded."""
    if length is None:
        length = max((len(sequence) for sequence in sequences), default=0)
    padded = np.full((len(sequences), length), PADDING, np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence[:length]
    return torch.from_numpy(padded)


def text_names() -> tuple[str, ...]:
    """The names that `load_text` takes."""
    return tuple(READERS)


def load_text(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    length: int | None = None,
    vocabulary: int | None = None,
    limit: int | None = None,
    validation: float | int | None = None,
    seed: int = 0,
) -> TokenData:
    """A data set of texts as indices of words (n, L), padded, and int64 classes (n,).

    Args:
        name: one of `text_names()`: "imdb", film reviews, of which 1 is a positive one.
        root: the data folder; None takes LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers.
        length: L, words that are kept of each text, from its beginning; None keeps all that the files hold.
        vocabulary: number of indices, the first ones (padding, unknown words, then words by frequency in the training
            texts); rarer words become unknown ones. None keeps all.
        limit: number of training texts to keep, chosen at random with the classes in proportion; None keeps all.
        validation: share below 1, or number, of training texts to hold out for validation; None is a tenth.
        seed: of the choice of the validation texts and of `limit`. The test texts never change.

    Raises:
        FileNotFoundError: the files are missing; says which, where, and how to get them.
        TypeError, ValueError: an unknown name, a damaged file, or an argument out of range.
    """
    one_of("name", name, READERS)
    for argument, value, least in (("length", length, 1), ("vocabulary", vocabulary, 3), ("limit", limit, 1)):
        if value is not None:
            whole(argument, value, least=least)
    raw = READERS[name](data_root(root))
    words = (*SPECIAL, *raw.words)
    if vocabulary is not None and vocabulary > len(words):
        raise ValueError(f"vocabulary={vocabulary} exceeds the {len(words)} indices of {name}")
    words = words[:vocabulary]
    if length is None:
        length = max(int(np.diff(part.offsets).max()) for part in (raw.train, raw.test))

    def finish(part: Sequences) -> tuple[Tensor, Tensor]:
        x = pad([part.sequence(i) for i in range(len(part.labels))], length)
        return torch.where(x < len(words), x, UNKNOWN), torch.from_numpy(part.labels.astype(np.int64))

    train, val = held_out(*finish(raw.train), validation, seed, stratified=True)
    if limit is not None:
        if limit > len(train[1]):
            raise ValueError(f"limit={limit} exceeds the {len(train[1])} training texts of {name}")
        chosen, _ = stratified_split(train[1], limit, seed, "limit")
        train = (train[0][chosen], train[1][chosen])
    return TokenData(name, raw.num_classes, *train, *val, *finish(raw.test), vocabulary=words)
