"""IVON: its fixed point on a quadratic, its draws, what torch puts around it."""

import math

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.approximations import IVON
from learned_samplers.approximations.ivon import ivon_rule
from tests.harness import closure_for, flat, small_data, small_network

N = 100


def quadratic(theta, curvatures, centre):
    """Mean loss whose Hessian is the curvature: ½Σ k(θ−c)²."""
    return (0.5 * curvatures * (theta - centre) ** 2).sum()


def test_fixed_point_on_a_quadratic():
    """Mean at the optimum of the energy and variance T/(N(h+δ)), h the curvature: the exact Gaussian."""
    temperature, prior = 0.3, 50.0
    curvatures = torch.tensor([0.3, 1.0, 4.0]).repeat(400)
    theta = torch.zeros(1200, requires_grad=True)
    sampler = IVON([theta], 0.1, N, temperature=temperature, prior_precision=prior, betas=(0.9, 0.998))
    total, variance = torch.zeros(1200), torch.zeros(1200)
    for step in range(3000):
        with sampler.sampled_params():
            sampler.zero_grad()
            quadratic(theta, curvatures, 0.4).backward()
        sampler.step()
        if step >= 1500:
            total += theta.detach() / 1500
            variance += 1 / sampler.precisions(sampler.param_groups[0], theta) / 1500
    for k in (0.3, 1.0, 4.0):
        chosen = curvatures == k
        delta = prior / N
        # 400 coordinates; the average h scatters about the curvature, so that the mean of 1/h is a little above 1/k.
        assert total[chosen].mean() == pytest.approx(0.4 * k / (k + delta), rel=0.02)
        assert variance[chosen].mean() == pytest.approx(temperature / (N * (k + delta)), rel=0.03)
        hessian = sampler.state[theta]["hessian"][chosen]
        assert hessian.mean() == pytest.approx(k, rel=0.03)


RULE = dict(lr=0.2, num_data=50.0, prior_precision=10.0, hess_init=0.7)


def test_the_rule_is_the_papers():
    """One update by hand, in float64."""
    theta, g, average, h, estimate = (torch.rand(5, dtype=torch.float64) for _ in range(5))
    beta, gamma, delta = 0.9, 0.99, 0.2
    weight = torch.full((1,), 1 - beta**3, dtype=torch.float64)
    results = ivon_rule(theta, g, None, average, h, weight, hessian_estimate=estimate, betas=(beta, gamma), **RULE)
    mean_gradient = beta * average + (1 - beta) * g
    hessian = gamma * h + (1 - gamma) * estimate + 0.5 * (1 - gamma) ** 2 * (h - estimate) ** 2 / (h + delta)
    corrected = mean_gradient / (1 - beta**4)
    expected = theta - 0.2 * (0.7 + delta) * (corrected + delta * theta) / (hessian + delta)
    for result, target in zip(results, (expected, mean_gradient, hessian, torch.tensor([1 - beta**4])), strict=True):
        assert torch.allclose(result, target.double(), rtol=1e-7 if target.numel() == 1 else 1e-12)


@pytest.mark.parametrize("estimate", [-1e4, -3.0, 0.0, 50.0])
def test_the_precision_stays_positive_whatever_curvature_is_measured(estimate):
    h, zero = torch.full((3,), 0.1), torch.zeros(3)
    for _ in range(200):
        measured = dict(hessian_estimate=torch.full((3,), estimate), betas=(0.9, 0.9))
        _, _, h, _ = ivon_rule(
            zero, zero, None, zero, h, torch.zeros(1), **measured, **{**RULE, "prior_precision": 1.0}
        )
        assert (h + 1.0 / 50 > 0).all()


def test_draws_have_the_deviation_and_leave_the_mean_bit_for_bit():
    theta = torch.full((50_000,), 1.5, requires_grad=True)
    sampler = IVON([theta], 0.1, N, hess_init=0.25, prior_precision=10.0, temperature=0.5)
    with sampler.sampled_params():
        drawn = theta.detach().clone()
    assert torch.equal(theta.detach(), torch.full((50_000,), 1.5))
    assert drawn.mean() == pytest.approx(1.5, abs=2e-3)
    assert drawn.var() == pytest.approx(0.5 / (N * (0.25 + 10.0 / N)), rel=0.03)
    assert theta.grad is None


