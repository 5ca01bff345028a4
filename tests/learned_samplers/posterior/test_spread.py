"""Uncertainty and draws, against closed forms."""

import math

import pytest
import torch

from tests.learned_samplers.posterior.test_predict import FAR, X, constants, outputs

LOG2 = torch.full((7,), math.log(2))


def test_samples_that_are_sure_and_disagree_are_epistemic():
    uncertainty = constants([FAR, 0.0], [0.0, FAR]).uncertainty(X)
    torch.testing.assert_close(tuple(uncertainty), (torch.full((7, 2), 0.5), LOG2, torch.zeros(7), LOG2))


@pytest.mark.parametrize(("values", "options"), [((0.0, 0.0), {}), ((0.0,), {"output": "binary"})])
def test_samples_that_agree_on_not_knowing_are_aleatoric(values, options):
    uncertainty = constants(values, values, values).uncertainty(X, sample_chunk=2, **options)
    assert (uncertainty.epistemic == 0).all()
    torch.testing.assert_close(uncertainty.total.flatten(), LOG2)
    torch.testing.assert_close(uncertainty.aleatoric, uncertainty.total)


def test_two_classes_and_one_logit_are_the_same():
    logits = [(0.3, -1.0), (2.0, 0.5), (-1.0, 1.0)]
    two = constants(*logits).uncertainty(X)
    one = constants(*[(b - a,) for a, b in logits]).uncertainty(X, output="binary")
    torch.testing.assert_close(one.mean[:, 0], two.mean[:, 1])
    for name in ("total", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(one, name)[:, 0], getattr(two, name))
    torch.testing.assert_close(two.total, two.aleatoric + two.epistemic)


def test_uncertainty_of_classes_on_another_axis():
    samples, raw = outputs(6, lambda out: out.view(-1, 2, 3))
    uncertainty, p = samples.uncertainty(X, class_axis=-1), raw.view(3, 7, 2, 3).softmax(-1)
    entropy = lambda q: -(q * q.log()).sum(-1)  # noqa: E731
    torch.testing.assert_close(uncertainty.total, entropy(p.mean(0)))
    torch.testing.assert_close(uncertainty.aleatoric, entropy(p).mean(0))
    assert samples.draws(X, class_axis=-1).shape == (3, 7, 2)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_variances_of_a_regression(chunk):
    # Far from zero, where a difference of sums of squares would have no digit left in float32.
    values = [(10_000.0 + k, math.log(0.5 + k)) for k in range(5)]
    uncertainty = constants(*values).uncertainty(X, output="regression", noise="log_variance", sample_chunk=chunk)
    right = (10_002.0, 4.5, 2.5, 2.0)  # (4 + 1 + 0 + 1 + 4) / 5 is the last
    torch.testing.assert_close(tuple(uncertainty), tuple(torch.full((7, 1), value) for value in right))


def test_given_noise():
    samples = constants((1.0, 5.0), (3.0, 5.0))
    none = samples.uncertainty(X, output="regression")
    assert (none.aleatoric == 0).all()
    torch.testing.assert_close(none.epistemic[0], torch.tensor([1.0, 0.0]))
    with pytest.warns(UserWarning, match="epistemic uncertainty is 0"):
        assert not constants((1.0, 2.0)).uncertainty(X).epistemic.any()
    uncertainty = samples.uncertainty(X, output="regression", noise=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(uncertainty.total[0], torch.tensor([1.25, 4.0]))
    assert samples.uncertainty(X, output="regression", noise=3).aleatoric.unique().item() == 9


def test_a_network_that_gives_its_noise():
    samples, raw = outputs(4)
    mean, second = raw.chunk(2, -1)
    uncertainty = samples.uncertainty(X, output="regression", noise="log_variance")
    torch.testing.assert_close((uncertainty.mean, uncertainty.aleatoric), (mean.mean(0), second.exp().mean(0)))
    pairs, _ = outputs(4, lambda out: (out[:, :2], out[:, 2:].exp()))
    variances = pairs.uncertainty(X, output="regression", noise="variance")
    torch.testing.assert_close((variances.mean, variances.aleatoric), (mean.mean(0), second.exp().mean(0)))
    uncertainty = pairs.uncertainty(X, output="regression", noise="scale")
    torch.testing.assert_close((uncertainty.mean, uncertainty.aleatoric), (mean.mean(0), second.exp().square().mean(0)))


def test_draws_have_the_law_they_are_drawn_from():
    x, generator = torch.zeros(20_000, 1), torch.Generator().manual_seed(0)
    classes = constants((0.0, math.log(3.0)), (FAR, 0.0)).draws(x, generator=generator)
    assert (classes.shape, classes.dtype) == ((2, 20_000), torch.int64)
    assert classes[0].double().mean().item() == pytest.approx(0.75, abs=0.015)  # 5 standard errors
    assert classes[1].sum() == 0
    binary = constants((math.log(3.0),), (-FAR,)).draws(x, output="binary", generator=generator)
    assert binary.shape == (2, 20_000, 1)
    assert binary[0].double().mean().item() == pytest.approx(0.75, abs=0.015)
    reals = constants((1.0,), (-1.0,)).draws(x, output="regression", noise=0.5, generator=generator)
    assert reals.shape == (2, 20_000, 1)
    assert reals[0].mean().item() == pytest.approx(1, abs=0.018)
    assert reals.std(1).flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.0125)
    again, twice = (
        constants((1.0,)).draws(X, output="regression", noise=1, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert torch.equal(again, twice)


def test_several_labels_have_uncertainties_of_their_own_and_draws():
    samples, raw = outputs(5)
    uncertainty, p = samples.uncertainty(X, output="multilabel"), raw.sigmoid()
    entropy = lambda q: -(q * q.log() + (1 - q) * (1 - q).log())  # noqa: E731
    torch.testing.assert_close((uncertainty.mean, uncertainty.total), (p.mean(0), entropy(p.mean(0))))
    torch.testing.assert_close(uncertainty.aleatoric, entropy(p).mean(0))
    drawn = samples.draws(X, output="multilabel")
    assert (drawn.shape, sorted(drawn.unique().tolist())) == ((3, 7, 5), [0, 1])
