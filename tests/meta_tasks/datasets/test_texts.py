"""Texts: IMDB's archive and the prepared arrays; padding, vocabulary, and what is refused."""

import gzip
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from meta_tasks.datasets import load_text, mask_of, pad, texts
from meta_tasks.datasets.texts import words_of
from tests.meta_tasks.datasets.imdb_archive import write_archive


def write_prepared(root, **changes):
    """Four training and two test reviews over the words a, b, c."""
    (root / "imdb").mkdir()
    (root / "imdb" / "vocabulary.txt").write_text("a\nb\nc\n")
    arrays = {
        "train_tokens": np.array([2, 3, 4, 1, 2, 2, 3], np.uint16),
        "train_offsets": np.array([0, 2, 4, 5, 7]),
        "train_labels": np.array([0, 1, 0, 1], np.uint8),
        "test_tokens": np.array([4, 4, 4, 2], np.uint16),
        "test_offsets": np.array([0, 3, 4]),
        "test_labels": np.array([1, 0], np.uint8),
    }
    arrays.update(changes)
    np.savez(root / "imdb" / "imdb.npz", **{name: array for name, array in arrays.items() if array is not None})


def test_words_keep_apostrophes_and_drop_marks_and_line_breaks():
    assert words_of("It's GREAT -- 'really'!<br />Été_2 isn't") == ["it's", "great", "really", "été", "2", "isn't"]


def test_the_archive(tmp_path):
    write_archive(tmp_path)
    data = load_text("imdb", tmp_path, validation=2)
    assert (data.num_data, len(data.val_y), len(data.test_y), data.num_classes) == (10, 2, 4, 2)
    assert data.test_y.tolist() == [0, 0, 1, 1]
    assert data.text(data.test_x[2]) == "a good film really good i'd see it again"
    # The training texts alone make the vocabulary, and those without a label are not read.
    assert data.text(data.test_x[3]) == "a good film really good i'd see it again fine <unknown>"
    assert not {"unsupervised", "words", "unheard"} & set(data.vocabulary)


def test_vocabulary_by_frequency_length_and_limit(tmp_path):
    write_archive(tmp_path)
    data = load_text("imdb", tmp_path, validation=0)
    # "poor" and "fine" stand 15 times in the training texts, "a", "film" and "good" 12.
    assert data.vocabulary[:7] == ("<padding>", "<unknown>", "fine", "poor", "a", "film", "good")
    small = load_text("imdb", tmp_path, vocabulary=6, validation=0)
    assert small.vocabulary == data.vocabulary[:6]
    assert small.text(small.test_x[2]) == "a <unknown> film" + " <unknown>" * 6
    short, long = (load_text("imdb", tmp_path, length=n, validation=0) for n in (3, 50))
    assert short.text(short.test_x[2]) == "a good film"
    assert long.input_shape == (50,)
    assert long.text(long.test_x[2]) == "a good film really good i'd see it again"
    assert mask_of(long.test_x[2]).sum() == 9
    limited = load_text("imdb", tmp_path, limit=4, validation=2)
    assert limited.train_y.sort().values.tolist() == [0, 0, 1, 1]  # the classes in proportion
    assert torch.equal(limited.test_x, data.test_x)


def test_prepared_arrays(tmp_path):
    write_prepared(tmp_path)
    data = load_text("imdb", tmp_path, validation=0)
    assert data.train_x.tolist() == [[2, 3, 0], [4, 1, 0], [2, 0, 0], [2, 3, 0]]
    assert data.vocabulary == ("<padding>", "<unknown>", "a", "b", "c")
    assert [data.text(row) for row in data.test_x] == ["c c c", "a"]
    assert data.train_y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_labels": None}, r"imdb\.npz lacks train_labels"),
        ({"train_labels": np.array([0, 1, 0, 2])}, "train_labels"),
        ({"test_offsets": np.array([0, 5, 4])}, "test_offsets"),
        ({"test_offsets": np.array([0, 3])}, "test_offsets"),
        ({"test_offsets": np.array([0.0, 3.0, 4.0])}, "one-dimensional and of integers"),
        ({"train_tokens": np.array([2, 3, 4, 1, 2, 2, 5])}, "train_tokens"),
        ({"train_tokens": np.array([2, 3, 4, 1, 2, 2, 0])}, "train_tokens"),
    ],
)
def test_damaged_arrays_are_refused_by_name(tmp_path, changes, match):
    write_prepared(tmp_path, **changes)
    with pytest.raises(ValueError, match=match):
        load_text("imdb", tmp_path)


