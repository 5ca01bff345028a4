"""`suggest_lr`: curvatures against autograd's Hessian, limits and biases against the closed forms."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from learned_samplers import SGHMC, SGLD, suggest_lr
from learned_samplers.checks.step_size import MeanLoss, largest_curvature
from tests.harness import UNBIASED, small_data, small_network
from tests.learned_samplers.posterior.common import Built

N, CROSS_ENTROPY = 500, nn.functional.cross_entropy


def true_curvature(model, x, y):
    """The largest eigenvalue of the whole Hessian, in float64."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    start = torch.cat([p.detach().flatten() for p in model.parameters()])

    def loss(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return CROSS_ENTROPY(torch.func.functional_call(model, weights, (x,)), y)

    return torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, start))[-1].item()


@pytest.mark.parametrize("chunk", [5, 512])
def test_the_curvature_is_the_hessians_largest_eigenvalue(chunk):
    model, (x, y) = small_network().double(), small_data()
    report = suggest_lr(
        model, CROSS_ENTROPY, (x.double(), y), lambda p: SGLD(p, 0.1, N), chunk_size=chunk, iterations=32
    )
    assert report.curvature == pytest.approx(true_curvature(model, x.double(), y), rel=1e-6)
    assert report.residual < 1e-3 * report.curvature


def test_attention_has_a_curvature():
    """The kernel that torch takes for it on a CPU, flash attention, has no second derivative."""
    torch.manual_seed(0)
    parts = {"inside": nn.MultiheadAttention(4, 2, batch_first=True), "last": nn.Linear(4, 2)}
    model = Built(lambda m, x: m.last(m.inside(x, x, x, need_weights=False)[0].mean(1)), **parts)
    x, y = torch.randn(12, 5, 4), torch.arange(12) % 2
    report = suggest_lr(
        model, CROSS_ENTROPY, (x, y), lambda p: SGLD(p, 0.1, N), batch_size=6, chunk_size=5, iterations=40
    )
    with sdpa_kernel(SDPBackend.MATH):
        expected = true_curvature(model.double(), x.double(), y)
    assert report.curvature == pytest.approx(expected, rel=1e-4)


def test_the_residual_bounds_the_error():
    model, (x, y) = small_network().double(), small_data()
    truth = true_curvature(model, x.double(), y)
    for iterations in (1, 3, 6):
        loss = MeanLoss(model, CROSS_ENTROPY, x.double(), y, 16)
        estimate, residual = largest_curvature(loss, iterations, torch.Generator().manual_seed(0))
        assert estimate <= truth * (1 + 1e-9)
    assert truth - estimate <= residual + 1e-9


