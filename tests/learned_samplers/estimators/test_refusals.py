"""Refusals of the estimators: an error of its class that names the argument or the column."""

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor, base
from tests.learned_samplers.estimators import common

#: The fits are cut short on purpose: their chains have not settled.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

#: Nothing here asks for a good fit.
SMALL = {**common.SMALL, "n_steps": 5, "tuning_steps": 5, "warmup_steps": 5}
X, Y = common.table(20)
FRAME = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(1, 0, 20) ** 2})
THREE = [[0.0], [1.0], [2.0]]
DATES = pd.to_datetime(["2026-01-01", None])


def fit(x=X, y=Y, **settings):
    return BayesianMLPRegressor(**{**SMALL, **settings}).fit(x, y)


def classify(x=X, y=Y > 10, **settings):
    return BayesianMLPClassifier(**{**SMALL, **settings}).fit(x, y)


@pytest.fixture(scope="module", name="fitted")
def _fitted():
    return fit(FRAME, FRAME["a"], warn_unsettled=False)


def continued(**settings):
    model = fit(warm_start=True)
    return model.set_params(**settings).fit(X, Y)


def other_classes():
    model = classify(warm_start=True)
    return model.fit(X, np.where(Y > 10, "a", "b"))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: fit(hidden_layer_sizes=8), TypeError, "hidden_layer_sizes.*8"),
        (lambda: fit(hidden_layer_sizes=(0,)), ValueError, "hidden_layer_sizes.*0"),
        (lambda: fit(activation="step"), ValueError, "activation.*'step'"),
        (lambda: fit(noise="none"), ValueError, "noise.*'none'"),
        (lambda: fit(noise=0.0), ValueError, "noise.*0"),
        (lambda: fit(noise=None), TypeError, "noise.*None"),
        (lambda: fit(likelihood="cauchy"), ValueError, "likelihood.*'cauchy'"),
        (lambda: fit(n_chains=0), ValueError, "n_chains.*0"),
        (lambda: fit(n_steps=3), ValueError, "n_steps.*3"),
        (lambda: fit(prior_precision=0), ValueError, "prior_precision.*0"),
        (lambda: fit(batch_size=0), ValueError, "batch_size.*0"),
        (lambda: fit(validation_fraction=1.0), ValueError, "validation_fraction.*1"),
        (lambda: fit(calibration_fraction=1.0), ValueError, "calibration_fraction.*1"),
        (lambda: fit(calibration_fraction=0.95), ValueError, "calibration_fraction.*2 of 20"),
        (lambda: fit(n_jobs=0), ValueError, "n_jobs.*0"),
        (lambda: fit(verbose="loud"), ValueError, "verbose.*'loud'"),
        (lambda: fit(warm_start=None), ValueError, "warm_start.*None"),
        (lambda: fit(warn_unsettled="no"), ValueError, "warn_unsettled.*'no'"),
        (lambda: fit(random_state="x"), ValueError, "'x'"),
        (lambda: continued(n_chains=3), ValueError, "warm_start.*2 chains.*n_chains=3"),
        (lambda: continued(hidden_layer_sizes=(8, 8)), ValueError, r"warm_start.*\(8,\).*\(8, 8\)"),
        (lambda: continued(activation="relu"), ValueError, "warm_start.*activation.*'relu'"),
        (lambda: continued(noise="homoscedastic"), ValueError, "warm_start.*2 outputs.*1 outputs"),
        (
            lambda: fit(warm_start=True, noise="homoscedastic").set_params(noise=0.1).fit(X, Y),
            ValueError,
            "warm_start.*noise",
        ),
        (lambda: fit(np.c_[X, X], warm_start=True).fit(X, Y), ValueError, "features"),
        (lambda: fit(FRAME, warm_start=True).fit(FRAME[["b", "a"]], Y), ValueError, "feature names"),
        (
            lambda: fit(warm_start=True).set_params(noise=0.1).fit(X, np.c_[Y, Y]),
            ValueError,
            "warm_start.*1 targets, y has 2",
        ),
        (lambda: classify(y=np.array(["a", 1] * 10, dtype=object)), TypeError, "y.*several types"),
        (other_classes, ValueError, r"warm_start.*\[False, True\].*\['a', 'b'\]"),
        (lambda: BayesianMLPRegressor(**SMALL).fit(X, Y, np.full(20, -1.0)), ValueError, "sample_weight"),
        (
            lambda: BayesianMLPRegressor(**SMALL).fit(X, Y, np.zeros(20)),
            ValueError,
            "sample_weight must be .* got 0 of 20",
        ),
        (lambda: BayesianMLPRegressor(**SMALL).fit(X, Y, np.ones(3)), ValueError, "sample_weight"),
        (lambda: classify(y=["a"] * 20), ValueError, r"class.*'a'"),
        (lambda: fit([[np.nan], [1.0], [2.0]], [1, 2, 3]), ValueError, "X.*column 0.*missing"),
        (lambda: fit(THREE, [1, np.inf, 3]), ValueError, "y.*infinite"),
        (lambda: fit([[0.0]], [1]), ValueError, "1 sample"),
        (lambda: fit([[1.0, "2"], [2.0, "red"], [3.0, "3"]], [1, 2, 3]), ValueError, "X.*column 1.*'red'"),
        (lambda: fit([[1.0, None], [2.0, 2.0], [3.0, 3.0]], [1, 2, 3]), ValueError, "X.*column 1.*missing"),
        (
            lambda: fit(pd.DataFrame({"a": [1.0, 2.0], "b": pd.array([1, None], "Int64")}), [1, 2]),
            ValueError,
            "X.*'b'.*missing",
        ),
        (
            lambda: fit(pd.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"]}), [1, 2]),
            ValueError,
            "'colour'.*'red'",
        ),
        (lambda: fit(pd.DataFrame({"size": [1.0, 2.0], "day": DATES}), [1, 2]), ValueError, "'day'.*dates"),
        (lambda: fit(pd.DataFrame({"day": DATES}), [1, 2]), ValueError, "X holds dates"),
        (lambda: fit(pd.DataFrame({"day": DATES.tz_localize("UTC")}), [1, 2]), ValueError, "X holds dates"),
        (
            lambda: fit(pd.DataFrame({"n": [1.0, 2.0], "p": pd.period_range("2026", periods=2)}), [1, 2]),
            ValueError,
            "'p'.*dates",
        ),
        (lambda: fit(np.array(["2026-01-01", "NaT"], "datetime64[ns]")[:, None], [1, 2]), ValueError, "X holds dates"),
        (lambda: fit([[0.0], [1.0]], np.array([1, 2], "timedelta64[s]")), ValueError, "y holds dates or times"),
        (lambda: fit(THREE, [1, "two", 3]), ValueError, "y.*'two'.*BayesianMLPClassifier"),
        (lambda: fit(THREE, [1, None, 3]), ValueError, "y.*leave these rows out"),
        (
            lambda: classify(THREE, pd.Series(pd.to_datetime(["2025", "2026", None]))),
            ValueError,
            "y has missing labels",
        ),
        (
            lambda: make_pipeline(OneHotEncoder(), BayesianMLPRegressor(**SMALL)).fit([["red"], ["blue"]], [1.0, 2.0]),
            TypeError,
            r"sparse_output=False",
        ),
    ],
)
def test_fits(call, error, named):
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda m: m.predict(FRAME.assign(id="A17")), ValueError, "unseen at fit time:\n- id"),
        (lambda m: m.predict(pd.DataFrame({"a": [np.nan], "c": [2.0]})), ValueError, "unseen at fit time:\n- c"),
        (lambda m: m.predict(1e60 * FRAME), ValueError, "^X "),
        (
            lambda m: m.predict(FRAME, return_std=True, quantiles=0.5),
            ValueError,
            "return_std, return_cov and quantiles",
        ),
        (lambda m: m.predict(FRAME, quantiles=(0.5, 1.0)), ValueError, "quantiles.*1"),
        (lambda m: m.predict(FRAME, quantiles=[]), ValueError, "quantiles.*least"),
        (lambda m: m.predict(FRAME, quantiles="half"), TypeError, "quantiles.*'half'"),
        (lambda m: m.predict_interval(FRAME, 1.5), ValueError, r"coverage.*1\.5"),
        (lambda m: m.predict_interval(FRAME, conformal=True), ValueError, "conformal.*calibration_fraction"),
        (lambda m: m.predict_interval(FRAME, conformal="yes"), ValueError, "conformal.*'yes'"),
        (lambda m: m.sample_y(FRAME, 0), ValueError, "n_samples.*0"),
        (lambda m: m.log_density(FRAME, pd.Series(pd.to_datetime(["2026"] * 20))), ValueError, "y holds dates"),
        (lambda m: m.log_density(FRAME, np.full(20, np.nan)), ValueError, "y must be finite"),
        (lambda m: m.log_density(FRAME, Y[:3]), ValueError, "inconsistent"),
        (lambda m: m.log_density(FRAME, np.c_[Y, Y]), ValueError, "1d"),
    ],
)
def test_predictions(fitted, call, error, named):
    with pytest.raises(error, match=named):
        call(fitted)


def test_samples_that_would_not_fit_into_memory(monkeypatch):
    monkeypatch.setattr(base, "LARGEST", 400)
    with pytest.raises(ValueError, match=r"X has 2 columns.*n_samples=5.*42 weights.*reduce them"):
        fit()