def giant_extension(path):
    """An archive whose first header claims 64 GiB of names."""
    member = tarfile.TarInfo("aclImdb/x")
    member.type, member.size = tarfile.XHDTYPE, 2**36
    path.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(3_000_000)))


@pytest.mark.parametrize("name", ["train/unsup/1_0.txt", "large.bin", None])
def test_an_archive_that_unpacks_to_far_too_much_is_refused_midway(tmp_path, monkeypatch, name):
    path = write_archive(tmp_path, {name: bytes(3_000_000)} if name else None)
    if name is None:
        giant_extension(path)
    monkeypatch.setattr(texts, "most_unpacked", lambda _: 1_000_000)
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="unpacks to more than 1000000 bytes"):
        load_text("imdb", tmp_path)


@pytest.mark.parametrize(
    ("more", "content", "named"),
    [
        ({}, lambda whole: whole[:-200], "is not a whole archive"),
        ({}, lambda whole: b"<html>", "is not a whole archive"),
        ({"train/pos/99_9.txt": b" " * (2**20 + 1)}, None, r"99_9\.txt in .* has 1048577 bytes"),
        ({f"test/pos/{i}_9.txt": None for i in range(2)}, None, r"must hold test/pos/\*\.txt"),
    ],
)
def test_an_archive_that_is_none_is_refused(tmp_path, more, content, named):
    path = write_archive(tmp_path, more)
    if content:
        path.write_bytes(content(path.read_bytes()))
    with pytest.raises(ValueError, match=named):
        load_text("imdb", tmp_path)


def test_missing_files_are_named_with_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"imdb: no .*aclImdb_v1\.tar\.gz.* need not be unpacked"):
        load_text("imdb", tmp_path)
    write_prepared(tmp_path)
    (tmp_path / "imdb" / "vocabulary.txt").unlink()
    with pytest.raises(FileNotFoundError, match="needs its vocabulary"):
        load_text("imdb", tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"name": "mnist"}, ValueError, "name"),
        ({"length": 0}, ValueError, "length"),
        ({"vocabulary": 2}, ValueError, "vocabulary"),
        ({"vocabulary": 6}, ValueError, "vocabulary=6"),
        ({"limit": 5, "validation": 0}, ValueError, "limit=5"),
        ({"validation": 4}, ValueError, "validation"),
    ],
)
def test_bad_arguments_are_named(tmp_path, options, error, named):
    write_prepared(tmp_path)
    with pytest.raises(error, match=named):
        load_text(**{"name": "imdb", "root": tmp_path, **options})


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"vocabulary": ("<unknown>", "a", "b", "c")}, ValueError, "vocabulary"),
        ({"vocabulary": ("<padding>", "<unknown>", "a", "b", "a")}, ValueError, "vocabulary"),
        *(({"test_x": torch.tensor([x])}, ValueError, "test_x") for x in ([2, 0, 3], [0, 0, 0], [2, 5, 0])),
        ({"test_x": torch.tensor([[2.0, 3.0, 0.0]])}, TypeError, "test_x"),
    ],
)
def test_tokens_that_are_no_texts_are_refused(tmp_path, changes, error, named):
    write_prepared(tmp_path)
    data = load_text("imdb", tmp_path, validation=0)
    with pytest.raises(error, match=named):
        replace(data, **{"test_y": torch.tensor([0]), **({"test_x": data.test_x[:1]} | changes)})


def test_pad_cuts_and_fills():
    assert pad([[1, 2, 3], [4]]).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert pad([[1, 2, 3], [4]], 2).tolist() == [[1, 2], [4, 0]]
    assert pad([[4]], 3).tolist() == [[4, 0, 0]]
