"""The tables' splits and scores against known answers, every method on a small one, and a command that goes on."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas
import pytest
import tables
import torch
from experiments.harness.study import Findings
from experiments.tables import comparison, methods
from experiments.tables.comparison import Tables, TablesOptions, collapsed, plain
from experiments.tables.data import Table, load
from experiments.tables.ranks import ranks
from torch.distributions import Categorical, MixtureSameFamily, Normal

from learned_samplers.estimators import sampling
from meta_tasks.datasets.files import data_root


def line(rows=120, seed=0):
    """y = 3x + 0.5·ξ."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(rows, 2))
    return x, 3 * x[:, 0] + 0.5 * stream.normal(size=rows)


def parts(classes=False, rows=90):
    x, y = line(rows + 30)
    y = (y > 0).astype(np.int64) if classes else y
    return {"x_train": x[:rows], "y_train": y[:rows], "x_test": x[rows:], "y_test": y[rows:]}


def test_scores_are_those_of_the_mixture():
    stream = torch.Generator().manual_seed(0)
    means, spreads = (torch.randn(7, 40, generator=stream).double() for _ in range(2))
    spreads, aims = spreads.exp(), torch.randn(40, generator=stream).double()
    mixture = MixtureSameFamily(Categorical(torch.ones(40, 7)), Normal(means.T, spreads.T))
    components = methods.mixture(means.numpy(), spreads.numpy())
    np.testing.assert_allclose(components.log_density(aims.numpy()), mixture.log_prob(aims), atol=1e-6)
    for bound, share in zip(components.interval(), (0.05, 0.95), strict=True):
        np.testing.assert_allclose(mixture.cdf(torch.from_numpy(bound)), share, atol=1e-6)


def test_a_calibrated_prediction_covers_nine_tenths_and_a_narrow_one_does_not():
    stream = np.random.default_rng(0)
    aims = stream.normal(size=4000)
    shares = {}
    for spread in (1.0, 0.5):
        pieces = (
            methods.mixture(np.zeros((1, len(rows))), np.full((1, len(rows)), spread))
            for rows in np.split(aims, range(methods.CHUNK, 4000, methods.CHUNK))
        )
        shares[spread] = methods.regression_scores(pieces, aims, 2.0)
    assert abs(shares[1.0]["coverage"] - 0.9) < 0.015  # three standard errors
    assert shares[1.0]["width"] == pytest.approx(2 * 1.6449 / 2, rel=1e-3)
    assert abs(shares[0.5]["coverage"] - 0.5892) < 0.024
    assert shares[0.5]["lpd"] < shares[1.0]["lpd"]


def test_splits_do_not_meet_and_a_gap_is_the_middle_third_of_a_feature():
    x, y = line(90)
    x[:, 0] = x[:, 0].round()  # fewer distinct values than the other feature
    table = Table("airfoil", x, y)
    for split in ("0", "1", "gap0", "gap1"):
        rows = table.split(split)
        assert sorted(np.concatenate(list(rows.values()))) == list(range(90))
    gap, column = table.split("gap0")["gap"], x[:, 1]
    assert len(gap) == 30
    assert (column < column[gap].min()).sum() == (column > column[gap].max()).sum() == 30
    with_splits = Table("yacht", x, y, np.array([[3, 5], [7, 8]]))
    assert with_splits.split("1")["test"].tolist() == [7, 8]
    balanced = load("iris", None, "").split("0")["test"]
    assert len(balanced) == 30
    assert np.bincount(load("iris", None, "").y[balanced]).tolist() == [10, 10, 10]


def test_words_become_columns_and_holes_are_filled_as_the_training_rows_say():
    frame = pandas.DataFrame({"a": [1.0, None, 3.0, 8.0, 1000.0], "b": ["x", "y", None, "x", "z"]})
    numbers = Table("cars", frame, np.zeros(5)).numbers(np.arange(4))
    np.testing.assert_array_equal(numbers[:, 0], [1, 3, 3, 8, 1000])  # the median of the first four
    np.testing.assert_array_equal(numbers[:, 1:], [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]])


def test_cars_without_their_package_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vega_datasets", None)
    with pytest.raises(FileNotFoundError, match=r"vega_datasets; install learned-samplers\[rivals\]"):
        load("cars", None, "")