def draw(model, sampler, *rows, factor=1.0):
    """A block with the gradients of a minibatch, or of several, accumulated."""
    x, y = small_data()
    with sampler.sampled_params():
        sampler.zero_grad()
        for block in rows or (slice(None),):
            (factor * nn.functional.cross_entropy(model(x[block]), y[block]) / max(1, len(rows))).backward()


def trained(take, steps=5, **settings):
    model = small_network()
    sampler = IVON(model.parameters(), 0.1, N, **settings)
    torch.manual_seed(3)
    for _ in range(steps):
        take(model, sampler)
    return flat(model), torch.cat([p.grad.flatten() for p in model.parameters()])


def test_two_backwards_in_a_block_are_one_minibatch_of_both():
    def both(model, sampler):
        draw(model, sampler, slice(0, 8), slice(8, 16))
        sampler.step()

    def one(model, sampler):
        draw(model, sampler)
        sampler.step()

    assert torch.allclose(trained(both)[0], trained(one)[0], atol=1e-6)


def test_several_blocks_before_a_step_are_averaged_as_the_closures_are():
    def blocks(model, sampler):
        for _ in range(3):
            draw(model, sampler)
        sampler.step()

    by_closure = trained(lambda model, sampler: sampler.step(closure_for(model, sampler)), draws=3)
    for expected, p in zip(by_closure, trained(blocks), strict=True):
        assert torch.equal(expected, p)


def test_more_draws_measure_the_curvature_better():
    def scatter(draws):
        theta = torch.zeros(2000, requires_grad=True)
        sampler = IVON([theta], 1e-9, N, draws=draws, betas=(0.9, 0.0))

        def closure():
            sampler.zero_grad()
            quadratic(theta, torch.tensor(0.5), 0.0).backward()

        assert sampler.step(closure) is None  # a closure may return nothing
        return (sampler.state[theta]["hessian"] - 0.5).std().item()

    assert scatter(16) < scatter(1) / 3


def test_a_prediction_in_a_block_leaves_gradients_and_draws_alone():
    model = small_network()
    sampler = IVON(model.parameters(), 0.1, N)
    draw(model, sampler)
    before = [p.grad for p in model.parameters()]
    with sampler.sampled_params(), torch.no_grad():
        model(small_data()[0])
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
    sampler.step()


def test_clearing_the_gradients_forgets_the_draws():
    model = small_network()
    sampler = IVON(model.parameters(), 0.1, N)
    for clear in (sampler.zero_grad, model.zero_grad):
        draw(model, sampler, factor=1e6)
        clear()
        draw(model, sampler)
        assert sampler._pending.count == 1


def test_posterior_samples_take_draws_and_not_the_mean():
    model = small_network()
    sampler = IVON(model.parameters(), 0.01, N, hess_init=0.04)
    kept = PosteriorSamples(model, sampler, burn_in=5)
    for _ in range(45):
        sampler.step(closure_for(model, sampler))
    assert len(kept) == 40
    x = small_data()[0]
    assert kept.predict(x).shape == (16, 2)
    values = torch.stack([sample["0.weight"] for sample in kept])
    assert values.std(0).mean() == pytest.approx(1 / math.sqrt(N * 0.04), rel=0.15)
    after = SampleCollection.from_draws(model, sampler.sampled_params, 200)
    spread = torch.stack([sample["0.weight"] for sample in after])
    assert torch.allclose(spread.mean(0), model[0].weight.detach(), atol=0.2)
    assert spread.std(0).mean() == pytest.approx(1 / math.sqrt(N * 0.04), rel=0.1)


def constant_step(sampler, params):
    before = [p.detach().clone() for p in params]
    with sampler.sampled_params():
        sampler.zero_grad()
        for p in params:
            p.grad = torch.ones_like(p)
    sampler.step()
    return [(p.detach() - old).item() for p, old in zip(params, before, strict=True)]


