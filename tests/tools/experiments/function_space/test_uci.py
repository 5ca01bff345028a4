"""UCI regression: the files, scores, methods on a problem that is known, and splits that do not meet."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from experiments.function_space.splits import Fit, fit, prior_by_group, scores
from experiments.function_space.uci import RATES, UCI, Regressions, difference
from experiments.harness.study import Study
from experiments.harness.uci_data import RegressionData, load, standardise, validation_folds
from torch.distributions import Categorical, MixtureSameFamily, Normal

from learned_samplers.particles import FittedPrior

NOISE = 0.1
SMALL = UCI(particles=8, hidden=20, steps=400, hmc_trajectories=40, leapfrog_steps=20)


def linear_data(groups=2, seed=0):
    """y = 3x₁ − x₂ + 0.1·ξ, of deviation 10^½."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(220, 2, generator=stream, dtype=torch.double)
    y = x @ torch.tensor([3.0, -1.0], dtype=torch.double) + NOISE * torch.randn(220, generator=stream).double()
    test = torch.stack([torch.randperm(220, generator=stream)[:20] for _ in range(groups)])
    data = RegressionData("made", x, y, test)
    return standardise(data, data.train_index(), test)


def test_scores_are_those_of_the_mixture():
    rows = linear_data()
    outputs, log_noise = torch.randn(2, 5, 20), torch.randn(2, 5)
    rmse, log_likelihood = scores(Fit(outputs, log_noise), rows)
    for g in range(2):
        scale = rows.deviation[g]
        means = outputs[g].T.double() * scale + rows.mean[g]
        parts = Normal(means, log_noise[g].double().exp() * scale)
        targets = rows.test_y[:, g].double() * scale + rows.mean[g]
        expected = MixtureSameFamily(Categorical(torch.ones(20, 5)), parts).log_prob(targets).mean()
        torch.testing.assert_close(log_likelihood[g], expected)
        torch.testing.assert_close(rmse[g], (means.mean(1) - targets).square().mean().sqrt())


@pytest.mark.parametrize("method", RATES)
def test_every_method_fits_and_knows_its_noise(method):
    lr = {"SGHMC": 1e-2, "HMC": 1e-3}.get(method, 3e-2)
    rows = linear_data()
    fitted = fit(method, rows, lr, SMALL, 0)
    rmse, log_likelihood = scores(fitted, rows)
    # The noise alone gives 0.1 and −log(0.1·√(2πe)) = 0.88; the target's deviation is 3.2.
    assert rmse.max() < 0.35
    assert log_likelihood.min() > -0.6
    # Planted: the outputs of the other split's network are useless.
    crossed = Fit(fitted.outputs.flip(0), fitted.log_noise)
    assert scores(crossed, rows)[0].min() > 2


def test_prior_of_each_split_is_its_own():
    """The splits' prior scores, all at once, are those of each split by itself."""
    groups, count, n = 3, 4, 6
    inputs = torch.randn(n, groups, 2, dtype=torch.double)
    outputs = torch.randn(groups * count, n, dtype=torch.double, requires_grad=True)
    drawn = torch.randn(40, n, groups, dtype=torch.double)

    def prior(which):
        def draws(chosen, number):
            rows = [int((inputs[:, 0] == x[0]).all(1).nonzero()) for x in chosen]
            return drawn[:, rows][..., which]

        return FittedPrior(draws, generator=torch.Generator().manual_seed(0))

    together = prior_by_group(prior(slice(None)), inputs, outputs)
    score = torch.autograd.grad(together.sum(), outputs)[0].view(groups, count, n)
    for g in range(groups):
        values = outputs.view(groups, count, n)[g]
        alone = prior(g).log_density(inputs, values).sum()
        expected = torch.autograd.grad(alone, outputs, retain_graph=True)[0].view(groups, count, n)
        torch.testing.assert_close(score[g], expected[g])
        assert not expected[g - 1].any()


def test_methods_that_diverge_on_different_splits_are_compared_on_those_of_both():
    def run(first, lost=False):
        values = [float(first + k) for k in range(5)]
        return {"diverged": "so"} if lost else {"diverged": None, "log_likelihood": values}

    ours = [run(first, lost=first == 0) for first in range(0, 20, 5)]
    theirs = [run(first - 2, lost=first == 15) for first in range(0, 20, 5)]
    assert difference(ours, theirs) == "2.000 ± 0.000"
    assert difference(ours[:1], theirs[:1]) == "–"


@pytest.mark.parametrize(
    ("peak", "chosen", "beyond"),
    [
        (0.016, 0.016, []),  # inside the grid: nothing more is tried
        (0.2, 0.256, [0.256, 1.02]),  # past the first extension the best lies inside
        (9.0, 1.02, [0.256, 1.02]),  # no further than two extensions
        (0.001, 0.001, [0.001, 0.00025]),
        (None, 0.064, [0.256]),  # what lies beyond diverges
    ],
)
def test_rates_are_extended_where_the_best_lies_at_an_edge(tmp_path, monkeypatch, peak, chosen, beyond):
    tried = []

    def run(self, job, store):
        tried.append(job.choice.lr)
        if peak is None and job.choice.lr > 0.1:
            raise FloatingPointError("planted")
        return {"log_likelihood": [-abs(math.log(job.choice.lr / (peak or 0.1)))], "rmse": [1.0]}

    monkeypatch.setattr(Regressions, "run", run)
    write(tmp_path, made(60))
    options = UCI(sets=("yacht",), data=str(tmp_path), out=tmp_path / "out")
    assert Study(Regressions(options), options).tuning("yacht", "SVGD").chosen.lr == chosen
    assert tried == [0.004, 0.016, 0.064, *beyond]


# ---------------------------------------------------------------- the files


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


def with_entry(key, index, value):
    def change(arrays):
        arrays[key] = arrays[key].copy()
        arrays[key][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("y"), "key 'y'"),
        (lambda a: a.update(x=a["x"][0]), "key 'x'"),
        (lambda a: a.update(test_index=a["test_index"] * 1.0), "key 'test_index'"),
        (lambda a: a.update(y=a["y"][:-1]), "key 'y'"),
        (with_entry("x", (0, 0), np.nan), "key 'x'"),
        (with_entry("test_index", (0, 0), 20), "key 'test_index'"),
        (lambda a: a.update(test_index=np.zeros((1, 2), int)), "key 'test_index'"),
        (lambda a: a.update(y=np.array([None] * 20)), "cannot be read"),
    ],
)
def test_bad_files_are_refused_by_file_and_key(tmp_path, change, message):
    arrays = made()
    change(arrays)
    path = write(tmp_path, arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load("yacht", tmp_path)
    assert str(path) in str(caught.value)


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
