"""Diagnostics against closed forms."""

import numpy as np
import pytest
import torch
from scipy import signal, stats
from torch import nn

from learned_samplers import PosteriorSamples, diagnostics
from learned_samplers.posterior.collect import SampleCollection


def autoregressive(rho, chains=4, draws=4000, coordinates=20, seed=0):
    """Stationary chains x' = ρx + √(1−ρ²) ξ of unit variance."""
    noise = np.random.default_rng(seed).standard_normal((chains, draws, coordinates))
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return signal.lfilter([1], [1, -rho], noise, axis=1)


def networks(count=4, seed=0):
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(count)]


def collection(members):
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members])


# -- effective sample size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mean", "bulk"])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.5])
def test_ess_of_an_autoregressive_chain(rho, method):
    estimate = diagnostics.ess(autoregressive(rho), method=method)
    expected = 16000 * (1 - rho) / (1 + rho)
    assert estimate.shape == (20,)
    # One estimate scatters by about 10 % at ρ = .9; the mean of twenty by 2 %.
    assert estimate.mean() == pytest.approx(expected, rel=0.08)


def test_ess_per_second():
    draws = autoregressive(0.5, draws=500)
    assert diagnostics.ess_per_second(draws, 4.0) == pytest.approx(diagnostics.ess(draws).mean() / 4)
    with pytest.raises(ValueError, match="seconds must be greater than 0, got 0"):
        diagnostics.ess_per_second(draws, 0)


# -- R-hat ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("ranks", [True, False])
@pytest.mark.parametrize("kappa", [2, 3, 4])
def test_chainwise_rhat_by_its_formula(kappa, ranks):
    draws = autoregressive(0.8, chains=2, draws=50, coordinates=3)
    length = 50 // kappa
    values = diagnostics.chainwise_rhat(draws, kappa, rank_normalize=ranks)
    if ranks:  # normal scores of what is not left out
        draws = draws[:, 50 - kappa * length :]
        order = draws.argsort(1).argsort(1) + 1
        draws = stats.norm.ppf((order - 3 / 8) / (kappa * length + 1 / 4))
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
    members = [networks(8, seed) for seed in (0, 1)]
    chains = [collection(m) for m in members]
    vectors = [[nn.utils.parameters_to_vector(network.parameters()) for network in chain] for chain in members]
    flat = torch.stack([torch.stack(chain) for chain in vectors]).detach()
    expected = diagnostics.ess(flat)
    np.testing.assert_array_equal(diagnostics.ess(chains), expected)
    np.testing.assert_array_equal(diagnostics.ess(chains[0].to_arviz(chains[1])), expected)
    np.testing.assert_array_equal(diagnostics.ess(chains[0]), diagnostics.ess(flat[:1].numpy()))
    merged = SampleCollection.merge(chains)
    for form in (merged, [merged], (merged,)):
        np.testing.assert_array_equal(diagnostics.ess(form), expected)
    functions = chains[0].predict_samples(torch.randn(6, 3))[None]
    assert diagnostics.chainwise_rhat(functions).shape == (1, 6, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: diagnostics.ess(d[:, :3]), ValueError, "draws must hold at least 4 draws a chain, got 3"),
        (lambda d: diagnostics.ess(d[0, :, 0]), ValueError, r"draws must have shape \(chain, draw, \.\.\.\)"),
        (lambda d: diagnostics.ess(d, "tail"), ValueError, "method must be one of 'mean', 'bulk', got 'tail'"),
        (lambda d: diagnostics.ess("chain"), TypeError, r"draws must be an array .*, got str"),
        (lambda d: diagnostics.ess(d / 0 * 0), ValueError, r"draws must be finite, got nan at \(0, 0, 0\)"),
        (lambda d: diagnostics.split_rhat(d[:1]), ValueError, "at least two chains, got 1: see chainwise_rhat"),
        (lambda d: diagnostics.chainwise_rhat(d, 1), ValueError, "num_splits must be at least 2, got 1"),
        (lambda d: diagnostics.chainwise_rhat(d, 3), ValueError, "at least 12 draws a chain, got 10"),
    ],
)
def test_bad_draws_are_named(call, error, message):
    draws = np.ones((2, 10, 3))
    with np.errstate(all="ignore"), pytest.raises(error, match=message):
        call(draws)


# -- geometry ----------------------------------------------------------------------------------------------------


