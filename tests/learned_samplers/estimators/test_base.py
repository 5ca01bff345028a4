"""What both estimators share: scikit-learn's conventions, fits that go on or are broken off, weights, relevance."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict
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
from tests.learned_samplers.estimators.common import SMALL, regressor, table

#: The fits are cut short on purpose: their chains have not settled.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

#: A weight of 2 is a row twice in the law; the minibatches and the held-out rows of two such fits differ.
RANDOM = {"check_sample_weight_equivalence_on_dense_data": "another table has other minibatches"}


@parametrize_with_checks(
    [BayesianMLPRegressor(**SMALL), BayesianMLPClassifier(**SMALL)], expected_failed_checks=lambda estimator: RANDOM
)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


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


def test_a_run_too_short_says_so():
    with pytest.warns(ConvergenceWarning, match="not settled: .*raise n_samples"):
        model = BayesianMLPRegressor(**{**SMALL, "n_samples": 2}).fit(*table())
    assert not model.verdict_.settled


def test_steps_that_the_warm_up_did_not_make_are_not_counted(monkeypatch):
    monkeypatch.setattr(base, "warm_up", lambda *positional, **named: 7)
    monkeypatch.setattr(base, "begin_with_means", lambda *positional, **named: 3)
    for noise, more in (("homoscedastic", 0), ("heteroscedastic", 3)):
        assert BayesianMLPRegressor(noise=noise, **SMALL).fit(*table()).n_iter_ == 7 + more + 20 + 40


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


def test_a_wide_table_without_variation_tells_no_feature_apart():
    model = BayesianMLPRegressor(**SMALL).fit(np.ones((10, 40)), np.arange(10.0))
    np.testing.assert_allclose(model.feature_relevance_, 1 / 40)


def test_every_sample_is_kept_whatever_the_number_of_steps(monkeypatch):
    x, y = table(40)
    settings = {**SMALL, "n_samples": 20, "n_chains": 2}
    monkeypatch.setattr(sampling, "burn_in_of", lambda energies: 0)
    for steps in (20, 39):
        assert len(BayesianMLPRegressor(**{**settings, "n_steps": np.int64(steps)}).fit(x, y).posterior_) == 40


def test_fits_in_several_threads_are_those_of_one():
    """They shared torch's global generator: predictions differed by fifteen standard deviations."""
    x, y = table(90)
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.get_num_threads()
    serial = cross_val_predict(BayesianMLPRegressor(**SMALL), x, y, cv=2)
    with parallel_backend("threading", n_jobs=2):
        threaded = cross_val_predict(BayesianMLPRegressor(**SMALL), x, y, cv=2)
    np.testing.assert_array_equal(threaded, serial)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_a_search_with_cheap_settings_is_silent():
    """Scikit-learn resets what Python has warned of, so that a warning of one fit came for each."""
    x, y = table(60)
    cheap = BayesianMLPRegressor(**{**SEARCH, **SMALL, "n_samples": 2})
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


def test_a_row_without_weight_is_no_row():
    """Means agree to a quarter of their spread, where with these rows they differ by many."""
    x, y = table(60)
    left, right = x[:, 0] < 0, x[:, 0] >= 0
    y = y + 20 * right
    far = np.r_[y, y[left] + 30]  # rows that are to count nothing
    tall = np.r_[x, x[left]]
    settings = {"noise": "homoscedastic", "warmup_steps": 200, "tuning_steps": 100, "n_steps": 150}
    plain = regressor(**settings).fit(x, y)
    weighted = regressor(**settings).fit(tall, far, np.r_[np.ones(60), np.zeros(left.sum())])
    ignored = regressor(**settings).fit(tall, far)
    mean, std = plain.predict(x, return_std=True)
    assert abs(weighted.predict(x) - mean).mean() < 0.25 * std.mean()
    assert abs(ignored.predict(x) - mean).mean() > 2 * std.mean()
    labels = np.where(np.r_[right, ~left[left]], "right", "left")
    classes = BayesianMLPClassifier(**SMALL).fit(tall, labels, np.r_[np.ones(60), np.zeros(left.sum())])
    assert classes.score(x, labels[:60]) > 0.9


def test_a_warm_start_goes_on_from_the_chains_of_the_fit_before(monkeypatch):
    x, y = table(200)
    model = BayesianMLPRegressor(**SMALL, warm_start=True).fit(x[:100], y[:100])
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


def test_relevance_tells_the_features_that_matter():
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 6))
    y = 2 * x[:, 0] - x[:, 3] + 0.5 * random.normal(size=300)
    settings = dict(n_chains=4, n_samples=20, n_steps=150, tuning_steps=100, warmup_steps=300, hidden_layer_sizes=(8,))
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
