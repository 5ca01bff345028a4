"""The regressor, whose spread is right, and what both estimators share: scikit-learn's conventions."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_backend
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from learned_samplers.estimators import (
    SEARCH,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    base,
    progress,
    sampling,
)
from learned_samplers.priors import Relevance

#: The fits are cut short on purpose: their chains have not settled.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SMALL = {"n_chains": 2, "n_samples": 5, "n_steps": 40, "tuning_steps": 20, "warmup_steps": 150, "random_state": 0}
SMALL |= {"hidden_layer_sizes": (8,)}


#: A weight of 2 is a row twice in the law; the minibatches and the held-out rows of two such fits differ.
RANDOM = {"check_sample_weight_equivalence_on_dense_data": "another table has other minibatches"}


@parametrize_with_checks(
    [BayesianMLPRegressor(**SMALL), BayesianMLPClassifier(**SMALL)], expected_failed_checks=lambda estimator: RANDOM
)
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


def test_with_known_noise_a_linear_network_has_the_posterior_in_closed_form():
    """Bayesian linear regression of standardised numbers; with twice the noise it is another one."""
    x, y = table(30)
    new = table(40, seed=1)[0]
    (standard, inputs), scale = ((a - x.mean(0)) / x.std(0) for a in (x, new)), y.std()
    design, rows = (np.column_stack([a, np.ones(len(a))]) for a in (standard, inputs))
    precision = design.T @ design / (2 / scale) ** 2 + np.eye(3)
    mean = y.mean() + rows @ np.linalg.solve(precision, design.T @ (y - y.mean())) / (2 / scale) ** 2
    epistemic = scale * np.sqrt((rows * np.linalg.solve(precision, rows.T).T).sum(1))

    def spread(noise):
        settings = {"noise": noise, "hidden_layer_sizes": (), "n_chains": 8, "n_samples": 100}
        model = regressor(**settings).fit(x, y)
        means, std = model.predict(new, return_std=True)
        drawn = model.predict_samples(torch.as_tensor(new)).std(0).numpy()
        np.testing.assert_allclose(std, np.sqrt(noise**2 + drawn**2), rtol=0.02)
        return abs(means - mean).max() / epistemic.mean(), (drawn / epistemic).mean()

    error, ratio = spread(2.0)
    assert error < 0.4
    assert ratio == pytest.approx(1, abs=0.1)
    assert spread(4.0)[1] > 1.4


def test_a_student_likelihood_is_not_led_by_outliers():
    x, y = table(200)
    y[::20] += 60
    truth = 10 + 3 * x[:, 0]
    settings = {"noise": "homoscedastic", "tuning_steps": 100, "n_steps": 200}
    errors = [
        np.sqrt(np.mean((regressor(likelihood=name, **settings).fit(x, y).predict(x) - truth) ** 2))
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
            monkeypatch.setattr("learned_samplers.estimators.regressor.rounding", lambda y: 0.0)
        model = regressor(warmup_steps=600, tuning_steps=100, n_steps=100).fit(x, y)
        worst[floored] = model.log_density([[0.0]], [5.0])[0]
    assert worst[True] > -10
    assert worst[False] < -100


def test_the_samples_know_their_chains_and_the_seed_decides():
    model = BayesianMLPRegressor(**{**SMALL, "n_chains": 3}).fit(*table())
    assert set(model.posterior_.chains) == {0, 1, 2}
    again, another_seed = clone(model).fit(*table()), clone(model).set_params(random_state=1).fit(*table())
    x, _ = table(20, seed=2)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert not np.allclose(another_seed.predict(x), model.predict(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))
    before = torch.get_rng_state(), torch.get_num_threads()
    clone(model).set_params(n_jobs=-1).fit(*table())
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
    monkeypatch.setattr(base, "FULL_ROWS", 100)
    monkeypatch.setattr(base, "BATCH", 50)
    assert regressor().fit(x, y).score(x, y) > 0.5
    assert regressor(batch_size=64).fit(x, y).score(x, y) > 0.5


def test_a_run_too_short_says_so():
    with pytest.warns(ConvergenceWarning, match="not settled: .*raise n_samples"):
        model = BayesianMLPRegressor(**{**SMALL, "n_samples": 2}).fit(*table())
    assert not model.verdict_.settled


def test_steps_that_the_warm_up_did_not_make_are_not_counted(monkeypatch):
    monkeypatch.setattr(base, "warm_up", lambda *positional, **named: 7)
    monkeypatch.setattr(base, "begin_with_means", lambda *positional, **named: 3)
    for noise, more in (("homoscedastic", 0), ("heteroscedastic", 3)):
        assert BayesianMLPRegressor(noise=noise, **SMALL).fit(*table()).n_iter_ == 7 + more + 20 + 40


def test_units_are_of_no_account():
    x, y = table(40)
    model, in_other_units = BayesianMLPRegressor(**SMALL).fit(x, y), BayesianMLPRegressor(**SMALL)
    for unit in (1e-200, 1e200):
        np.testing.assert_allclose(
            in_other_units.fit(unit * x, unit * y).predict(unit * x) / unit, model.predict(x), rtol=1e-2
        )


def test_a_fit_that_is_refused_or_broken_off_leaves_what_was_fitted_before(monkeypatch):
    x, y = table(40)
    model = BayesianMLPRegressor(**SMALL).fit(x, y)
    before = model.predict(x, return_std=True)[1]
    assert (model.set_params(likelihood="student").predict(x, return_std=True)[1] == before).all()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "warm_up", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(100 * x, 100 * y)
    with pytest.raises(ValueError, match="missing"):
        model.fit(np.c_[x, x, np.full(40, np.nan)], y)
    assert (model.predict(x, return_std=True)[1] == before).all()
    with pytest.raises(KeyboardInterrupt):
        (new := BayesianMLPRegressor(**SMALL)).fit(x, y)
    with pytest.raises(NotFittedError):
        new.predict(x)


def test_a_warm_start_begins_anew_where_rows_leave_the_span_of_those_before():
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 20))
    y = x[:, 0] + 0.1 * random.normal(size=60)
    model = BayesianMLPRegressor(**SMALL, warm_start=True).fit(x[:8], y[:8])
    few = len(model.posterior_[0]["0.weight"][0])
    model.fit(x[:8], y[:8])
    assert len(model.posterior_[0]["0.weight"][0]) == few < 20
    cold = BayesianMLPRegressor(**SMALL).fit(x, y)
    assert (model.fit(x, y).predict(x) == cold.predict(x)).all()


@pytest.mark.parametrize("far", [1e4, 1e300])
def test_rows_without_weight_are_as_if_not_there(far):
    x, y = table(60)
    weights = np.arange(60) % 2
    model = BayesianMLPRegressor(**SMALL, calibration_fraction=0.4)
    clean = model.fit(x[1::2], y[1::2]).predict_interval(x, 0.8, conformal=True)
    text = model.verdict_.text
    again = model.fit(x, np.where(weights, y, far), weights).predict_interval(x, 0.8, conformal=True)
    np.testing.assert_array_equal(clean, again)
    assert model.verdict_.text == text


def test_rows_that_calibrate_have_no_part_in_the_fit():
    x, y = table(60)
    y = np.round(3 * y)
    model = BayesianMLPRegressor(**SMALL, calibration_fraction=0.3)
    before = model.fit(x, y).predict(x)
    _, left_out = model._calibration_rows(60)
    y[left_out[0]] += 0.001
    np.testing.assert_array_equal(model.fit(x, y).predict(x), before)


def test_torchs_default_device_is_of_no_account():
    x, y = table(30)
    model = BayesianMLPRegressor(**SMALL).fit(x, y)
    mean, density = model.predict(x), model.log_density(x, y)
    torch.set_default_device("meta")
    try:
        np.testing.assert_array_equal(model.predict(x), mean)
        np.testing.assert_array_equal(model.log_density(x, y), density)
        np.testing.assert_array_equal(BayesianMLPRegressor(**SMALL).fit(x, y).predict(x), mean)
        assert model.predict_samples(torch.tensor(x, device="cpu")).device.type == "cpu"
    finally:
        torch.set_default_device("cpu")


def test_samples_that_ctrl_c_leaves_are_calibrated(monkeypatch):
    x, y = table(60)
    model = BayesianMLPRegressor(**SMALL, calibration_fraction=0.4, warm_start=True).fit(x, y)
    run = base.sample

    def interrupted(*args, **settings):
        samples, trace = run(*args, **settings)
        return samples, trace._replace(interrupted=True)

    monkeypatch.setattr(base, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y)
    assert np.isfinite(model.predict_interval(x, 0.8, conformal=True)).all()


def test_a_wide_table_without_variation_tells_no_feature_apart():
    model = BayesianMLPRegressor(**SMALL).fit(np.ones((10, 40)), np.arange(10.0))
    np.testing.assert_allclose(model.feature_relevance_, 1 / 40)


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


def test_fits_in_several_threads_are_those_of_one():
    """They shared torch's global generator: predictions differed by fifteen standard deviations."""
    x, y = table(90)
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.get_num_threads()
    serial = cross_val_predict(BayesianMLPRegressor(**SMALL), x, y, cv=3)
    with parallel_backend("threading", n_jobs=3):
        threaded = cross_val_predict(BayesianMLPRegressor(**SMALL), x, y, cv=3)
    np.testing.assert_array_equal(threaded, serial)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_a_search_with_cheap_settings_is_silent():
    """Scikit-learn resets what Python has warned of, so that a warning of one fit came for each."""
    x, y = table(60)
    cheap = BayesianMLPRegressor(**{**SEARCH, "n_samples": 2, "n_steps": 10, "warmup_steps": 50, "random_state": 0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = GridSearchCV(cheap, {"prior_precision": [0.3, 1.0]}, cv=2).fit(x, y)
    assert not search.best_estimator_.verdict_.settled


def test_what_scikit_learn_offers_for_any_estimator_works():
    x, y = table(60)
    frame = pd.DataFrame(x, columns=["a", "b"])
    pipe = make_pipeline(StandardScaler(), BayesianMLPRegressor(**SMALL)).set_output(transform="pandas")
    pipe.fit(frame, y)
    assert list(pipe[-1].feature_names_in_) == ["a", "b"]
    importance = permutation_importance(pipe, frame, y, n_repeats=3, random_state=0).importances_mean
    assert importance[0] > importance[1]
    assert partial_dependence(pipe, frame, ["a"])["average"].shape[0] == 1
    low, high = pipe.predict(frame, quantiles=(0.05, 0.95)).T
    expected = pipe[-1].predict_interval(pipe[:-1].transform(frame), 0.9)
    np.testing.assert_allclose([low, high], expected)


def test_a_weight_of_two_is_a_row_twice_and_none_is_no_row():
    """In the law: means agree to a tenth of their spread, where without weights they differ by many."""
    x, y = table(60)
    left, right = x[:, 0] < 0, x[:, 0] >= 0
    y = y + 20 * right
    far = np.r_[y, y[left] + 30]  # rows that are to count nothing
    tall = np.r_[x, x[left]]
    settings = {"noise": "homoscedastic", "n_chains": 4, "warmup_steps": 300, "tuning_steps": 200, "n_steps": 300}
    plain = regressor(**settings).fit(x, y)
    weighted = regressor(**settings).fit(tall, far, np.r_[np.ones(60), np.zeros(left.sum())])
    ignored = regressor(**settings).fit(tall, far)
    mean, std = plain.predict(x, return_std=True)
    assert abs(weighted.predict(x) - mean).mean() < 0.25 * std.mean()
    assert abs(ignored.predict(x) - mean).mean() > 2 * std.mean()
    doubled, twice = (
        regressor(**settings).fit(x, y, np.full(60, 2.0)),
        regressor(**settings).fit(np.r_[x, x], np.r_[y, y]),
    )
    assert doubled.predict(x, return_std=True)[1].mean() == pytest.approx(
        twice.predict(x, return_std=True)[1].mean(), rel=0.1
    )
    labels = np.where(np.r_[right, ~left[left]], "right", "left")
    classes = BayesianMLPClassifier(**SMALL).fit(tall, labels, np.r_[np.ones(60), np.zeros(left.sum())])
    assert classes.score(x, labels[:60]) > 0.9


@pytest.mark.parametrize("noise", ["heteroscedastic", "homoscedastic", 1.0])
def test_several_targets_share_a_network(noise):
    x, y = table(200)
    second = 100 - 5 * x[:, 1] + 0.5 * np.random.default_rng(1).standard_normal(200)
    model = regressor(noise=noise).fit(x, np.c_[y, second])
    new, targets = table(300, seed=1)
    mean, std = model.predict(new, return_std=True)
    low, high = model.predict_interval(new)
    assert mean.shape == std.shape == low.shape == high.shape == (300, 2)
    assert model.score(x, np.c_[y, second]) > 0.7
    assert abs(((low[:, 0] < targets) & (targets < high[:, 0])).mean() - 0.9) < 0.08
    assert model.predict(new, quantiles=[0.1, 0.5, 0.9]).shape == (300, 2, 3)
    covariance = model.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(covariance[:, [0, 1], [0, 1]], std**2)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    draws = model.sample_y(new, 2000)
    assert draws.shape == (300, 2, 2000)
    np.testing.assert_allclose(draws.mean(-1), mean, atol=0.3)
    joint = model.log_density(new[:1], mean[:1])
    grid = np.linspace(-6, 6, 81)
    steps = std[0] * (grid[1] - grid[0])
    points = mean[0] + np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2) * std[0]
    total = np.exp(model.log_density(np.repeat(new[:1], len(points), 0), points)).sum() * steps.prod()
    assert total == pytest.approx(1, abs=0.02)
    assert np.isfinite(joint).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "student"])
