"""From fresh weights to samples: the law of the sampling, and what is found on the way."""

import pytest
import torch
from torch import nn

from learned_samplers.estimators import tuned_steps
from learned_samplers.estimators.sampling import (
    begin_with_means,
    burn_in_of,
    equalise,
    flatten,
    sample,
    warm_up,
)
from learned_samplers.posterior import Chains
from learned_samplers.priors import Relevance

INPUTS = torch.randn(60, 12, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 3.0, 0.3] * 4)
TARGETS = INPUTS @ torch.tensor([0.3, -0.2, 0.5] * 4) + 0.1
PRIOR = 2.0


def losses_of(chains, targets=TARGETS):
    def losses(rows):
        rows = slice(None) if rows is None else rows
        return 0.5 * (chains(INPUTS[rows])[..., 0] - targets[rows]).square().mean(1)

    return losses


def linear(count=16, prior=PRIOR):
    torch.manual_seed(0)
    return Chains([nn.Linear(12, 1) for _ in range(count)], prior_precision=prior)


def exact():
    design = torch.cat([INPUTS, torch.ones(60, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design + PRIOR * torch.eye(13).double())
    return covariance @ design.T @ TARGETS.double(), covariance.diagonal().sqrt()


def draws(samples):
    return torch.stack([torch.cat([s["weight"][0], s["bias"]]) for s in samples]).double()


OPTIONS = {"model": nn.Linear(12, 1), "samples": 200, "seed": 0}


#: Of each law by its batch size: chains, and steps of each.
CHAINS = {None: (48, 400), 30: (16, 1000)}


def law(batch_size, count=1.0):
    """Shifts of the means and ratios of the spreads of all weights to the exact ones, and the temperature."""
    number, steps = CHAINS[batch_size]
    chains = linear(number)
    warm_up(chains, losses_of(chains), torch.arange(60), torch.arange(0), 60, steps=200, lr=0.1)
    equalise(chains, losses_of(chains), 60)
    options = {**OPTIONS, "batch_size": batch_size, "tuning_steps": 500, "steps": steps, "samples": steps // 5}
    samples, trace = sample(chains, lambda rows: count * losses_of(chains)(rows), 60, **options)
    mean, spread = exact()
    assert set(samples.chains) == set(range(number))
    return (draws(samples).mean(0) - mean) / spread, draws(samples).std(0) / spread, trace.temperature


#: Of each weight's spread, and of their mean: on all rows, and on minibatches of half.
WIDTHS = {None: (0.07, 0.04), 30: (0.25, 0.06)}


@pytest.mark.parametrize("batch_size", WIDTHS)
def test_the_law_of_the_default_settings(batch_size):
    """Means within 0.15 standard deviations, these within 7 % for every weight (minibatches: 25 %)."""
    shift, width, temperature = law(batch_size)
    tolerance, together = WIDTHS[batch_size]
    assert shift.abs().max() < 0.15
    assert (width - 1).abs().max() < tolerance
    assert abs(width.mean() - 1) < together
    assert abs(temperature - 1) < 0.15
    assert abs(law(batch_size, count=4 / 3)[1].mean() - 1) > 0.07  # the planted fault: data counted wrongly


class OneForAll(Relevance):
    """Planted: one precision, of all inputs together."""

    def of_inputs(self, weight, temperature=1.0, generator=None):
        together = super().of_inputs(weight.flatten(-2)[..., None], temperature, generator)
        return together.expand(*together.shape[:-1], weight.shape[-1])


RELEVANCE, CURVATURE = Relevance(shape=2.0, rate=0.5), 4.0
BEST = torch.tensor([0.0, 0.2, 0.5, 1.0, 2.0, 4.0], dtype=torch.float64)


def moments_under_relevance():
    """Means and deviations of p(w) ∝ exp(−½c(w − ŵ)²)·(rate + w²/2)^(−shape − ½), by a sum over a grid."""
    w = torch.linspace(-6, 10, 20_001, dtype=torch.float64)[:, None]
    energy = 0.5 * CURVATURE * (w - BEST).square()
    density = (-energy - (RELEVANCE.shape + 0.5) * (RELEVANCE.rate + w.square() / 2).log()).softmax(0)
    mean = (density * w).sum(0)
    return mean, (density * (w - mean).square()).sum(0).sqrt()


def errors_under(relevance):
    torch.manual_seed(0)
    chains = Chains([nn.Linear(6, 1, bias=False) for _ in range(192)], prior_precision=1.0)

    def losses(rows):
        return 0.5 * CURVATURE * (chains.weights()["weight"][:, 0] - BEST.float()).square().sum(1)

    settings = dict(tuning_steps=200, steps=1000, samples=50, batch_size=None, seed=0, relevance=relevance)
    samples, _ = sample(chains, losses, 1, nn.Linear(6, 1, bias=False), **settings)
    drawn = torch.stack([state["weight"][0] for state in samples]).double()
    mean, deviation = moments_under_relevance()
    return ((drawn.mean(0) - mean) / deviation).abs().max(), (drawn.std(0) / deviation - 1).abs().max()


def test_weights_have_the_joint_law_with_the_precisions_of_their_inputs():
    """Means within 0.1 standard deviations, these within 10 %."""
    shift, width = errors_under(RELEVANCE)
    assert shift < 0.1
    assert width < 0.1
    assert max(errors_under(OneForAll(shape=2.0, rate=0.5))) > 0.3


def test_the_law_finds_steps_that_are_too_long(monkeypatch):
    """Another planted fault: at five times the energy error all weights are too wide."""
    monkeypatch.setattr(tuned_steps, "ENERGY_VARIANCE", (0.5, 0.1))
    _, width, _ = law(None)
    assert (width - 1).max() > 0.07
    assert width.mean() - 1 > 0.04


def test_an_energy_that_is_not_finite_begins_again_with_a_smaller_step():
    chains, calls = linear(2), []

    def losses(rows):
        calls.append(1)
        return losses_of(chains)(rows) * (float("nan") if len(calls) == 30 else 1.0)

    samples, _ = sample(chains, losses, 60, **{**OPTIONS, "samples": 10}, batch_size=None, tuning_steps=20, steps=40)
    assert len(calls) == 30 + 60
    assert torch.isfinite(draws(samples)).all()
    with pytest.raises(FloatingPointError, match=r"energy.*lr"):
        sample(
            chains, lambda rows: losses(rows) * float("inf"), 60, **OPTIONS, batch_size=None, tuning_steps=2, steps=200
        )


def test_warm_up_leaves_each_chain_where_held_out_rows_were_best():
    """Training rows of pure noise: the best is near the beginning, the last weights are worse."""
    random = torch.randn(60, generator=torch.Generator().manual_seed(1))
    rows, held_out = torch.arange(10), torch.arange(10, 60)
    ends = []
    for held in (held_out, held_out[:0]):
        chains = linear(4, prior=0.0)
        losses = losses_of(chains, random)
        steps = warm_up(chains, losses, rows, held, 60, steps=300, lr=0.1)
        ends.append(losses(held_out).detach())
        assert steps == 300 if not len(held) else steps < 300
    assert (ends[0] < ends[1]).all()


@pytest.mark.parametrize("astray", [False, True])
def test_chains_whose_means_went_astray_begin_again(astray):
    """With the other chains everything stays, to the bit."""
    chains = linear(4, prior=0.0)
    losses, rows, held_out = losses_of(chains), torch.arange(40), torch.arange(40, 60)
    fresh = flatten(chains).detach().clone()
    warm_up(chains, losses, rows, held_out, 60, steps=600, lr=0.1)
    if astray:
        flatten(chains).data.add_(1.0)
    before = flatten(chains).detach().clone()
    steps = begin_with_means(chains, losses, losses, fresh, rows, held_out, 60, steps=600)
    assert (steps > 100) is astray
    assert torch.equal(flatten(chains), before) is not astray
    assert (losses(held_out) < 1).all()


def test_scales_keep_the_networks_and_shrink_what_the_data_fix():
    chains = linear(2)
    before = chains(INPUTS)
    equalise(chains, losses_of(chains), 60)
    torch.testing.assert_close(chains(INPUTS), before)
    scale = chains.scale_0[0, 0]
    assert scale[1] < scale[0] < scale[2]  # inputs of spread 3, 1 and 0.3


def test_burn_in():
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert burn_in_of(noise) < 100
    late = noise + 20 * (torch.arange(1000) < 300)
    assert 290 <= burn_in_of(late) <= 320
    assert burn_in_of(torch.arange(1000.0)) >= 400  # a drift that does not end
    assert burn_in_of(torch.ones(1)) == 0
