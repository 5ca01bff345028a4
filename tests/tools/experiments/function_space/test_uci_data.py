"""The loader of the UCI sets: made files, damaged ones, and the real ones where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from experiments.function_space.uci_data import NAMES, load, standardise, validation_folds

from meta_tasks.datasets import data_root


def made(rows=20, splits=3, seed=0):
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(rows, 2))
    test = np.stack([stream.permutation(rows)[:4] for _ in range(splits)])
    return {"x": np.c_[x, np.full(rows, 0.1)], "y": x @ [3.0, -1.0] + 5, "test_index": test}


def write(root, arrays, name="yacht"):
    (root / "uci").mkdir(exist_ok=True)
    path = root / "uci" / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def test_load(tmp_path):
    arrays = made()
    write(tmp_path, arrays)
    data = load("yacht", tmp_path)
    np.testing.assert_array_equal(data.x, arrays["x"])
    np.testing.assert_array_equal(data.test_index, arrays["test_index"])
    for train, test in zip(data.train_index(), data.test_index, strict=True):
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(20))


def with_entry(key, index, value):
    def change(arrays):
        arrays[key] = arrays[key].copy()
        arrays[key][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("y"), "has no key 'y', only test_index, x"),
        (lambda a: a.update(x=a["x"][0]), r"key 'x': expected 2 axes of real numbers, got float64 \(3,\)"),
        (lambda a: a.update(test_index=a["test_index"] * 1.0), "key 'test_index': expected 2 axes of integers"),
        (lambda a: a.update(y=a["y"][:-1]), "key 'y': 19 targets for 20 rows"),
        (lambda a: a.update(x=a["x"][:0]), "key 'x': expected 2 axes"),
        (with_entry("x", (0, 0), np.nan), "key 'x': some values are not finite"),
        (with_entry("y", 3, np.inf), "key 'y': some values are not finite"),
        (with_entry("test_index", (0, 0), 20), r"key 'test_index': rows must lie in \[0, 20\)"),
        (with_entry("test_index", (0, 0), -1), r"key 'test_index': rows must lie in \[0, 20\)"),
        (lambda a: a.update(test_index=np.zeros((1, 2), int)), "key 'test_index': a split names a row twice"),
        (lambda a: a.update(y=np.array([None] * 20)), "cannot be read as an npz of plain arrays"),
    ],
)
def test_bad_files_are_refused_by_file_and_key(tmp_path, change, message):
    arrays = made()
    change(arrays)
    path = write(tmp_path, arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load("yacht", tmp_path)
    assert str(path) in str(caught.value)


def test_missing_truncated_and_unknown(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"yacht\.npz is missing"):
        load("yacht", tmp_path)
    path = write(tmp_path, made())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"yacht\.npz cannot be read as an npz of plain arrays"):
        load("yacht", tmp_path)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))  # one array where there should be an archive
    with pytest.raises(ValueError, match=r"yacht\.npz cannot be read as an npz of plain arrays"):
        load("yacht", tmp_path)
    with pytest.raises(ValueError, match="name='iris' is unknown"):
        load("iris", tmp_path)


def test_standardised_by_the_training_rows_alone(tmp_path):
    arrays = made()
    write(tmp_path, arrays)
    data = load("yacht", tmp_path)
    train, test = data.train_index(), data.test_index
    rows = standardise(data, train, test)
    assert rows.train_x.shape == (16, 3, 3)
    assert rows.test_y.shape == (4, 3)
    assert rows.train_x.mean(0).abs().max() < 1e-6
    torch.testing.assert_close(rows.train_x.std(0, correction=0)[:, :2], torch.ones(3, 2))
    assert (rows.train_x[:, :, 2] == 0).all()  # the constant column, 0.1, whose mean has a rounding error
    back = rows.test_y.double() * rows.deviation + rows.mean
    torch.testing.assert_close(back.T, data.y[test], atol=1e-5, rtol=0)
    # Planted: test targets that are far off must not move the scale.
    data.y[test[0]] += 1000
    torch.testing.assert_close(standardise(data, train[:1], test[:1]).deviation, rows.deviation[:1])


def test_validation_never_meets_the_test_rows(tmp_path):
    write(tmp_path, made())
    data = load("yacht", tmp_path)
    fit, held = validation_folds(data, 3)
    assert fit.shape == (3, 13)
    assert len(set(held.flatten().tolist())) == held.numel()
    for rows, left_out in zip(fit.tolist(), held.tolist(), strict=True):
        assert set(rows) | set(left_out) == set(data.train_index()[0].tolist())
        assert not set(rows) & set(left_out)
    with pytest.raises(ValueError, match=r"folds must lie in \[1, 5\], got 6"):
        validation_folds(data, 6)


@pytest.mark.parametrize("name", NAMES)
def test_real_files(name):
    if not (data_root(None) / "uci" / f"{name}.npz").is_file():
        pytest.skip(f"no uci/{name}.npz below {data_root(None)}; set LEARNED_SAMPLERS_DATA")
    data = load(name)
    assert data.test_index.shape[0] == (5 if name.startswith("protein") else 20)
    share = data.test_index.shape[1] / len(data.y)
    assert share == pytest.approx(0.1, abs=0.01)
    assert standardise(data, data.train_index()[:1], data.test_index[:1]).train_x.isfinite().all()