def test_a_parameter_that_joins_late_begins_as_a_new_one():
    """Its average is corrected for its own steps: without that the first would be ten times too short (1 − β₁)."""
    first, late = (torch.ones(1, requires_grad=True) for _ in range(2))
    sampler = IVON([first], 0.1, N, hess_init=1.0, betas=(0.9, 1 - 1e-9))
    for _ in range(50):
        constant_step(sampler, [first])
    sampler.add_param_group({"params": [late]})
    assert constant_step(sampler, [first, late]) == pytest.approx([-0.1, -0.1], rel=1e-3)


def _scaled(*, inside, scale):
    """Weights and curvatures after three steps with a loss that is scaled, and unscaled in the block or by `step`."""
    torch.manual_seed(1)
    model, (x, y) = small_network(), small_data()
    sampler, scaler = IVON(model.parameters(), 0.1, len(x)), torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(3):
        with sampler.sampled_params():
            sampler.zero_grad()
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            if inside:
                scaler.unscale_(sampler)
        scaler.step(sampler)
        scaler.update()
    return flat(model), torch.cat([sampler.state[p]["hessian"].flatten() for p in model.parameters()])


def test_a_scaler_that_unscales_inside_of_the_block_changes_nothing():
    unscaled, expected = _scaled(inside=True, scale=2.0**10), _scaled(inside=False, scale=1.0)
    for p, q in zip(unscaled, expected, strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


def test_a_step_that_the_scaler_skips_is_forgotten():
    """A first scale of 2¹²⁷ overflows; the draw that did must not be averaged with those after it."""
    torch.manual_seed(1)
    model, (x, y) = small_network(), small_data()
    sampler = IVON(model.parameters(), 0.1, len(x))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    steps = []
    for _ in range(6):
        with sampler.sampled_params():
            sampler.zero_grad()
            scaler.scale(10 * torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.unscale_(sampler)
        scaler.step(sampler)
        scaler.update()
        steps.append(sampler.step_count)
    assert steps[0] == 0
    assert steps[-1] >= 4


@pytest.mark.parametrize("with_closure", [False, True])
def test_compiled_it_takes_the_same_steps(with_closure):
    def run(compiled):
        torch._dynamo.reset()
        model = small_network()
        sampler = IVON(model.parameters(), 0.1, 64)
        step = torch.compile(sampler.step, backend="eager") if compiled else sampler.step
        closure = closure_for(model, sampler)
        torch.manual_seed(1)
        for _ in range(4):
            if with_closure:
                assert torch.isfinite(step(closure))
            else:
                with sampler.sampled_params():
                    closure()
                step()
        assert sampler.step_count == 4
        return flat(model)

    assert torch.equal(run(True), run(False))


@pytest.mark.parametrize("reached_in", [0, 1])
def test_a_parameter_that_one_draw_of_two_does_not_reach_has_half_its_gradient(reached_in):
    a, b = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    sampler = IVON([a, b], lr=0.1, num_data=10)
    for draw in range(2):
        with sampler.sampled_params():
            loss = 2.0 * a.sum() + (4.0 * b.sum() if draw == reached_in else 0.0)
            loss.backward()
    torch.testing.assert_close(a.grad, torch.full((3,), 2.0))
    torch.testing.assert_close(b.grad, torch.full((3,), 2.0))
    sampler.step()
    assert "hessian" in sampler.state[b]


def test_after_gradients_that_are_not_finite_the_loop_goes_on_and_one_that_is_missing_does_not_spoil_the_checkpoint():
    def make():
        return IVON([theta, unused], 0.1, 10, missing_gradient="skip")

    theta, unused, raised = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True), []
    sampler = make()
    for factor in (float("inf"), 1.0, 1.0):
        with sampler.sampled_params():
            sampler.zero_grad()
            (theta.square().sum() * factor).backward()
        try:
            sampler.step()
        except FloatingPointError:
            raised.append(factor)
    assert raised == [float("inf")]
    assert sampler.step_count == 2
    resumed = make()
    resumed.load_state_dict(sampler.state_dict())
    assert torch.equal(resumed.state[theta]["hessian"], sampler.state[theta]["hessian"])