def test_cars_and_mushrooms_are_tables_of_numbers():
    pytest.importorskip("vega_datasets")
    cars = load("cars", None, "")
    assert cars.x["Horsepower"].isna().sum() == 6
    rows = comparison.rows_of(cars, "0")
    assert rows["x_train"].shape == (358, 9)
    assert all(np.isfinite(values).all() for values in rows.values())
    root = data_root()
    if not (root / "mushroom").is_dir():
        pytest.skip(f"no mushroom under {root}")
    rows = comparison.rows_of(load("mushrooms", root, ""), "0")
    assert (len(rows["x_train"]), len(rows["x_test"])) == (200, 1000)
    assert set(np.unique(rows["x_train"])) == {0.0, 1.0}
    assert abs(rows["y_test"].mean() - 3916 / 8124) < 0.001  # stratified


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("method", ["ours", "ours-conformal", "ours-search", "ensemble", "dropout", "gp"])
def test_every_method_knows_more_than_the_targets_alone(method, classes, monkeypatch):
    short = {"warmup_steps": 400, "tuning_steps": 150, "n_steps": 200}
    for name in ("BayesianMLPRegressor", "BayesianMLPClassifier"):
        cls = getattr(comparison, name)
        monkeypatch.setattr(f"learned_samplers.estimators.{name}", lambda cls=cls, **options: cls(**options | short))
    train = sampling.warm_up
    monkeypatch.setattr(sampling, "warm_up", lambda *a, steps, **own: train(*a, steps=min(steps, 400), **own))
    rows = parts(classes)
    if method == "ours-conformal" and classes:
        with pytest.raises(ValueError, match="intervals"):
            methods.measure(method, 0, rows)
        return
    result = methods.measure(method, 0, rows)
    scores = result["parts"]["test"]
    assert scores["lpd"] > plain(rows, "test") + 0.3
    assert result["seconds"] > 0
    assert result["megabytes"] > 10
    if classes:
        assert scores["accuracy"] > 0.8
    else:
        assert scores["rmse"] < 1.3  # of 3; the noise has 0.5
        assert 0.7 < scores["coverage"] <= 1


