"""Convergence diagnostics against closed forms."""

import numpy as np
import pytest
import torch
from scipy import signal, stats
from torch import nn

from learned_samplers import SampleCollection, diagnostics
from tests.learned_samplers.posterior.common import collection, ensemble


def autoregressive(rho, chains=4, draws=4000, coordinates=20, seed=0):
    """Stationary chains x' = ρx + √(1−ρ²) ξ of unit variance."""
    noise = np.random.default_rng(seed).standard_normal((chains, draws, coordinates))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return signal.lfilter([1], [1, -rho], noise, axis=1)


@pytest.mark.parametrize("method", ["mean", "bulk"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.5])
def test_ess_of_an_autoregressive_chain(rho, method):
    estimate = diagnostics.ess(autoregressive(rho), method=method)
    expected = 16000 * (1 - rho) / (1 + rho)
    assert estimate.shape == (20,)
    # One estimate scatters by about 10 % at ρ = 0.9; the mean of twenty by 2 %.
    assert estimate.mean() == pytest.approx(expected, rel=0.08)
    if method == "mean":  # the default
        assert diagnostics.ess_per_second(autoregressive(rho), 4.0) == pytest.approx(estimate.mean() / 4)


@pytest.mark.parametrize("kind", ["inference data", "tree"])
def test_chains_from_elsewhere_are_all_their_variables(kind):
    xarray, arviz = pytest.importorskip("xarray"), pytest.importorskip("arviz")
    draws = autoregressive(0.5, draws=200, coordinates=3)
    dataset = xarray.Dataset(
        {
            "a": xarray.DataArray(draws[..., 0].T, dims=("draw", "chain")),
            "b": xarray.DataArray(draws[..., 1:], dims=("chain", "draw", "place")),
        }
    )
    value = (
        arviz.InferenceData(posterior=dataset)
        if kind == "inference data"
        else xarray.DataTree.from_dict({"posterior": dataset})
    )
    np.testing.assert_allclose(diagnostics.ess(value), diagnostics.ess(draws))
    np.testing.assert_allclose(diagnostics.split_rhat(value), diagnostics.split_rhat(draws))


@pytest.mark.parametrize("method", ["rank", "split"])
def test_rhat_tells_agreeing_from_shifted_chains(method):
    draws = autoregressive(0.0, draws=1000)
    assert np.abs(diagnostics.split_rhat(draws, method) - 1).max() < 0.01
    shifted = draws + np.array([0, 0, 0, 2.0])[:, None, None]
    assert diagnostics.split_rhat(shifted, method).min() > 1.1
    drifting = draws + np.linspace(0, 3, 1000)[:, None]
    assert diagnostics.split_rhat(drifting, method).min() > 1.1, "chains that drift together"


def test_plain_split_rhat_by_its_formula():
    draws = autoregressive(0.8, chains=2, draws=40, coordinates=3)
    halves = draws.reshape(4, 20, 3)
    within, between = halves.var(1, ddof=1).mean(0), halves.mean(1).var(0, ddof=1)
    expected = np.sqrt((19 / 20 * within + between) / within)
    np.testing.assert_allclose(diagnostics.split_rhat(draws, "split"), expected, rtol=1e-12)


@pytest.mark.parametrize("kappa", [2, 3, 4])
def test_chainwise_rhat_by_its_formula(kappa):
    draws = autoregressive(0.8, chains=2, draws=50, coordinates=3)
    length = 50 // kappa
    values = diagnostics.chainwise_rhat(draws, kappa)
    draws = draws[:, 50 - kappa * length :]
    order = draws.argsort(1).argsort(1) + 1
    draws = stats.norm.ppf((order - 3 / 8) / (kappa * length + 1 / 4))  # normal scores of what is not left out
    assert values.shape == (2, 3)
    for chain in range(2):
        pieces = draws[chain, -kappa * length :].reshape(kappa, length, 3)
        within, between = pieces.var(1, ddof=1).mean(0), pieces.mean(1).var(0, ddof=1)
        np.testing.assert_allclose(values[chain], np.sqrt(((length - 1) / length * within + between) / within))


