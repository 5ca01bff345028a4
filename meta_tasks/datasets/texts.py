"""Texts as indices of words: `TokenData`, `load_text`, and the reader of film reviews (IMDB, Maas et al., 2011)."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.validation import integer, one_of
from meta_tasks.datasets.arrays import ArrayData
from meta_tasks.datasets.files import data_root, missing, most_unpacked, read_npz
from meta_tasks.datasets.images import SPLITS, Examples, held_out, limited

__all__ = ["TokenData", "load_text", "mask_of", "pad", "text_names", "words_of"]

#: Indices that stand for no word, and for a word that the vocabulary lacks; and what stands there in a vocabulary.
PADDING, UNKNOWN = 0, 1
SPECIAL = ("<padding>", "<unknown>")
#: Words in the vocabulary that is made of IMDB's archive, and words kept of each of its reviews.
WORDS, LONGEST = 19_998, 400
# The longest review has 14,000 characters, and there are 50,000 with a label.
_MOST_BYTES, _MOST_REVIEWS = 2**20, 200_000
_REVIEW = re.compile(r"(?:^|/)(train|test)/(pos|neg)/[^/]+\.txt$")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_CLASSES = ("neg", "pos")


# --- texts as tensors ---------------------------------------------------------------------------------------------


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
        for name in SPLITS:
            x, _ = self.split(name)
            if x.dtype != torch.int64 or x.ndim != 2:
                raise TypeError(f"{name}_x must be int64 of shape (n, L), got {x.dtype} of shape {tuple(x.shape)}")
            if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < len(self.vocabulary):
                raise ValueError(
                    f"{name}_x must hold indices in [0, {len(self.vocabulary)}), got {int(x.min())} to {int(x.max())}"
                )
            words = mask_of(x)
            if not words[:, :1].all() or (words[:, 1:] & ~words[:, :-1]).any():
                raise ValueError(f"{name}_x must hold texts of one word or more, with padding after the last one only")

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


@dataclass(frozen=True)
class Sequences:
    """Texts as indices laid end to end: ``tokens`` (sum of lengths,), ``offsets`` (n + 1,) and ``labels`` (n,)."""

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray

    def padded(self, length: int, vocabulary: int) -> Examples:
        """Indices (n, length), those beyond the vocabulary and texts without words as `UNKNOWN`; and labels."""
        texts = np.split(self.tokens, self.offsets[1:-1])
        x = pad([text if len(text) else np.array([UNKNOWN]) for text in texts], length)
        return torch.where(x < vocabulary, x, UNKNOWN), torch.from_numpy(self.labels.astype(np.int64))


@dataclass(frozen=True)
class RawText:
    """Texts as a reader returns them; the first of ``words`` has the index 2."""

    num_classes: int
    words: tuple[str, ...]
    train: Sequences
    test: Sequences


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
        validation: fraction (a float below 1), or number, of training texts to hold out for validation; None is a
            tenth.
        seed: of the choice of the validation texts and of `limit`. The test texts never change.

    Raises:
        FileNotFoundError: the files are missing; says which, where, and how to get them.
        TypeError, ValueError: an unknown name, a damaged file, or an argument out of range.
    """
    one_of("name", name, READERS)
    for argument, value, least in (("length", length, 1), ("vocabulary", vocabulary, 3)):
        if value is not None:
            integer(argument, value, least=least)
    raw = READERS[name](data_root(root))
    words = (*SPECIAL, *raw.words)
    if vocabulary is not None and vocabulary > len(words):
        raise ValueError(f"vocabulary={vocabulary} exceeds the {len(words)} indices of {name}")
    words = words[:vocabulary]
    if length is None:
        length = max(int(np.diff(part.offsets).max()) for part in (raw.train, raw.test))
    train, val = held_out(*raw.train.padded(length, len(words)), validation, seed)
    train, test = limited(train, limit, seed, name), raw.test.padded(length, len(words))
    return TokenData(name, raw.num_classes, *train, *val, *test, vocabulary=words)


# --- IMDB ---------------------------------------------------------------------------------------------------------


def read_imdb(root: Path) -> RawText:
    """IMDB from the first of these below the data folder that is there.

    ``imdb/imdb.npz`` with ``imdb/vocabulary.txt`` (arrays ``train_tokens``, ``train_offsets``, ``train_labels`` and the
    same of the test reviews; line k of the vocabulary is the word of index k + 1); ``aclImdb_v1.tar.gz``, which is read
    as it is. The vocabulary of the latter holds the most frequent words of the training reviews.

    Raises:
        FileNotFoundError: there is none of them.
        ValueError: a file is damaged, or far larger than such a file is.
    """
    prepared, archive = root / "imdb" / "imdb.npz", root / "aclImdb_v1.tar.gz"
    if prepared.is_file():
        return _read_prepared(prepared, root / "imdb" / "vocabulary.txt")
    if archive.is_file():
        return _indexed(_reviews_in_archive(archive), archive)
    source = f"https://ai.stanford.edu/~amaas/data/sentiment/{archive.name}"
    wanted = f"{archive.name} or imdb/{prepared.name} in {root}"
    missing("imdb", wanted, f"save {source} in {root}; it need not be unpacked")


