"""The Stein gradient estimator on Gaussians of known score, and faults that these tests catch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_tasks.objectives.stein import stein_score


def gaussian(count, d, seed, scale=1.0, mean=0.0):
    """Samples of N(m, LLᵀ) and their exact scores, in double precision."""
    stream = torch.Generator().manual_seed(seed)
    factor = torch.randn(d, d, generator=stream, dtype=torch.float64) / 2 + torch.eye(d, dtype=torch.float64)
    away = scale * torch.randn(count, d, generator=stream, dtype=torch.float64) @ factor.T
    return away + mean, -away @ torch.linalg.inv(factor @ factor.T) / scale**2


def agreement(estimate, exact):
    """Slope of the estimate on the exact score, and the correlation of the two."""
    product = (estimate * exact).sum()
    return (product / exact.square().sum()).item(), (product / (estimate.norm() * exact.norm())).item()


def measured(seeds=5, **case):
    """Means over a few sets of samples."""
    pairs = [gaussian(300, seed=seed, **case) for seed in range(seeds)]
    return torch.tensor([agreement(stein_score(x), exact) for x, exact in pairs]).mean(0).tolist()


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize(("scale", "mean"), [(1.0, 0.0), (0.01, 3.0)])
def test_the_score_of_gaussians_is_found(d, scale, mean):
    slope, correlation = measured(d=d, scale=scale, mean=mean)
    assert slope == pytest.approx(0.92, abs=0.12)  # the ridge shrinks
    assert correlation > 0.65


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (torch, "diag_embed", lambda v: 2 * torch.eye(v.shape[-1], dtype=v.dtype) * v.unsqueeze(-1)),
        (torch.linalg, "solve", lambda matrix, right: -torch.linalg.inv(matrix) @ right),
        (torch.linalg, "solve", lambda matrix, right: right),
    ],
    ids=["diagonal", "sign", "no inverse"],
)
def test_planted_faults_are_seen(owner, name, fault, monkeypatch):
    monkeypatch.setattr(owner, name, fault)
    slope, correlation = measured(d=2)
    assert abs(slope - 0.92) > 0.12 or correlation < 0.65


def test_batches_and_translation():
    x = torch.stack([gaussian(20, 3, seed)[0] for seed in range(4)])
    scores = stein_score(x)
    for score, alone in zip(scores, x, strict=True):
        torch.testing.assert_close(score, stein_score(alone))
    torch.testing.assert_close(stein_score(x + 5.0), scores, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(stein_score(3.0 * x), scores / 3)
    assert stein_score(x.float() + 100).dtype == torch.float32


def test_equal_samples_have_no_score_and_no_gradient_flows():
    assert torch.equal(stein_score(torch.ones(4, 3)), torch.zeros(4, 3))
    assert not stein_score(torch.randn(4, 3, requires_grad=True)).requires_grad


@settings(max_examples=20, deadline=None)
@given(batch=st.lists(st.integers(1, 3), max_size=2), count=st.integers(2, 6), d=st.integers(1, 5))
def test_any_shapes(batch, count, d):
    samples = torch.randn(*batch, count, d)
    scores = stein_score(samples)
    assert scores.shape == samples.shape
    assert scores.isfinite().all()
