"""Estimators as modules: what is exported predicts as the estimator does, in a file and for any number of rows."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from learned_samplers.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from learned_samplers.priors import Relevance

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SMALL = {"n_chains": 2, "n_samples": 5, "n_steps": 40, "tuning_steps": 20, "warmup_steps": 50, "random_state": 0}
SMALL |= {"hidden_layer_sizes": (8,)}


def exported(module, x, path):
    """The module after a way through a file of torch.export."""
    program = torch.export.export(module, (x[:2],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, path)
    return torch.export.load(path).module()


def traced(module, x, path):
    """The module after a way through a file of TorchScript."""
    torch.jit.save(torch.jit.trace(module, (x[:2],)), path)
    return torch.jit.load(path)


@cache
def fitted(kind, columns=3, **settings):
    random = np.random.default_rng(0)
    x = 100 + 5 * random.standard_normal((60, columns))
    y = {"classes": x[:, 0] > 100, "targets": x[:, :2]}.get(kind, 7 * x[:, 0] + random.standard_normal(60))
    estimator = BayesianMLPClassifier if kind == "classes" else BayesianMLPRegressor
    return estimator(**{**SMALL, **settings}).fit(x, y), torch.as_tensor(x[:11] + 1)


# torch itself says that TorchScript is on its way out.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("through_file", [exported, traced])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("one", {"noise": "homoscedastic"}),
        ("targets", {"noise": 0.3}),
        ("one", {"columns": 130}),  # more columns than rows: in their span
        ("targets", {"prior_precision": Relevance(), "activation": "silu"}),
        ("classes", {"activation": "relu"}),
    ],
)
def test_what_is_exported_predicts_the_same(kind, settings, through_file, tmp_path):
    model, x = fitted(kind, **settings)
    module = through_file(model.as_module(), x, tmp_path / "model.pt2")
    result = module(x)
    if kind == "classes":
        assert result.shape == (len(model.posterior_), 11, 2)
        np.testing.assert_allclose(result.mean(0), model.predict_proba(x.numpy()), rtol=1e-5)
        return
    means, scales = result
    mean, std = model.predict(x.numpy(), return_std=True)
    torch.testing.assert_close(means, model.predict_samples(x), rtol=1e-5, atol=1e-4)
    assert means.shape == scales.shape == (len(model.posterior_), *mean.shape)
    np.testing.assert_allclose(means.mean(0), mean, rtol=1e-6)
    spread = (scales.square().mean(0) + means.var(0, correction=0)).sqrt()
    np.testing.assert_allclose(spread, std, rtol=1e-4)


def test_a_module_keeps_the_fit_it_was_made_of():
    model, x = fitted("one")
    module = model.as_module()
    before = module(x)[0]
    model.fit(x.numpy(), x.numpy()[:, 1])
    assert torch.equal(module(x)[0], before)
    assert not torch.allclose(model.as_module()(x)[0][: len(before)], before[: len(model.posterior_)])
    assert not list(module.parameters())
    with pytest.raises(NotFittedError):
        BayesianMLPRegressor().as_module()