def test_draws_have_the_predictive_distribution(likelihood):
    x, y = table(60)
    model = regressor(likelihood=likelihood).fit(x, y)
    draws = model.sample_y(x[:3], 40_000)
    assert draws.shape == (3, 40_000)
    np.testing.assert_allclose(
        np.quantile(draws, [0.1, 0.5, 0.9], axis=1).T, model.predict(x[:3], quantiles=(0.1, 0.5, 0.9)), atol=0.1
    )
    np.testing.assert_array_equal(model.sample_y(x, 2, random_state=1), model.sample_y(x, 2, random_state=1))


def test_conformal_intervals_hold_targets_whatever_their_law():
    """Noise that a Gaussian of one spread for all rows gets wrong: its own intervals hold too much or too little."""
    random = np.random.default_rng(0)

    def rows(count):
        x = random.uniform(-1, 1, (count, 2))
        return x, x[:, 0] + np.where(random.uniform(size=count) < 0.2, 3.0, 0.1) * random.standard_normal(count)

    test = rows(4000)
    brief = {"n_steps": 100, "tuning_steps": 50}  # whatever the chain, too
    held = []
    for seed in range(3):
        model = regressor(noise="homoscedastic", calibration_fraction=0.4, random_state=seed, **brief).fit(*rows(500))
        for conformal in (False, True):
            low, high = model.predict_interval(test[0], 0.8, conformal=conformal)
            held.append(((low <= test[1]) & (test[1] <= high)).mean())
    assert np.mean(held[1::2]) == pytest.approx(0.8, abs=0.04)  # 200 rows calibrate: one fit scatters by 0.03
    assert np.mean(held[::2]) > 0.86
    few = regressor(calibration_fraction=0.1).fit(*rows(30))
    assert np.isinf(few.predict_interval(test[0][:2], 0.9, conformal=True)[1]).all()