#: Name → what reads the data set from the data folder.
READERS: dict[str, Callable[[Path], RawText]] = {"imdb": read_imdb}


def words_of(text: str) -> list[str]:
    """The words of a text in lower case: letters and digits, with apostrophes inside; line breaks of HTML are none."""
    return _WORD.findall(text.replace("<br />", " ").lower())


def _read_prepared(path: Path, vocabulary: Path) -> RawText:
    if not vocabulary.is_file():
        raise FileNotFoundError(f"imdb: {path} needs its vocabulary, and there is no {vocabulary}")
    if vocabulary.stat().st_size > _MOST_BYTES * 16:
        raise ValueError(f"{vocabulary} has {vocabulary.stat().st_size} bytes, a vocabulary at most {_MOST_BYTES * 16}")
    words = tuple(vocabulary.read_text(encoding="utf-8").split())
    arrays = read_npz(path)
    parts = {}
    for split in ("train", "test"):
        keys = [f"{split}_{array}" for array in ("tokens", "offsets", "labels")]
        if absent := [key for key in keys if key not in arrays]:
            raise ValueError(f"{path} lacks {', '.join(absent)}; it has {', '.join(sorted(arrays)) or 'no arrays'}")
        tokens, offsets, labels = (arrays[key] for key in keys)
        if not all(x.ndim == 1 and np.issubdtype(x.dtype, np.integer) for x in (tokens, offsets, labels)):
            raise ValueError(f"the {split} arrays of {path} must be one-dimensional and of integers")
        offsets = offsets.astype(np.int64)
        ends = len(offsets) and (offsets[0], offsets[-1]) == (0, len(tokens))
        if not ends or (np.diff(offsets) < 0).any() or len(offsets) != len(labels) + 1 or not len(labels):
            raise ValueError(
                f"{split}_offsets of {path} must rise from 0 to the {len(tokens)} tokens, one more than the "
                f"{len(labels)} labels"
            )
        if len(tokens) and not UNKNOWN <= tokens.min() <= tokens.max() < len(words) + 2:
            raise ValueError(f"{split}_tokens of {path} must lie in [1, {len(words) + 2}), as {vocabulary} says")
        if not 0 <= labels.min() <= labels.max() <= 1:
            raise ValueError(f"{split}_labels of {path} must be 0 or 1")
        parts[split] = Sequences(tokens, offsets, labels)
    return RawText(2, words, **parts)


Review = tuple[str, int, str]  # split, label, text


def _reviews_in_archive(path: Path) -> Iterator[Review]:
    """Yield the reviews of the tar file, which is read once, from front to back; nothing is unpacked to disk."""
    try:
        with _Bounded(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r|") as archive:
            for member in archive:
                match = _REVIEW.search(member.name)
                file = archive.extractfile(member) if match and member.isfile() else None
                if match is None or file is None:
                    continue
                if member.size > _MOST_BYTES:
                    raise ValueError(f"{member.name} in {path} has {member.size} bytes, a review at most {_MOST_BYTES}")
                yield match[1], _CLASSES.index(match[2]), file.read().decode("utf-8", errors="replace")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole archive: {error}") from error


class _Bounded(gzip.GzipFile):
    """A compressed file that raises ValueError once more than `most_unpacked` bytes of it have been asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._most = self._left = most_unpacked(path)

    def read(self, size: int | None = -1) -> bytes:
        self._left -= self._left + 1 if size is None or size < 0 else size
        if self._left < 0:
            raise ValueError(f"{self.name} unpacks to more than {self._most} bytes: it is no such archive")
        return super().read(size)


def _indexed(reviews: Iterator[Review], source: Path) -> RawText:
    """Reviews as indices of the most frequent words of the training reviews, equally frequent ones by alphabet."""
    parts: dict[str, list[tuple[int, list[str]]]] = {"train": [], "test": []}
    count: Counter[str] = Counter()
    for number, (split, label, text) in enumerate(reviews, start=1):
        if number > _MOST_REVIEWS:
            raise ValueError(f"{source} holds more than {_MOST_REVIEWS} reviews")
        words = words_of(text)
        parts[split].append((label, words[:LONGEST]))
        if split == "train":
            count.update(words)
    for split, part in parts.items():
        if {label for label, _ in part} != {0, 1}:
            raise ValueError(f"{source} must hold {split}/pos/*.txt and {split}/neg/*.txt, one or more each")
    words = sorted(count, key=lambda word: (-count[word], word))[:WORDS]
    index = {word: i for i, word in enumerate(words, start=UNKNOWN + 1)}

    def sequences(part: list[tuple[int, list[str]]]) -> Sequences:
        part.sort(key=lambda review: review[0])  # whatever the order of the archive, the classes one after the other
        lengths = [len(review) for _, review in part]
        tokens = np.array([index.get(word, UNKNOWN) for _, review in part for word in review], np.int64)
        return Sequences(tokens, np.cumsum([0, *lengths]), np.array([label for label, _ in part]))

    return RawText(2, tuple(words), sequences(parts["train"]), sequences(parts["test"]))