def _quadratic(curvature):
    """A network whose mean loss is ½·curvature·θ² in each of two coordinates (the second ten times softer)."""

    stiffness = torch.tensor([curvature, curvature / 10])
    bowl = Built(lambda m, x: (0.5 * stiffness * m.theta**2).sum() + 0 * x.sum(), theta=nn.Parameter(torch.zeros(2)))
    return bowl, lambda output, target: output, (torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize(
    ("make", "limit", "bias"),
    [
        (lambda p: SGLD(p, 0.1, N), 2.0, lambda s: 1 / (1 - s / 2) - 1),
        (lambda p: SGHMC(p, 0.1, N), 2 * 1.9, lambda s: 2 * 1.9 / (4 - 0.2 - s) - 1),
        (lambda p: SGHMC(p, 0.1, N, momentum_decay=0.5), 2 * 1.5, lambda s: 2 * 1.5 / (4 - 1 - s) - 1),
        (lambda p: UNBIASED(p, 0.1, N, temperature=0.3), 4.0, lambda s: 0.0),
    ],
    ids=["SGLD", "SGHMC", "SGHMC-half", "unbiased"],
)
def test_limits_and_biases_are_the_closed_forms(make, limit, bias):
    """``limit`` and the argument of ``bias`` are in units of lr times curvature."""
    model, loss, data = _quadratic(7.0)
    report = suggest_lr(model, loss, data, make)
    assert report.curvature == pytest.approx(7.0, rel=1e-5)
    assert report.stability_limit * 7.0 == pytest.approx(limit, rel=2e-3)
    for row in report.rows:
        assert row.bias == pytest.approx(bias(row.lr * 7.0), rel=1e-4, abs=1e-6)
    assert abs(bias(report.suggested * 7.0)) <= 0.1 + 1e-6
    if bias(1.0):
        assert abs(bias(report.suggested * 7.0)) == pytest.approx(0.1, rel=0.01)
    else:
        assert report.suggested * 7.0 == pytest.approx(limit / 8, rel=2e-3)


def test_the_prior_adds_to_the_curvature():
    model, loss, data = _quadratic(7.0)
    report = suggest_lr(model, loss, data, lambda p: SGLD(p, 0.1, N, prior_precision=3.0 * N))
    assert report.stability_limit * 10.0 == pytest.approx(2.0, rel=2e-3)


def test_the_heat_is_that_of_the_minibatches():
    """Mean loss ½(θ−xₙ)² with x of variance 1: a batch of b has gradients of variance 1/b."""

    x = torch.randn(4000, 200)
    mean = Built(lambda m, x: 0.5 * ((m.theta - x) ** 2).sum(1), theta=nn.Parameter(torch.zeros(200)))
    problem = (mean, lambda output, _: output.mean(), (x, torch.zeros(4000)), lambda p: SGHMC(p, 0.1, N))
    report = suggest_lr(*problem, batch_size=20, allowed_heat=1e6)
    for row in report.rows:
        variance = N**2 / 20
        assert row.heat == pytest.approx(row.lr / N * variance / (2 * 0.1), rel=0.1)
    bounded = suggest_lr(*problem, batch_size=20)  # the heat is bounded wherever a batch size is given
    assert bounded.suggested == pytest.approx(0.1 * 2 * 0.1 * 20 / N, rel=0.1)
    assert bounded.suggested < report.suggested / 5
    assert "heat at most 10%" in str(bounded)
    assert f"{report.stability_limit:.3g}" in str(report)


def test_a_suggestion_beside_small_batches_keeps_the_posteriors_width():
    """Logistic regression of 20,000 in batches of 500: 1.3 was suggested, and deviations 5.5 times too wide."""
    torch.manual_seed(0)
    x = torch.randn(20_000, 5)
    y = (torch.rand(20_000) < torch.sigmoid(x @ torch.randn(5))).float()
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))
    loss = nn.functional.binary_cross_entropy_with_logits
    report = suggest_lr(model, loss, (x, y), lambda p: SGHMC(p, 0.1, 20_000), batch_size=np.int64(500))
    heats = {row.lr: row.heat for row in report.rows}
    assert heats[report.suggested] == pytest.approx(0.1, rel=0.01)
    assert max(heats.values()) > 50


def test_running_statistics_weights_and_the_global_generator_stay():
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 2))
    x, y = small_data()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    one, same, another_seed = (
        suggest_lr(model, CROSS_ENTROPY, (x, y), lambda p: SGLD(p, 0.1, N), batch_size=4, iterations=2, seed=seed)
        for seed in (3, np.int64(3), 4)
    )
    assert one.curvature == same.curvature
    assert same.curvature != another_seed.curvature
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_weights_that_the_loss_does_not_reach_have_no_curvature():
    x, y = small_data()
    used = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    more = Built(lambda m, x: m.used(x), used=copy.deepcopy(used), idle=nn.Linear(4, 4))
    without_idle, with_idle = (
        suggest_lr(model, CROSS_ENTROPY, (x, y), lambda p: SGLD(p, 0.1, N), batch_size=4) for model in (used, more)
    )
    assert with_idle.stability_limit == pytest.approx(without_idle.stability_limit, rel=1e-3)