def test_a_warm_start_goes_on_from_the_chains_of_the_fit_before(monkeypatch):
    x, y = table(200)
    model = regressor(warm_start=True).fit(x[:100], y[:100])
    scales = model._y_mean.copy()
    monkeypatch.setattr(base, "warm_up", None)  # is not called
    model.fit(x, y)
    np.testing.assert_array_equal(model._y_mean, scales)
    assert model.score(x, y) > 0.6
    labels = x[:, 0] > 0
    monkeypatch.undo()
    classes = BayesianMLPClassifier(**SMALL, warm_start=True).fit(x[:100], labels[:100])
    assert classes.fit(x, labels).score(x, labels) > 0.9


def test_a_fit_that_is_verbose_prints_what_is_left(monkeypatch, capsys):
    x, y = table(40)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    BayesianMLPRegressor(**SMALL, verbose=True).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("BayesianMLPRegressor: warm-up, step 1 of 150, ")
    assert any("sampling, step 60 of 60, 0 s left" in line for line in lines)
    assert "temperature" in lines[-1]
    BayesianMLPRegressor(**SMALL).fit(x, y)
    assert not capsys.readouterr().out


def test_a_table_of_twenty_thousand_columns_takes_seconds():
    """It took 52 minutes and 4 GB; a hundred rows span a hundred directions."""
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 20_000))
    model = BayesianMLPClassifier(**SMALL).fit(x, x[:, :2000].sum(1) > 0)
    assert model.n_features_in_ == 20_000
    assert model.predict_proba(x).shape == (100, 2)
    assert len(model.posterior_[0]["0.weight"].flatten()) == 8 * 100


