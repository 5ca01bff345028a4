"""The regressor: its spread, quantiles, densities and intervals are right."""

import numpy as np
import pytest
import torch

from learned_samplers.estimators import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    base,
)
from tests.learned_samplers.estimators.common import SMALL, regressor, table

#: The fits are cut short on purpose: their chains have not settled.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize(("noise", "likelihood"), [("heteroscedastic", "student"), ("homoscedastic", "gaussian")])
def test_spread_intervals_density_and_draws(noise, likelihood):
    model = regressor(noise=noise, likelihood=likelihood).fit(*table())
    x, y = table(1000, seed=1)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (1000,)
    assert model.score(x, y) > 0.5
    low, high = model.predict_interval(x, 0.9)
    assert abs(((low < y) & (y < high)).mean() - 0.9) < 0.07
    ratio = std[x[:, 1] > 0.2].mean() / std[x[:, 1] < -0.2].mean()
    assert ratio > 2 if noise == "heteroscedastic" else 0.7 < ratio < 1.4
    grid = np.linspace(mean[0] - 100, mean[0] + 100, 40_001)
    density = np.exp(model.log_density(np.repeat(x[:1], len(grid), 0), grid)) * (grid[1] - grid[0])
    assert density.sum() == pytest.approx(1, abs=2e-3)
    assert density[(low[0] < grid) & (grid < high[0])].sum() == pytest.approx(0.9, abs=1e-3)
    second = (density * (grid - mean[0]) ** 2).sum()
    assert second**0.5 == pytest.approx(std[0], rel=0.02 if likelihood == "gaussian" else 0.1)
    draws = model.sample_y(x[:3], 40_000)
    assert draws.shape == (3, 40_000)
    np.testing.assert_allclose(
        np.quantile(draws, [0.1, 0.5, 0.9], axis=1).T, model.predict(x[:3], quantiles=(0.1, 0.5, 0.9)), atol=0.1
    )
    np.testing.assert_array_equal(model.sample_y(x, 2, random_state=1), model.sample_y(x, 2, random_state=1))


def test_with_known_noise_a_linear_network_has_the_posterior_in_closed_form():
    """Bayesian linear regression of standardised numbers; twice the noise is another, unless rows count four times."""
    x, y = table(30)
    new = table(40, seed=1)[0]
    (standard, inputs), scale = ((a - x.mean(0)) / x.std(0) for a in (x, new)), y.std()
    design, rows = (np.column_stack([a, np.ones(len(a))]) for a in (standard, inputs))
    precision = design.T @ design / (2 / scale) ** 2 + np.eye(3)
    mean = y.mean() + rows @ np.linalg.solve(precision, design.T @ (y - y.mean())) / (2 / scale) ** 2
    epistemic = scale * np.sqrt((rows * np.linalg.solve(precision, rows.T).T).sum(1))

    def spread(noise, weights=None):
        settings = {"noise": noise, "hidden_layer_sizes": (), "n_chains": 8, "n_samples": 100}
        model = regressor(**settings).fit(x, y, weights)
        means, std = model.predict(new, return_std=True)
        drawn = model.predict_samples(torch.as_tensor(new)).std(0).numpy()
        np.testing.assert_allclose(std, np.sqrt(noise**2 + drawn**2), rtol=0.02)
        return abs(means - mean).max() / epistemic.mean(), (drawn / epistemic).mean()

    for error, ratio in (spread(2.0), spread(4.0, np.full(30, 4.0))):
        assert error < 0.4
        assert ratio == pytest.approx(1, abs=0.1)
    assert spread(4.0)[1] > 1.4


def test_a_student_likelihood_is_not_led_by_outliers():
    x, y = table(100)
    y[::10] += 60
    truth = 10 + 3 * x[:, 0]
    errors = []
    for name in ("gaussian", "student"):
        model = BayesianMLPRegressor(**SMALL, noise="homoscedastic", likelihood=name).fit(x, y)
        errors.append(np.sqrt(np.mean((model.predict(x) - truth) ** 2)))
    assert errors[1] < 0.5 * errors[0]