def test_cosine_similarity():
    vectors = torch.tensor([[1.0, 0, 0], [1, 1, 0], [-2, 0, 0]])
    expected = [[1, 2**-0.5, -1], [2**-0.5, 1, -(2**-0.5)], [-1, -(2**-0.5), 1]]
    np.testing.assert_allclose(diagnostics.cosine_similarity(vectors), expected, atol=1e-12)
    samples = collection(networks())
    flat = torch.stack([torch.cat([t.flatten() for t in sample.values()]) for sample in samples])
    np.testing.assert_allclose(diagnostics.cosine_similarity(samples), diagnostics.cosine_similarity(flat))
    with pytest.raises(ValueError, match=r"samples\[1\] is zero everywhere"):
        diagnostics.cosine_similarity([torch.ones(2), torch.zeros(2)])
    with pytest.raises(ValueError, match=r"same number of parameters, got \[2, 3\]"):
        diagnostics.cosine_similarity([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match="samples must hold at least one sample"):
        diagnostics.cosine_similarity([])


def at(*values):
    return {"a": torch.tensor(values[:1], dtype=torch.float64), "b": torch.tensor(values[1:], dtype=torch.float64)}


def double_well(state):
    """(a² − 1)² + b²: minima at a = ±1, a hill of height 1 between them."""
    return (state["a"] ** 2 - 1) ** 2 + state["b"] ** 2


def test_barrier_of_a_quadratic_is_zero_and_of_a_double_well_one():
    def quadratic(state):
        return 3 * state["a"] ** 2 + state["b"] ** 2

    # A convex loss lies below its chord everywhere, and on it at the ends.
    assert diagnostics.loss_barrier(at(1, 2), at(-4, 1), quadratic) == 0
    lines = diagnostics.loss_lines([at(1, 2), at(-4, 1)], quadratic, num_points=3)
    assert lines.losses[0].tolist() == [7.0, 3 * 1.5**2 + 1.5**2, 49.0]
    # A concave one, −x² between −1 and 2: −x² + 1 + 3t with x = 3t − 1 is 9t(1 − t), at most 9/4.
    concave = diagnostics.loss_barrier(at(-1, 0), at(2, 0), lambda state: -(state["a"] ** 2))
    assert concave == pytest.approx(9 / 4)
    assert diagnostics.loss_barrier(at(-1, 0), at(1, 0), double_well) == pytest.approx(1)
    # Between unequal ends, (a, b) = (−1, 0) and (1, 2), the loss at t is (x² − 1)² + 4t² and the chord 4t.
    t = np.linspace(0, 1, 21)
    expected = (((2 * t - 1) ** 2 - 1) ** 2 + 4 * t**2 - 4 * t).max()
    assert diagnostics.loss_barrier(at(-1, 0), at(1, 2), double_well) == pytest.approx(expected)


def test_which_pairs():
    samples = [at(-1, 0), at(1, 0), at(1, 0.5), at(-1, 0)]
    consecutive = diagnostics.loss_lines(samples, double_well)
    assert consecutive.pairs == [(0, 1), (1, 2), (2, 3)]
    np.testing.assert_allclose(consecutive.barriers[:2], [1, 0], atol=1e-12)
    every = diagnostics.loss_lines(samples, double_well, pairs="all", num_points=5)
    assert every.pairs == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert every.losses.shape == (6, 5)
    assert every.positions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    chosen = diagnostics.loss_lines(samples, double_well, pairs=[(3, 1)])
    assert chosen.barriers == pytest.approx([1])


@pytest.mark.parametrize("kind", ["nll", "error"])
def test_network_loss_along_a_line(kind):
    samples = collection(networks())
    x, labels = torch.randn(50, 3), torch.arange(50) % 2
    loss = diagnostics.network_loss(samples, x, labels, kind=kind, batch_size=16)
    lines = diagnostics.loss_lines(samples, loss, num_points=3)
    middle = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    middle.load_state_dict({name: (tensor + samples[1][name]) / 2 for name, tensor in samples[0].items()})
    with torch.no_grad():
        logits = middle(x)
    expected = (
        nn.functional.cross_entropy(logits, labels) if kind == "nll" else (logits.argmax(1) != labels).float().mean()
    )
    assert lines.losses[0, 1] == pytest.approx(expected.item(), rel=1e-5)


def test_network_loss_refuses_frozen_weights_that_are_not_those_of_the_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5).requires_grad_(False), nn.Tanh(), nn.Linear(5, 2))
    sampler = torch.optim.SGD(model[2].parameters(), lr=0.1)
    samples = PosteriorSamples(model, sampler, store_frozen=False)
    x, labels = torch.randn(8, 3), torch.arange(8) % 2
    nn.functional.cross_entropy(model(x), labels).backward()
    sampler.step()
    assert diagnostics.network_loss(samples, x, labels)(samples[0]) > 0
    model[0].weight.data = 3 * model[0].weight.data
    with pytest.raises(ValueError, match=r"the samples: the frozen parameters are not stored there.*'0\.weight'"):
        diagnostics.network_loss(samples, x, labels)


def test_bad_lines_are_named():
    pair = [at(-1, 0), at(1, 0)]
    with pytest.raises(ValueError, match="num_points must be at least 3, got 2"):
        diagnostics.loss_lines(pair, double_well, num_points=2)
    with pytest.raises(ValueError, match="pairs must be one of 'consecutive', 'all', got 'some'"):
        diagnostics.loss_lines(pair, double_well, pairs="some")
    with pytest.raises(ValueError, match=r"pairs must be indices of the 2 samples, got \(0, 2\)"):
        diagnostics.loss_lines(pair, double_well, pairs=[(0, 2)])
    with pytest.raises(ValueError, match="at least two samples to draw a line between, got 1"):
        diagnostics.loss_lines(pair[:1], double_well)
    with pytest.raises(ValueError, match="samples 0 and 1 have different parameters"):
        diagnostics.loss_lines([at(1, 2), {"a": torch.ones(2)}], double_well)
    with pytest.raises(ValueError, match=r"loss must be finite, got inf between samples 0 and 1 at t=0\.000"):
        diagnostics.loss_lines(pair, lambda state: float("inf"))
    samples = collection(networks())
    with pytest.raises(ValueError, match="kind must be one of 'nll', 'error', got 'brier'"):
        diagnostics.network_loss(samples, torch.zeros(2, 3), torch.zeros(2), kind="brier")
    with pytest.raises(ValueError, match="labels must be as many as the 2 inputs, got 3"):
        diagnostics.network_loss(samples, torch.zeros(2, 3), torch.zeros(3))
    norm = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="samples: Sequential has running statistics"):
        diagnostics.network_loss(collection([norm, norm]), torch.zeros(2, 3), torch.zeros(2))
