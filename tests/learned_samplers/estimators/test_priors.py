"""Estimators under priors: their law, what scikit-learn does with them, and a fit that Ctrl-C ends."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from learned_samplers.estimators.sampling import equalise, flatten, sample
from learned_samplers.posterior import Chains
from learned_samplers.priors import FanIn, GammaHyperprior

QUICK = {"hidden_layer_sizes": (4,), "n_chains": 2, "n_samples": 5, "n_steps": 20, "tuning_steps": 20}
QUICK |= {"warmup_steps": 20, "warn_unsettled": False, "random_state": 0}
PRIORS = [FanIn(gain=2.0), GammaHyperprior(every=5), {"*.weight": 3.0, "*": 1.0}]


def table(rows=40, columns=3):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, columns))
    return x, x[:, 0] + 0.1 * random.normal(size=rows)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("cls", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_priors_are_settings_like_others(cls, prior):
    x, y = table()
    y = y > 0 if cls is BayesianMLPClassifier else y
    model = cls(prior_precision=prior, **QUICK)
    assert model.get_params()["prior_precision"] is prior
    copied = clone(model)
    assert repr(copied.get_params()["prior_precision"]) == repr(prior)
    predicted = model.fit(x, y).predict(x)
    assert np.array_equal(copied.fit(x, y).predict(x), predicted)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), predicted)


def test_a_search_goes_over_priors():
    x, y = table()
    search = GridSearchCV(BayesianMLPRegressor(**QUICK), {"prior_precision": [1.0, FanIn()]}, cv=2, error_score="raise")
    assert "prior_precision" in search.fit(x, y).best_params_


def test_a_prior_that_fits_no_tensor_is_refused():
    with pytest.raises(ValueError, match=r"no pattern for parameter '2.weight'"):
        BayesianMLPRegressor(prior_precision={"0.*": 1.0}, **QUICK).fit(*table())
    with pytest.raises(TypeError, match="prior_precision must be a number"):
        BayesianMLPRegressor(prior_precision="wide", **QUICK).fit(*table())


def test_a_table_in_the_span_of_its_rows_counts_its_columns():
    model = BayesianMLPRegressor(prior_precision=FanIn(), **QUICK)
    x, y = table(rows=10, columns=500)
    model.fit(x, y)
    network = model.posterior_.model
    assert network[0].in_features < 20
    assert model._precisions(network, FanIn(), 500)[0].tolist() == [500.0, 1.0, 4.0, 1.0]


CHAINS = 48


def without_data(prior, every_weight):
    """Mean of θ² by tensor, of chains whose losses are 0."""
    torch.manual_seed(0)
    networks = [torch.nn.Linear(6, 4) for _ in range(CHAINS)]
    chains = Chains(networks, prior_precision=every_weight)
    flatten(chains)

    def losses(rows):
        return sum(0.0 * p.reshape(chains.count, -1).sum(1) for p in chains.parameters())

    equalise(chains, losses, 20)
    settings = {"tuning_steps": 200, "steps": 500, "samples": 125, "batch_size": None, "seed": 0}
    samples, _ = sample(chains, losses, 20, networks[0], prior=prior, **settings)
    return {name: float(torch.stack([s[name] for s in samples]).square().mean()) for name in ("weight", "bias")}


def test_without_data_weights_follow_their_prior():
    """N(0, 1/λ) by tensor; and with a sampled λ a mean square of E[1/λ] = rate/(shape − 1)."""
    of_fan_in = torch.tensor([6.0, 0.5]).expand(CHAINS, -1)
    square = without_data(None, of_fan_in)
    assert square["weight"] == pytest.approx(1 / 6, rel=0.15)
    assert square["bias"] == pytest.approx(2.0, rel=0.2)
    square = without_data(GammaHyperprior(shape=10.0, rate=4.5, every=5), torch.ones(CHAINS, 2))
    assert square["weight"] == pytest.approx(0.5, rel=0.2)
    assert square["bias"] == pytest.approx(0.5, rel=0.25)


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("warm_start", [False, True])
def test_samples_of_a_fit_that_ctrl_c_ends_are_kept_for_a_warm_start(warm_start, monkeypatch):
    x, y = table()
    model = BayesianMLPRegressor(warm_start=warm_start, **{**QUICK, "n_steps": 200, "n_samples": 40})
    calls = []
    original = BayesianMLPRegressor._nll

    def interrupted(self, outputs, targets):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(self, outputs, targets)

    monkeypatch.setattr(BayesianMLPRegressor, "_nll", interrupted)
    at = 300  # while it samples
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y)
    assert hasattr(model, "posterior_") is warm_start
    if warm_start:
        assert 2 <= len(model.posterior_) < 80
        assert np.isfinite(model.predict(x)).all()
        assert model.fit(x, y).verdict_.draws >= 40
    calls.clear()
    at = 3  # while it warms up: what was there stays
    before = dict(model.__dict__)
    with pytest.raises(KeyboardInterrupt):
        clone(model).fit(x, y)
    calls.clear()
    model.warm_start = False
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y)
    assert model.__dict__.keys() == before.keys()
