"""The BoTorch model: the samples' own values, gradients, and an optimum that is found over them."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection
from learned_samplers.estimators import BayesianMLPRegressor

pytest.importorskip("botorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # BoTorch's and GPyTorch's own

SHORT = {"n_chains": 2, "n_samples": 10, "n_steps": 300, "tuning_steps": 100, "warmup_steps": 400}


def network_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    weights = [{name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(5)]
    return SampleCollection.from_samples(model, weights)


def sampled(draws, **options):
    from learned_samplers.integrations.botorch import SampledFunctions

    return SampledFunctions(draws, **options)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_posterior_holds_the_samples_values_and_their_gradients(maximize):
    samples = network_samples()
    draws = partial(samples.predict_samples, output="regression")
    x = torch.rand(4, 2, 3, requires_grad=True)  # batch, q, d
    posterior = sampled(draws, maximize=maximize).posterior(x)
    assert posterior.ensemble_size == 5
    sign = 1 if maximize else -1
    for batch in range(4):
        values = samples.predict_samples(x[batch].detach(), output="regression")
        torch.testing.assert_close(posterior.values[batch], sign * values)
    torch.testing.assert_close(posterior.mean, posterior.values.mean(-3))
    (slopes,) = torch.autograd.grad(posterior.mean.sum(), x)
    step = torch.zeros_like(x).index_fill_(2, torch.tensor([1]), 1e-2)
    with torch.no_grad():
        models = sampled(draws, maximize=maximize)
        difference = models.posterior(x + step).mean - models.posterior(x - step).mean
    torch.testing.assert_close(slopes[..., 1], difference[..., 0] / 2e-2, rtol=0.02, atol=2e-3)


def test_a_transform_of_the_posterior_is_applied():
    from botorch.acquisition.objective import ScalarizedPosteriorTransform

    samples = network_samples()
    model = sampled(lambda x: samples.predict_samples(x, output="regression").expand(-1, -1, 2), num_outputs=2)
    x = torch.rand(3, 3)
    assert model.num_outputs == 2
    assert model.posterior(x).mean.shape == (3, 2)
    assert model.posterior(x, output_indices=[1]).mean.shape == (3, 1)
    with pytest.raises(Exception, match=r"EnsemblePosterior|_extended_shape|scalarize"):  # BoTorch's own limit
        model.posterior(x, posterior_transform=ScalarizedPosteriorTransform(torch.ones(2)))


def test_expected_improvement_over_a_fitted_regressor_finds_the_top_of_a_hill():
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    random = np.random.default_rng(0)
    x = random.uniform(size=(60, 2))
    y = -((x - [0.3, 0.7]) ** 2).sum(1)
    model = BayesianMLPRegressor(noise="homoscedastic", random_state=0, warn_unsettled=False, **SHORT).fit(x, y)
    torch.manual_seed(0)
    acquisition = qLogExpectedImprovement(sampled(model.predict_samples), best_f=float(y.max()))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    candidate, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=3, raw_samples=64)
    assert (candidate[0] - torch.tensor([0.3, 0.7])).abs().max() < 0.15
    away = sampled(model.predict_samples, maximize=False)
    torch.manual_seed(0)
    acquisition = qLogExpectedImprovement(away, best_f=float(-y.min()))
    candidate, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=3, raw_samples=64)
    assert (candidate[0] - torch.tensor([1.0, 0.0])).abs().max() < 0.15  # the corner that is farthest away


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: sampled(None), TypeError, "draws.*NoneType"),
        (lambda: sampled(len, num_outputs=0), ValueError, "num_outputs.*0"),
        (lambda: sampled(len, maximize="yes"), TypeError, "maximize.*'yes'"),
        (lambda: sampled(lambda x: x).posterior(torch.rand(4, 3)), ValueError, r"draws must give .*\(4, 3\)"),
        (lambda: sampled(lambda x: x.T, num_outputs=2).posterior(torch.rand(4, 3)), ValueError, "num_outputs=2"),
    ],
)
def test_what_it_refuses(call, error, named):
    with pytest.raises(error, match=named):
        call()
