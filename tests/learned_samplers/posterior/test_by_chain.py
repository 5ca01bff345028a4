"""Several chains: the variance within and between them, and weights by the density of held-out targets."""

import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection
from learned_samplers.posterior.by_chain import stacking_weights
from tests.learned_samplers.posterior.common import X, Y, network


def chain(model, centre, spread, count, seed):
    """A collection whose weights scatter by ``spread`` about a network's."""
    generator = torch.Generator().manual_seed(seed)
    weights = [
        {name: p.detach() + spread * torch.randn(p.shape, generator=generator) for name, p in centre.named_parameters()}
        for _ in range(count)
    ]
    return SampleCollection.from_samples(model, weights)


def merged(spread=0.1, counts=(4, 4, 4), seeds=(1, 2, 3)):
    model = network()
    chains = [chain(model, network(seed=s), spread, n, s) for s, n in zip(seeds, counts, strict=True)]
    return SampleCollection.merge(chains)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output": "multilabel"},
        {"output": "regression", "noise": 0.3},
        {"batch_size": 7, "sample_chunk": 3},
    ],
)
def test_the_parts_add_up_to_uncertainty(options):
    samples = merged(counts=(4, 2, 5))
    split, plain = samples.by_chain(X, **options), samples.uncertainty(X, **options)
    for name in ("mean", "total", "aleatoric"):
        torch.testing.assert_close(getattr(split, name), getattr(plain, name))
    torch.testing.assert_close(split.within + split.between, plain.epistemic)


def test_within_and_between_are_those_of_the_groups():
    samples, options = merged(), {"output": "regression"}
    values = samples.predict_samples(X, **options).double().view(3, 4, *Y.shape, 3)
    split = samples.by_chain(X, **options)
    torch.testing.assert_close(split.within.double(), values.var(1, correction=0).mean(0), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(split.between.double(), values.mean(1).var(0, correction=0), rtol=1e-4, atol=1e-7)


def test_chains_of_one_law_agree_and_constant_ones_have_nothing_within():
    model, centre = network(), network(seed=2)
    same = SampleCollection.merge([chain(model, centre, 0.3, 60, seed) for seed in (1, 2, 3)]).by_chain(X)
    assert same.between.mean() < 0.05 * same.within.mean()  # 1/60 of it, but for the axes of few samples
    still = merged(spread=0.0).by_chain(X)
    assert still.within.abs().max() < 1e-6 < still.between.min()


def test_weights_choose_chains():
    samples = merged()
    first = samples.split()[0]
    torch.testing.assert_close(samples.by_chain(X, [2.0, 0.0, 0.0]).mean, first.predict(X))
    halves = samples.by_chain(X, torch.tensor([1.0, 0.0, 1.0])).mean
    expected = (first.predict(X) + samples.split()[2].predict(X)) / 2
    torch.testing.assert_close(halves, expected)


def test_stacking_finds_the_weights_of_a_mixture():
    generator = torch.Generator().manual_seed(0)
    centres, true = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([0.7, 0.0, 0.3])
    x = centres[torch.multinomial(true, 4000, replacement=True, generator=generator)]
    x = x + torch.randn(4000, generator=generator)
    logs = torch.distributions.Normal(centres[:, None], 1.0).log_prob(x)
    weights = stacking_weights(logs)
    assert weights.sum() == pytest.approx(1)
    assert (weights - true).abs().max() < 0.05
    # No weights on a grid are better.
    best = (logs.double() + weights.log()[:, None]).logsumexp(0).mean()
    for mixture in torch.distributions.Dirichlet(torch.ones(3)).sample((200,)):
        assert (logs.double() + mixture.double().log()[:, None]).logsumexp(0).mean() <= best + 1e-6


@pytest.mark.parametrize("options", [{}, {"output": "regression", "noise": 0.2}])
def test_stacking_takes_the_chain_that_made_the_targets(options):
    samples = merged(spread=0.01)
    raw = samples.split()[1].predict_samples(X, output="regression").mean(0)
    targets = raw if options else raw.mul(30).softmax(1).argmax(1)
    if not options:  # classes of sharper logits: a chain of sharp ones is right
        sharp = [{n: 30 * p if n.startswith("2") else p for n, p in sample.items()} for sample in samples]
        samples = SampleCollection.merge(
            [SampleCollection.from_samples(samples.model, sharp[k : k + 4]) for k in range(0, 12, 4)]
        )
    weights = samples.stack(X, targets, batch_size=6, **options)
    assert weights.argmax() == 1
    assert weights[1] > 0.95
    uniform, stacked = samples.by_chain(X, **options).mean, samples.by_chain(X, weights, **options).mean
    assert not torch.equal(uniform, stacked)


def test_log_densities_are_those_of_the_predictions():
    samples = merged(counts=(4, 2, 3))
    expected = torch.stack([part.predict(X, log=True).gather(1, Y[:, None])[:, 0] for part in samples.split()])
    logs = samples._log_densities(X, Y, {"batch_size": 6, "sample_chunk": 3})
    torch.testing.assert_close(logs, expected.double(), rtol=1e-4, atol=1e-5)


def test_refusals():
    samples = merged()
    for weights in ([1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, float("nan"), 1.0]):
        with pytest.raises(ValueError, match="weights must be a number"):
            samples.by_chain(X, weights)
    with pytest.raises(ValueError, match="noise must be given"):
        samples.stack(X, torch.zeros(20, 3), output="regression")
    for y in (Y[:10], torch.cat([Y, Y]), torch.zeros(20, 3)):
        with pytest.raises(ValueError, match="y must have"):
            samples.stack(X, y)
    with pytest.raises(ValueError, match="by_chain needs to know"):
        samples.by_chain(X, output=nn.functional.softplus)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda y: y + 3, ValueError, "y must have classes from 0 to 2, got values from 3"),
        (lambda y: y - 1, ValueError, "y must have classes from 0 to 2, got values from -1"),
        (lambda y: y + 0.5, ValueError, "y must have classes from 0 to 2, got values from 0.5"),
        (lambda y: y * float("nan"), ValueError, "y must have classes"),
        (lambda y: y[0], ValueError, "a target for each row of x, got the number"),
        (lambda y: "a", TypeError, "y must be a tensor or an array, got str"),
    ],
)
def test_targets_that_are_no_classes_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        merged().stack(X, change(Y))
    torch.testing.assert_close(merged().stack(X, Y.float()), merged().stack(X, Y))


def test_a_regression_without_a_variance_or_with_a_target_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="y must be finite"):
        merged().stack(X, torch.full((len(X), 3), float("nan")), output="regression", noise=0.3)
    for predict in (SampleCollection.draws, SampleCollection.uncertainty, SampleCollection.by_chain):
        with pytest.raises(ValueError, match="a variance or scale that is not above 0"):
            predict(SampleCollection.merge([two_headed()]), X, output="regression", noise="scale")
    with pytest.raises(ValueError, match="a variance or scale that is not above 0"):
        two_headed().stack(X, torch.zeros(len(X)), output="regression", noise="scale")


def two_headed():
    model = nn.Linear(X.shape[1], 2)
    return chain(model, model, 1.0, 3, 1)