@pytest.mark.parametrize("columns", [3, 30])
def test_the_samples_means_have_gradients_by_the_inputs(columns):
    """Also where a table is seen in the span of its rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(12, columns))
    y = np.stack([x[:, 0], 5 + 2 * x[:, 1]], 1)
    for targets in (y[:, 0], y):
        model = BayesianMLPRegressor(**SMALL).fit(x, targets)
        new = torch.from_numpy(random.normal(size=(4, columns))).requires_grad_()
        values = model.predict_samples(new)
        assert values.shape == (len(model.posterior_), 4, *targets.shape[1:])
        np.testing.assert_allclose(values.mean(0).detach(), model.predict(new.detach().numpy()), rtol=1e-5, atol=1e-5)
        (slopes,) = torch.autograd.grad(values.sum(), new)
        step = torch.zeros_like(new)
        step[:, 1] = 1e-2
        with torch.no_grad():
            difference = model.predict_samples(new + step) - model.predict_samples(new - step)
        expected = difference.reshape(len(values), 4, -1).sum((0, 2)) / 2e-2
        torch.testing.assert_close(slopes[:, 1], expected, rtol=0.02, atol=0.02 * slopes.abs().max().item())


def test_relevance_tells_the_features_that_matter():
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 6))
    y = 2 * x[:, 0] - x[:, 3] + 0.5 * random.normal(size=300)
    settings = dict(n_chains=4, n_samples=20, n_steps=300, tuning_steps=200, warmup_steps=500, hidden_layer_sizes=(8,))
    model = BayesianMLPRegressor(prior_precision=Relevance(), random_state=0, warn_unsettled=False, **settings)
    shares = clone(model).fit(x, y).feature_relevance_
    assert shares.shape == (6,)
    assert shares.sum() == pytest.approx(1)
    alike = clone(model).set_params(prior_precision=1.0).fit(x, y).feature_relevance_
    assert shares.argmax() == 0
    assert shares[[0, 3]].sum() > alike[[0, 3]].sum()


def test_relevance_of_many_columns_is_theirs():
    """A network sees their span, unless its prior is by column."""
    x = np.random.default_rng(0).normal(size=(20, 60))
    y = x[:, 7]
    for prior, columns in ((1.0, 21), (Relevance(), 60)):
        model = BayesianMLPRegressor(**SMALL, prior_precision=prior).fit(x, y)
        assert model.posterior_[0]["0.weight"].shape[1] <= columns
        assert model.feature_relevance_.shape == (60,)
        assert model.feature_relevance_.argmax() == 7
        assert model.feature_relevance_.sum() == pytest.approx(1)
