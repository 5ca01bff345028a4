"""The two estimators: scikit-learn's conventions, and predictions whose spread is right."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor, mlp, sampling

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SMALL = {"n_chains": 2, "n_samples": 5, "n_steps": 40, "tuning_steps": 20, "warmup_steps": 150, "random_state": 0}
SMALL |= {"hidden_layer_sizes": (8,)}


@parametrize_with_checks([BayesianMLPRegressor(**SMALL), BayesianMLPClassifier(**SMALL)])
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def table(rows=200, seed=0):
    """y = x₀ + (0.1 + 0.4·[x₁ > 0])·ξ."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (rows, 2))
    return x, 10 + 3 * (x[:, 0] + (0.1 + 0.4 * (x[:, 1] > 0)) * random.standard_normal(rows))


def regressor(**settings):
    return BayesianMLPRegressor(**{**SMALL, "n_steps": 600, "tuning_steps": 400, "n_samples": 20, **settings})


@pytest.mark.parametrize("likelihood", ["gaussian", "student"])
@pytest.mark.parametrize("noise", ["heteroscedastic", "homoscedastic"])
def test_spread_intervals_and_density(noise, likelihood):
    model = regressor(noise=noise, likelihood=likelihood).fit(*table())
    x, y = table(1000, seed=1)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (1000,)
    assert model.score(x, y) > 0.5
    low, high = model.predict_interval(x, 0.9)
    assert abs(((low < y) & (y < high)).mean() - 0.9) < 0.07
    ratio = std[x[:, 1] > 0.2].mean() / std[x[:, 1] < -0.2].mean()
    assert ratio > 2 if noise == "heteroscedastic" else 0.7 < ratio < 1.4
    one = x[:1]

    def density(at):
        return np.exp(model.log_density(one, [at])[0])

    limits = {"limit": 300, "points": [mean[0]]}
    assert quad(density, mean[0] - 60, mean[0] + 60, **limits)[0] == pytest.approx(1, abs=2e-3)
    assert quad(density, low[0], high[0])[0] == pytest.approx(0.9, abs=1e-3)
    second = quad(lambda at: (at - mean[0]) ** 2 * density(at), mean[0] - 200, mean[0] + 200, **limits)[0]
    assert second**0.5 == pytest.approx(std[0], rel=0.02 if likelihood == "gaussian" else 0.1)


def test_a_student_likelihood_is_not_led_by_outliers():
    x, y = table(200)
    y[::20] += 60
    truth = 10 + 3 * x[:, 0]
    errors = [
        np.sqrt(np.mean((regressor(likelihood=name, noise="homoscedastic").fit(x, y).predict(x) - truth) ** 2))
        for name in ("gaussian", "student")
    ]
    assert errors[1] < 0.5 * errors[0]


def test_integers_that_repeat_are_not_known_better_than_rounding(monkeypatch):
    """Four places, thirty equal rows each: without the floor a row that contradicts them costs thousands of nats."""
    x = np.repeat([[-1.0], [0.0], [1.0], [2.0]], 30, 0)
    y = np.repeat([3.0, 4.0, 6.0, 5.0], 30)
    worst = {}
    for floored in (True, False):
        if not floored:
            monkeypatch.setattr(mlp, "rounding", lambda y: 0.0)
        model = regressor(warmup_steps=1000).fit(x, y)
        worst[floored] = model.log_density([[0.0]], [5.0])[0]
    assert worst[True] > -10
    assert worst[False] < -100


def test_rounding_is_that_of_the_grid_and_zero_without_one():
    stream = np.random.default_rng(0)
    assert mlp.rounding(np.array([1.0, 3.0, 3.0, 2.0, 1.0, 3.0])) == pytest.approx(12**-0.5)
    assert mlp.rounding(stream.normal(size=50)) == mlp.rounding(np.ones(5)) == mlp.rounding(np.arange(3.0)) == 0