def test_integers_that_repeat_are_not_known_better_than_rounding(monkeypatch):
    """Four places, thirty equal rows each: without the floor a row that contradicts them costs thousands of nats."""
    x = np.repeat([[-1.0], [0.0], [1.0], [2.0]], 30, 0)
    y = np.repeat([3.0, 4.0, 6.0, 5.0], 30)
    worst = {}
    for floored in (True, False):
        if not floored:
            monkeypatch.setattr("learned_samplers.estimators.regressor.rounding", lambda y: 0.0)
        model = regressor(warmup_steps=400, tuning_steps=50, n_steps=50).fit(x, y)
        worst[floored] = model.log_density([[0.0]], [5.0])[0]
    assert worst[True] > -10
    assert worst[False] < -100


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
    assert BayesianMLPRegressor(**SMALL).fit(x, y).score(x, y) > 0.5
    assert BayesianMLPRegressor(**SMALL, batch_size=64).fit(x, y).score(x, y) > 0.5


def test_units_are_of_no_account():
    x, y = table(40)
    model, in_other_units = BayesianMLPRegressor(**SMALL).fit(x, y), BayesianMLPRegressor(**SMALL)
    for unit in (1e-200, 1e200):
        np.testing.assert_allclose(
            in_other_units.fit(unit * x, unit * y).predict(unit * x) / unit, model.predict(x), rtol=1e-2
        )


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


@pytest.mark.parametrize("noise", ["heteroscedastic", "homoscedastic", 1.0])
def test_several_targets_share_a_network(noise):
    x, y = table(200)
    second = 100 - 5 * x[:, 1] + 0.5 * np.random.default_rng(1).standard_normal(200)
    model = regressor(noise=noise, n_steps=200, tuning_steps=100).fit(x, np.c_[y, second])
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
    draws = model.sample_y(new[:50], 2000)
    assert draws.shape == (50, 2, 2000)
    np.testing.assert_allclose(draws.mean(-1), mean[:50], atol=0.3)
    joint = model.log_density(new[:1], mean[:1])
    grid = np.linspace(-6, 6, 81)
    steps = std[0] * (grid[1] - grid[0])
    points = mean[0] + np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2) * std[0]
    total = np.exp(model.log_density(np.repeat(new[:1], len(points), 0), points)).sum() * steps.prod()
    assert total == pytest.approx(1, abs=0.02)
    assert np.isfinite(joint).all()


def test_conformal_intervals_hold_targets_whatever_their_law():
    """Noise that a Gaussian of one spread for all rows gets wrong: its own intervals hold too much or too little."""
    random = np.random.default_rng(0)

    def rows(count):
        x = random.uniform(-1, 1, (count, 2))
        return x, x[:, 0] + np.where(random.uniform(size=count) < 0.2, 3.0, 0.1) * random.standard_normal(count)

    test = rows(4000)
    held = []
    for seed in range(3):
        settings = {**SMALL, "random_state": seed}  # whatever the chain, too
        model = BayesianMLPRegressor(**settings, noise="homoscedastic", calibration_fraction=0.4).fit(*rows(500))
        for conformal in (False, True):
            low, high = model.predict_interval(test[0], 0.8, conformal=conformal)
            held.append(((low <= test[1]) & (test[1] <= high)).mean())
    assert np.mean(held[1::2]) == pytest.approx(0.8, abs=0.04)  # 200 rows calibrate: one fit scatters by 0.03
    assert np.mean(held[::2]) > 0.86
    few = BayesianMLPRegressor(**SMALL, calibration_fraction=0.1).fit(*rows(30))
    assert np.isinf(few.predict_interval(test[0][:2], 0.9, conformal=True)[1]).all()


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
