"""Uncertainty and draws against closed forms."""

import math

import pytest
import torch
from torch import nn

from learned_samplers import SampleCollection


class Constant(nn.Module):
    """Gives its parameter for every example."""

    def __init__(self, *values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, x):
        return self.values.expand(len(x), -1)


def constants(*samples):
    members = [Constant(*values) for values in samples]
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members])


X = torch.zeros(5, 1)
FAR = 50.0


def test_samples_that_are_sure_and_disagree_are_epistemic():
    result = constants([FAR, 0.0], [0.0, FAR]).uncertainty(X)
    assert result.total.shape == (5,)
    torch.testing.assert_close(result.mean, torch.full((5, 2), 0.5))
    torch.testing.assert_close(result.total, torch.full((5,), math.log(2)))
    torch.testing.assert_close(result.epistemic, torch.full((5,), math.log(2)))
    torch.testing.assert_close(result.aleatoric, torch.zeros(5))


@pytest.mark.parametrize(("values", "options"), [((0.0, 0.0), {}), ((0.0,), {"output": "binary"})])
def test_samples_that_agree_on_not_knowing_are_aleatoric(values, options):
    result = constants(values, values, values).uncertainty(X, sample_chunk=2, **options)
    assert (result.epistemic == 0).all()
    torch.testing.assert_close(result.total.flatten(), torch.full((5,), math.log(2)))
    torch.testing.assert_close(result.aleatoric, result.total)


def test_two_classes_and_one_logit_are_the_same():
    logits = [(0.3, -1.0), (2.0, 0.5), (-1.0, 1.0)]
    two = constants(*logits).uncertainty(X)
    one = constants(*[(b - a,) for a, b in logits]).uncertainty(X, output="binary")
    torch.testing.assert_close(one.mean[:, 0], two.mean[:, 1])
    for name in ("total", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(one, name)[:, 0], getattr(two, name))
    torch.testing.assert_close(two.total, two.aleatoric + two.epistemic)


def test_classes_on_another_axis():
    class Sequence(Constant):
        def forward(self, x):
            return self.values.view(1, 2, 3).expand(len(x), -1, -1)

    members = [Sequence(*torch.randn(6, generator=torch.Generator().manual_seed(k)).tolist()) for k in range(3)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    result = samples.uncertainty(X, class_axis=-1)
    p = torch.stack([member.values.view(2, 3).softmax(-1) for member in members]).detach()
    entropy = lambda q: -(q * q.log()).sum(-1)  # noqa: E731
    torch.testing.assert_close(result.total, entropy(p.mean(0)).expand(5, 2))
    torch.testing.assert_close(result.aleatoric, entropy(p).mean(0).expand(5, 2))
    assert samples.draws(X, class_axis=-1).shape == (3, 5, 2)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8])
def test_variances_of_a_regression(chunk):
    # Far from zero, where a difference of sums of squares would have no digit left in float32.
    values = [(10_000.0 + k, math.log(0.5 + k)) for k in range(5)]
    result = constants(*values).uncertainty(X, output="regression", noise="log_variance", sample_chunk=chunk)
    torch.testing.assert_close(result.mean, torch.full((5, 1), 10_002.0))
    torch.testing.assert_close(result.epistemic, torch.full((5, 1), 2.0))  # (4 + 1 + 0 + 1 + 4) / 5
    torch.testing.assert_close(result.aleatoric, torch.full((5, 1), 2.5))
    torch.testing.assert_close(result.total, result.aleatoric + result.epistemic)


def test_given_noise():
    samples = constants((1.0, 5.0), (3.0, 5.0))
    none = samples.uncertainty(X, output="regression")
    assert (none.aleatoric == 0).all()
    torch.testing.assert_close(none.epistemic[0], torch.tensor([1.0, 0.0]))
    some = samples.uncertainty(X, output="regression", noise=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(some.total[0], torch.tensor([1.25, 4.0]))
    assert samples.uncertainty(X, output="regression", noise=3).aleatoric.unique().item() == 9


def test_draws_have_the_law_they_are_drawn_from():
    x, generator = torch.zeros(20_000, 1), torch.Generator().manual_seed(0)
    classes = constants((0.0, math.log(3.0)), (FAR, 0.0)).draws(x, generator=generator)
    assert classes.shape == (2, 20_000)
    assert classes.dtype == torch.int64
    assert classes[0].double().mean().item() == pytest.approx(0.75, abs=0.015)  # 5 standard errors
    assert classes[1].sum() == 0
    binary = constants((math.log(3.0),), (-FAR,)).draws(x, output="binary", generator=generator)
    assert binary.shape == (2, 20_000, 1)
    assert binary[0].double().mean().item() == pytest.approx(0.75, abs=0.015)
    reals = constants((1.0,), (-1.0,)).draws(x, output="regression", noise=0.5, generator=generator)
    assert reals.shape == (2, 20_000, 1)
    assert reals[0].mean().item() == pytest.approx(1, abs=0.018)
    assert reals.std(1).flatten().tolist() == pytest.approx([0.5, 0.5], abs=0.0125)
    again = constants((1.0,)).draws(X, output="regression", noise=1, generator=torch.Generator().manual_seed(3))
    same = constants((1.0,)).draws(X, output="regression", noise=1, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again, same)


def test_what_has_no_meaning_is_refused():
    samples = constants((0.0, 1.0))
    with pytest.raises(ValueError, match="need noise=, which was not given"):
        samples.draws(X, output="regression")
    for method in ("draws", "uncertainty"):
        with pytest.raises(ValueError, match=f"{method} needs to know what the output means.*not a function"):
            getattr(samples, method)(X, output=torch.sigmoid)