def test_chainwise_rhat_ignores_where_a_chain_sits():
    draws = autoregressive(0.0, draws=400)
    apart = draws + 100 * np.arange(4)[:, None, None]
    np.testing.assert_allclose(diagnostics.chainwise_rhat(apart), diagnostics.chainwise_rhat(draws), rtol=1e-6)
    assert diagnostics.converged_share(apart) == 1
    assert diagnostics.split_rhat(apart).min() > 1.1
    # Half of the coordinates jump in the middle of the chain.
    jumping = draws.copy()
    jumping[:, 200:, :10] += 5
    assert diagnostics.converged_share(jumping) == 0.5
    # A monotone map changes no rank.
    np.testing.assert_allclose(diagnostics.chainwise_rhat(np.exp(draws)), diagnostics.chainwise_rhat(draws))


def test_merged_chains_in_a_list_are_the_chains_that_they_were():
    """One after the other as one chain of two halves they disagreed with themselves: a share of 0 instead of 1."""
    generator = torch.Generator().manual_seed(0)
    chains = []
    for place in (0.0, 10.0, 0.0, 10.0):
        states = [{"weight": torch.randn(1, 1, generator=generator) + place} for _ in range(50)]
        chains.append(SampleCollection.from_samples(nn.Linear(1, 1, bias=False), states))
    pairs = [SampleCollection.merge(chains[:2]), SampleCollection.merge(chains[2:])]
    assert diagnostics.converged_share(chains) == diagnostics.converged_share(pairs) == 1
    for form in (pairs, [pairs[0], *chains[2:]]):
        np.testing.assert_array_equal(diagnostics.chainwise_rhat(form), diagnostics.chainwise_rhat(chains))
        np.testing.assert_array_equal(diagnostics.split_rhat(form), diagnostics.split_rhat(chains))


def test_a_coordinate_that_never_moves():
    draws = autoregressive(0.0, draws=100, coordinates=2)
    draws[..., 1] = 3.0
    assert np.isnan(diagnostics.split_rhat(draws)).tolist() == [False, True]
    assert diagnostics.converged_share(draws) == 0.5
    assert diagnostics.ess(draws)[1] == 400


def test_draws_in_every_form():
    every = ensemble(count=16)
    members = [every[:8], every[8:]]
    chains = [collection(m) for m in members]
    vectors = [[nn.utils.parameters_to_vector(one.parameters()) for one in chain] for chain in members]
    flat = torch.stack([torch.stack(chain) for chain in vectors]).detach()
    expected = diagnostics.ess(flat)
    np.testing.assert_array_equal(diagnostics.ess(chains), expected)
    np.testing.assert_array_equal(diagnostics.ess(chains[0].to_arviz(chains[1])), expected)
    np.testing.assert_array_equal(diagnostics.ess(chains[0]), diagnostics.ess(flat[:1].numpy()))
    merged = SampleCollection.merge(chains)
    for form in (merged, [merged], (merged,)):
        np.testing.assert_array_equal(diagnostics.ess(form), expected)
    functions = chains[0].predict_samples(torch.randn(6, 4))[None]
    assert diagnostics.chainwise_rhat(functions).shape == (1, 6, 3)


def test_chains_of_unequal_length_are_compared_by_their_last_draws():
    draws = np.random.default_rng(0).normal(size=(3, 40, 2))
    ragged = [draws[0], torch.from_numpy(draws[1, 10:]), draws[2, 4:]]
    np.testing.assert_array_equal(diagnostics.split_rhat(ragged), diagnostics.split_rhat(draws[:, 10:]))
    model = nn.Linear(1, 1)
    states = [[{"weight": torch.tensor([[a]]), "bias": torch.tensor([b])} for a, b in chain] for chain in draws]
    chains = [SampleCollection.from_samples(model, states[0]), SampleCollection.from_samples(model, states[1][10:])]
    expected = diagnostics.split_rhat(draws[:2, 10:])
    for collections in (chains, SampleCollection.merge(chains)):
        np.testing.assert_allclose(diagnostics.split_rhat(collections), expected, rtol=1e-5)