def test_the_intervals_of_ours_conformal_are_the_conformal_ones(monkeypatch):
    short = {"warmup_steps": 50, "tuning_steps": 20, "n_steps": 20, "n_samples": 5}
    monkeypatch.setattr(
        "learned_samplers.estimators.BayesianMLPRegressor",
        lambda **options: comparison.BayesianMLPRegressor(**short, **options),
    )
    monkeypatch.setattr("learned_samplers.estimators.regressor.conformal_scale", lambda *_: 100.0)
    widths = {m: methods.measure(m, 0, parts())["parts"]["test"]["width"] for m in ("ours", "ours-conformal")}
    assert widths["ours-conformal"] > 10 * widths["ours"]


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("method", ["ngboost", "catboost", "forest", "conformal", "logistic", "tabm"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the packages
def test_rivals_score_like_the_other_methods(method, classes, monkeypatch):
    monkeypatch.setattr(methods.rivals, "TABM_PATIENCE", 1)
    if method != "logistic":
        pytest.importorskip({"forest": "quantile_forest", "conformal": "crepes"}.get(method, method))
    if method in ("logistic", "tabm") and not classes:
        with pytest.raises(ValueError, match=r"classes|numbers"):
            methods.measure(method, 0, parts())
        return
    rows = parts(classes, rows=400)  # of fewer NGBoost learns the noise by heart
    rows |= {name: np.c_[values, np.ones(len(values))] for name, values in rows.items() if name.startswith("x_")}
    scores = methods.measure(method, 0, rows)["parts"]["test"]
    if classes:
        assert scores["accuracy"] > 0.8
    else:
        assert scores["rmse"] < 1.5
        assert 0.6 < scores["coverage"] <= 1
        has_density = method in ("ngboost", "catboost")
        assert (scores["lpd"] is not None) == has_density
        assert not has_density or scores["lpd"] > plain(rows, "test") + 0.3
    assert not collapsed({"parts": {"test": scores}, "plain": {"test": plain(rows, "test")}})


def test_ranks_are_means_over_sets_and_a_collapse_is_last():
    def run(lpd, rmse=1.0, coverage=0.9):
        scores = {"lpd": lpd, "rmse": rmse, "coverage": coverage}
        return [{"parts": {"test": scores}, "plain": {"test": 0.0}, "seconds": 2.0}]

    findings = Findings(
        {
            "yacht 0": {"a": run(3.0, 1.0), "b": run(1.0, 2.0), "c": run(None, 3.0, 0.8)},
            "yacht 1": {"a": run(1.0, 1.0), "b": run(2.0, 2.0), "c": run(None, 3.0, 0.8)},
            "concrete 0": {"a": run(-1.0), "b": run(0.5, 2.0), "c": run(None, 1.5, 0.9)},
        }
    )
    first, second, third = ranks(findings, ("yacht", "concrete"), ("lpd", "rmse"))
    assert first["rank in density"] == "1.50 (2 sets)"  # 2.0 before 1.5, and collapsed
    assert second["rank in density"] == "1.50 (2 sets)"
    assert third["rank in density"] == "–"  # it has no density
    assert [row["rank in RMSE"][:4] for row in (first, second, third)] == ["2.00", "2.00", "2.00"]
    assert third["coverage, %"] == "85.0"
    assert third["90 ± 2 on"] == "1 of 2"
    assert first["CPU-seconds"] == "2.0"


def test_what_knows_less_than_the_targets_alone_has_collapsed():
    rows = parts()
    level = {"test": plain(rows, "test")}
    assert not collapsed({"parts": {"test": {"lpd": level["test"] + 0.1}}, "plain": level})
    assert collapsed({"parts": {"test": {"lpd": level["test"] - 0.1}}, "plain": level})
    assert collapsed({"parts": {"test": {"lpd": float("nan")}}, "plain": level})
    assert collapsed({"parts": {}, "failed": "it did", "plain": {}})


def test_the_command_goes_on_counts_what_failed_and_answers(tmp_path, monkeypatch):
    made = []

    def run(options, method, split, rows):
        made.append(method)
        if method == "dropout":
            return {"failed": "diverged", "parts": {}}
        scores = {"lpd": 5.0 + (method == "ours"), "rmse": 1.0, "coverage": 0.91, "width": 1.0}
        return {"parts": {"test": scores}, "seconds": 10.0 if method == "ours" else 30.0, "megabytes": 100.0}

    monkeypatch.setattr(comparison, "run", run)
    monkeypatch.setattr(comparison, "load", lambda name, *_: Table(name, *line()))
    command = ["--sets", "airfoil", "--splits", "0", "--out", str(tmp_path), "--methods"]
    tables.main([*command, "ours", "dropout"])
    tables.main([*command, "ours", "bde", "dropout"])
    assert made == ["ours", "dropout", "bde"]
    text = (tmp_path / "table.md").read_text()
    assert "at least bde's: 1 of 1 sets (airfoil)" in text
    assert "or less too: 1 of 1" in text
    assert "–†" in text
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert list(runs["airfoil 0"]) == ["ours", "bde", "dropout"]


def test_a_run_is_a_process_of_its_own_and_one_that_fails_says_why(tmp_path):
    options = TablesOptions(out=tmp_path, sets=("yacht",))
    result = comparison.run(options, "gp", "0", parts())
    assert result["parts"]["test"]["lpd"] > plain(parts(), "test")
    broken = parts() | {"x_train": np.full((90, 2), np.nan)}
    assert "NaN" in comparison.run(options, "gp", "0", broken)["failed"]
    bare = tmp_path / "python"  # one without the package
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'bde'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    for method in ("bde", "bde-benchmark"):
        with pytest.raises(FileNotFoundError, match=rf"{bare} has no package bde; .*learned-samplers\[bde\]"):
            comparison.run(TablesOptions(out=tmp_path, bde_python=str(bare)), method, "0", parts())


def test_the_options_are_checked():
    with pytest.raises(SystemExit):
        tables.main(["--sets", "concrit"])
    with pytest.raises(ValueError, match="limit"):
        TablesOptions(limit=0)
    options = TablesOptions(splits=("0", "gap0"), sets=("iris", "yacht", "cars"))
    assert Tables(options).problems() == ["iris 0", "yacht 0", "cars 0", "yacht gap0"]  # classes, words have no gaps
    few = TablesOptions(splits=("4", "5"), sets=("protein-tertiary-structure",))
    assert Tables(few).problems() == ["protein-tertiary-structure 4"]
    assert "logistic" not in Tables(options).methods("yacht 0")