def test_the_samples_know_their_chains_and_the_seed_decides():
    model = BayesianMLPRegressor(**{**SMALL, "n_chains": 3}).fit(*table())
    assert set(model.posterior_.chains) == {0, 1, 2}
    again, other = clone(model).fit(*table()), clone(model).set_params(random_state=1).fit(*table())
    x, _ = table(20, seed=2)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert not np.allclose(other.predict(x), model.predict(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    before = torch.get_rng_state(), torch.get_num_threads()
    for n_jobs in (2, -1):
        clone(model).set_params(n_jobs=n_jobs).fit(*table())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_in_a_pipeline_and_cross_validated():
    x, y = table()
    assert cross_val_score(make_pipeline(StandardScaler(), BayesianMLPRegressor(**SMALL)), x, y, cv=2).mean() > 0.3
    scores = cross_val_score(BayesianMLPClassifier(**SMALL), x, np.where(x[:, 0] > 0, "up", "down"), cv=2)
    assert scores.mean() > 0.9


def test_odd_tables(monkeypatch):
    """A constant column, three rows, large numbers, a class with one member, and more rows than fit."""
    x, y = table()
    wide = np.column_stack([x, np.full(len(x), 1e9), 1e100 * x[:, 0]])
    assert np.isfinite(BayesianMLPRegressor(**SMALL).fit(wide, 1e100 * y).predict(wide)).all()
    assert np.isfinite(BayesianMLPRegressor(**SMALL).fit(x, np.ones(len(x))).predict(x, return_std=True)).all()
    assert BayesianMLPRegressor(**SMALL).fit(x[:3], y[:3]).predict(x).shape == (200,)
    labels = np.array(["one"] + ["many"] * 199)
    probabilities = BayesianMLPClassifier(**SMALL).fit(x, labels).predict_proba(x)
    assert probabilities[100, 1] < 0.5
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    monkeypatch.setattr(mlp, "FULL_ROWS", 100)
    monkeypatch.setattr(mlp, "BATCH", 50)
    assert regressor().fit(x, y).score(x, y) > 0.5
    assert regressor(batch_size=64).fit(x, y).score(x, y) > 0.5


def test_a_run_too_short_says_so():
    with pytest.warns(ConvergenceWarning, match="n_steps"):
        model = BayesianMLPRegressor(**SMALL).fit(*table())
    assert not model.verdict_.settled


REFUSED = [
    ({"hidden_layer_sizes": 8}, TypeError, "hidden_layer_sizes.*8"),
    ({"hidden_layer_sizes": (0,)}, ValueError, "hidden_layer_sizes.*0"),
    ({"activation": "step"}, ValueError, "activation.*'step'"),
    ({"noise": "none"}, ValueError, "noise.*'none'"),
    ({"likelihood": "cauchy"}, ValueError, "likelihood.*'cauchy'"),
    ({"n_chains": 0}, ValueError, "n_chains.*0"),
    ({"n_steps": 3}, ValueError, "n_steps.*3"),
    ({"prior_precision": 0}, ValueError, "prior_precision.*0"),
    ({"batch_size": 0}, ValueError, "batch_size.*0"),
    ({"validation_fraction": 1.0}, ValueError, "validation_fraction.*1"),
    ({"n_jobs": 0}, ValueError, "n_jobs.*0"),
    ({"random_state": "x"}, ValueError, "'x'"),
]


def test_steps_that_the_warm_up_did_not_make_are_not_counted(monkeypatch):
    monkeypatch.setattr(mlp, "warm_up", lambda *given, **more: 7)
    monkeypatch.setattr(mlp, "begin_with_means", lambda *given, **more: 3)
    for noise, more in (("homoscedastic", 0), ("heteroscedastic", 3)):
        assert BayesianMLPRegressor(noise=noise, **SMALL).fit(*table()).n_iter_ == 7 + more + 20 + 40


@pytest.mark.parametrize(("settings", "error", "named"), REFUSED)
def test_refusals(settings, error, named):
    with pytest.raises(error, match=named):
        BayesianMLPRegressor(**{**SMALL, **settings}).fit(*table())


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        ([[np.nan], [1.0], [2.0]], [1, 2, 3], "X.*column 0.*missing"),
        ([[0.0], [1.0], [2.0]], [1, np.inf, 3], "y.*infinite"),
        ([[0.0]], [1], "1 sample"),
        ([[1.0, "2"], [2.0, "red"], [3.0, "3"]], [1, 2, 3], "X.*column 1.*'red'"),
        ([[1.0, None], [2.0, 2.0], [3.0, 3.0]], [1, 2, 3], "X.*column 1.*missing"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": pd.array([1, None], "Int64")}), [1, 2], "X.*'b'.*missing"),
        (pd.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"]}), [1, 2], "X.*'colour'.*'red'"),
        (
            pd.DataFrame({"size": [1.0, 2.0], "day": pd.to_datetime(["2026-01-01", "2026-01-02"])}),
            [1, 2],
            "'day'.*dates",
        ),
        (pd.DataFrame({"day": pd.to_datetime(["2026-01-01", None])}), [1, 2], "X holds dates"),
        (pd.DataFrame({"day": pd.to_datetime(["2026-01-01", None], utc=True)}), [1, 2], "X holds dates"),
        (pd.DataFrame({"n": [1.0, 2.0], "p": pd.period_range("2026", periods=2)}), [1, 2], "'p'.*dates"),
        (np.array(["2026-01-01", "NaT"], "datetime64[ns]")[:, None], [1, 2], "X holds dates"),
        ([[0.0], [1.0]], np.array([1, 2], "timedelta64[s]"), "y holds dates or times"),
        ([[0.0], [1.0], [2.0]], [1, "two", 3], "y.*'two'.*BayesianMLPClassifier"),
        ([[0.0], [1.0], [2.0]], [1, None, 3], "y.*leave these rows out"),
    ],
)
def test_tables_refused(x, y, named):
    with pytest.raises(ValueError, match=named):
        BayesianMLPRegressor(**SMALL).fit(x, y)


def test_what_an_encoder_of_words_makes_by_default_is_refused_with_its_option():
    words = make_pipeline(OneHotEncoder(), BayesianMLPRegressor(**SMALL))
    with pytest.raises(TypeError, match=r"sparse_output=False"):
        words.fit([["red"], ["blue"], ["red"]], [1.0, 2.0, 3.0])


def test_targets_that_are_dates_are_refused():
    fitted, (x, _) = BayesianMLPRegressor(**SMALL).fit(*table()), table()
    with pytest.raises(ValueError, match="y holds dates"):
        fitted.log_density(x, pd.Series(pd.to_datetime(["2026-01-01"] * len(x))))
    with pytest.raises(ValueError, match="y has missing labels"):
        BayesianMLPClassifier(**SMALL).fit([[0.0], [1.0], [2.0]], pd.Series(pd.to_datetime(["2025", "2026", None])))


def test_weights_and_single_classes_are_refused():
    x, y = table(20)
    with pytest.raises(TypeError, match="sample_weight"):
        BayesianMLPRegressor(**SMALL).fit(x, y, sample_weight=np.ones(20))
    with pytest.raises(ValueError, match=r"class.*'a'"):
        BayesianMLPClassifier(**SMALL).fit(x, ["a"] * 20)
    with pytest.raises(ValueError, match=r"coverage.*1\.5"):
        BayesianMLPRegressor(**SMALL).fit(x, y).predict_interval(x, 1.5)


def test_units_are_of_no_account():
    x, y = table(40)
    model, other = BayesianMLPRegressor(**SMALL).fit(x, y), BayesianMLPRegressor(**SMALL)
    for unit in (1e-200, 1e200):
        np.testing.assert_allclose(other.fit(unit * x, unit * y).predict(unit * x) / unit, model.predict(x), rtol=1e-2)
    with pytest.raises(ValueError, match=r"^X "):
        model.predict(1e60 * x)
    with pytest.raises(ValueError, match=r"y must be finite"):
        model.log_density(x, np.full(40, np.nan))
    for targets in (y[:3], np.c_[y, y]):
        with pytest.raises(ValueError, match=r"inconsistent|1d"):
            model.log_density(x, targets)


def test_a_fit_that_is_refused_or_broken_off_leaves_what_was_fitted_before(monkeypatch):
    x, y = table(40)
    model = BayesianMLPRegressor(**SMALL).fit(x, y)
    before = model.predict(x, return_std=True)[1]
    assert (model.set_params(likelihood="student").predict(x, return_std=True)[1] == before).all()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(mlp, "warm_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(100 * x, 100 * y)
    with pytest.raises(ValueError, match="missing"):
        model.fit(np.c_[x, x, np.full(40, np.nan)], y)
    assert (model.predict(x, return_std=True)[1] == before).all()
    with pytest.raises(KeyboardInterrupt):
        (new := BayesianMLPRegressor(**SMALL)).fit(x, y)
    with pytest.raises(NotFittedError):
        new.predict(x)


def test_a_classifier_that_refuses_a_table_keeps_its_classes():
    x, y = table(40)
    model = BayesianMLPClassifier(**SMALL).fit(x, np.where(y > np.median(y), "yes", "no"))
    for labels, named in ((["z"] * 40, "two classes"), ([None, *["a", "b"] * 19, "a"], "missing labels")):
        with pytest.raises(ValueError, match=named):
            model.fit(x, labels)
    assert set(model.predict(x)) <= {"yes", "no"}


def test_every_sample_is_kept_whatever_the_number_of_steps(monkeypatch):
    x, y = table(40)
    settings = {**SMALL, "n_samples": 20, "n_chains": 2}
    monkeypatch.setattr(sampling, "burn_in_of", lambda energies: 0)
    for steps in (20, 39, 40):
        assert len(BayesianMLPRegressor(**{**settings, "n_steps": np.int64(steps)}).fit(x, y).posterior_) == 40


def test_tables_in_double_precision_by_default_and_constant_targets():
    x, _ = table(40)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        mean, std = BayesianMLPRegressor(**SMALL).fit(x, np.full(40, 5e-6)).predict(x, return_std=True)
        assert BayesianMLPClassifier(**SMALL).fit(x, x[:, 0] > 0).predict_proba(x).shape == (40, 2)
    finally:
        torch.set_default_dtype(before)
    assert np.abs(mean - 5e-6).max() < 5e-6
    assert std.max() < 5e-6


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (pd.DataFrame({"a": [1.0], "b": [2.0], "id": ["A17"]}), "unseen at fit time:\n- id"),
        (pd.DataFrame({"a": [np.nan], "c": [2.0]}), "unseen at fit time:\n- c"),
    ],
)
def test_other_columns_than_those_of_fit_are_named_not_their_words(other, named):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(1, 0, 20) ** 2})
    model = BayesianMLPRegressor(**SMALL).fit(frame, frame["a"])
    with pytest.raises(ValueError, match=named):
        model.predict(other)
