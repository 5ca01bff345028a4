"""The direction of a matrix: its orthogonal factor against singular values, its whitening against eigenvectors."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers import WhitenedSGHMC
from learned_samplers.base import matrices
from learned_samplers.base.matrices import (
    all_whitened,
    inverse_root,
    newton_inverse_root,
    orthogonal,
    renew_roots_,
    state_shape,
    update_covariances_,
)
from tests.harness import same

D = matrices.COVARIANCE_DECAY


def whitened(matrix, state):
    """`all_whitened` of a single matrix."""
    return all_whitened([matrix], [state])[0]


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


# ------------------------------------------------------------------- the orthogonal factor


@pytest.mark.parametrize(("rows", "columns"), [(20, 128), (300, 30), (40, 160), (7, 7)])
def test_values_are_those_of_five_iterations(rows, columns):
    x = matrix(rows, columns, 6)
    x[0] *= 1e-4
    (factor,) = orthogonal([x])
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(factor, math.sqrt(max(rows, columns)) * (u * s @ vt), rtol=1e-8, atol=1e-8)
    (single,) = orthogonal([x.float()])
    torch.testing.assert_close(single.double(), factor, rtol=0, atol=1e-3)


def test_a_single_row_is_divided_by_its_root_mean_square():
    x = matrix(1, 12)
    for given_x in (x, x.mT):
        (factor,) = orthogonal([given_x])
        torch.testing.assert_close(factor, given_x / x.square().mean().sqrt())


def test_matrices_of_one_shape_and_leading_axes_do_not_touch_each_other():
    first, second, tall = matrix(4, 6, 1), matrix(4, 6, 2), matrix(6, 4, 3)
    together = orthogonal([first, tall, second])
    for got, alone in zip(together, (first, tall, second), strict=True):
        torch.testing.assert_close(got, orthogonal([alone])[0], rtol=1e-10, atol=1e-12)
    (batch,) = orthogonal([torch.stack([first, second])])
    torch.testing.assert_close(batch, torch.stack([together[0], together[2]]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_large_ones_are_made_orthogonal_in_equal_blocks_of_their_shorter_side(transposed, monkeypatch):
    x = matrix(10, 14)
    blocks = torch.cat([orthogonal([x[:4]])[0], orthogonal([x[4:8]])[0], orthogonal([x[8:]])[0]])
    monkeypatch.setattr(matrices, "TALLEST_BLOCK", 4)
    (factor,) = orthogonal([x.mT if transposed else x])
    torch.testing.assert_close(factor.mT if transposed else factor, blocks, rtol=1e-8, atol=1e-8)


def test_dead_and_rank_one_matrices_are_finite():
    (dead,) = orthogonal([torch.zeros(3, 5)])
    assert not dead.any()
    u, v = matrix(5, 1), matrix(1, 3)
    (factor,) = orthogonal([u @ v])
    expected = (u / u.norm()) @ (v / v.norm()) * math.sqrt(5)
    ratio = (factor / expected).flatten()
    assert ratio.std() < 1e-6
    assert 0.6 < ratio.mean() < 1.25


# ------------------------------------------------------------------- whitening


def expected_direction(ahead, covariance):
    """By the definition: M·(R/‖R‖ + 10⁻⁴)^(−1/2)."""
    values, vectors = torch.linalg.eigh(covariance)
    return ahead @ vectors @ torch.diag((values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT


def states_after(gradients):
    """The state of one matrix after these gradients, with a root of all blocks."""
    state = torch.zeros(state_shape(gradients[0].shape), dtype=gradients[0].dtype)
    for gradient in gradients:
        update_covariances_([state], [gradient])
    for step in range(10):
        renew_roots_([state], step)
    return state


@settings(deadline=None)
@given(st.integers(2, 7), st.integers(2, 9), st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e6]))
def test_it_is_momentum_times_the_inverse_root_of_the_covariance(rows, columns, seed, scale):
    gradients = [scale * matrix(rows, columns, seed + i) for i in range(4)]
    covariance = sum(D ** (3 - i) * (1 - D) * g.mT @ g for i, g in enumerate(gradients))
    ahead = matrix(rows, columns, seed + 7)
    direction = whitened(ahead, states_after(gradients))
    torch.testing.assert_close(direction, expected_direction(ahead, covariance), rtol=1e-6, atol=1e-8)


def test_wide_matrices_have_a_covariance_in_blocks(monkeypatch):
    monkeypatch.setattr(matrices, "WIDEST_BLOCK", 4)
    assert state_shape((3, 2, 5)) == (2, 3, 4, 4)
    gradients, ahead = [matrix(5, 10, i) for i in range(5)], matrix(5, 10, 9)
    direction = whitened(ahead, states_after(gradients))
    for part in (slice(0, 4), slice(4, 8), slice(8, 10)):
        covariance = sum(D ** (4 - i) * (1 - D) * g[:, part].mT @ g[:, part] for i, g in enumerate(gradients))
        expected = expected_direction(ahead[:, part], covariance)
        torch.testing.assert_close(direction[:, part], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("shape", "state"),
    [
        ((2, 20_000), (0,)),
        ((100_000, 2), (2, 1, 2, 2)),
        ((10, 256), (0,)),
        ((26, 256), (2, 1, 256, 256)),
        ((20, 512), (0,)),
        ((40, 784), (2, 3, 262, 262)),
        ((40, 20_000), (0,)),
        ((128, 256, 3, 3), (2, 8, 288, 288)),
        ((512, 512, 3, 3), (2, 16, 288, 288)),
        ((5,), (0,)),
        ((0, 3), (0,)),
    ],
)
def test_a_covariance_that_cannot_be_filled_or_is_out_of_proportion_is_not_kept(shape, state):
    assert state_shape(shape) == state
    x = torch.ones(7, 5)
    assert whitened(x, torch.zeros(0)) is x


@pytest.mark.parametrize("rows", [8, 64, 400])
def test_the_root_by_products_is_that_by_eigenvectors_at_any_precision_asked_for(rows):
    """In single precision, of covariances of few and of many gradients; 2·10⁻⁴ is what rounding leaves."""
    x = matrix(rows, 144) * torch.logspace(0, -3, 144)
    covariance = x.mT @ x
    ridged = covariance / covariance.norm() + 1e-4 * torch.eye(144, dtype=torch.float64)
    torch.set_float32_matmul_precision("high")
    try:
        root = newton_inverse_root(ridged.float())
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = inverse_root(covariance)
    assert (root - exact).norm() < 1e-3 * exact.norm()
    assert (newton_inverse_root(ridged) - exact).norm() < 1e-8 * exact.norm()


@pytest.mark.parametrize("value", [0.0, 1e-25, math.inf, math.nan])
def test_dead_and_diverged_matrices_leave_the_others_alone(value):
    good, bad = matrix(3, 4, 1).float(), torch.full((3, 4), value)
    states = [torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)]
    update_covariances_(states, [bad, good])
    for step in range(10):
        renew_roots_(states, step)
    assert states[0][1].isfinite().all()
    assert whitened(bad, states[0]).isfinite().all() == math.isfinite(value)
    expected = expected_direction(good, good.mT @ good)
    torch.testing.assert_close(whitened(good, states[1]), expected, rtol=2e-3, atol=2e-3)


def test_inputs_that_are_always_zero_do_not_stop_the_decomposition():
    """In single precision, where it fails on such a covariance without damping first (found in a meta-training)."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        gradient = 1e-3 * torch.randn(26, 256, generator=generator) * (torch.rand(256, generator=generator) < 0.3)
        state = torch.zeros(state_shape(gradient.shape))
        for step in range(3):
            update_covariances_([state], [gradient * 10**-seed])
            renew_roots_([state], step)
        assert state.isfinite().all()
        assert whitened(gradient, state).isfinite().all()


def test_what_does_not_converge_is_done_again_in_double_precision(monkeypatch):
    gradient, eigh = matrix(3, 4, 1).float(), torch.linalg.eigh

    def fails(x):
        if x.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no")
        return eigh(x)

    expected = expected_direction(gradient.double(), gradient.double().mT @ gradient.double())
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    direction = whitened(gradient, states_after([gradient]))
    torch.testing.assert_close(direction.double(), expected, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------- turns


def test_every_block_has_its_turn_and_no_step_has_many(monkeypatch):
    monkeypatch.setattr(matrices, "WIDEST_BLOCK", 4)
    states = [torch.zeros(state_shape(shape), dtype=torch.float64) for shape in ((8, 30), (3,), (4, 4), (8, 60))]
    made = []
    for step in range(30):
        seeds = enumerate([(8, 30), (1, 3), (4, 4), (8, 60)])
        update_covariances_(states, [matrix(*sides, seed=10 * step + i) for i, sides in seeds])
        before = [state.clone() for state in states]
        renew_roots_(states, step)
        changed = [(x[1] != y[1]).flatten(1).any(1) for x, y in zip(states, before, strict=True) if x.numel()]
        made.append(torch.cat(changed))
    counts = torch.stack(made).int()
    assert counts.shape == (30, 8 + 1 + 15)
    assert (counts.sum(0) == 3).all()
    assert counts.sum(1).max() <= 3
    for block in counts.T:
        assert (block.nonzero().flatten().diff() == 10).all()


def two():
    return [torch.nn.Parameter(torch.zeros(4, 5)) for _ in range(2)]


def make(params, **settings):
    return WhitenedSGHMC(params, num_data=100, missing_gradient="skip", generator=torch.Generator(), **settings)


def odd(step):
    return step % 2 == 1


def chain(steps=40, has_gradient=odd, *, resumed=None, fails=None, late=0):
    """Chain of two matrices in two groups, the second with gradients in some steps only; in step ``resumed`` a copy
    goes on."""
    params, groups = two(), 1 if late else 2
    sampler = make([{"params": [p]} for p in params[:groups]])
    sampler.generator.manual_seed(0)
    for step in range(steps):
        if late and step == late:
            sampler.add_param_group({"params": params[1:]})
        if step == resumed:
            params = [torch.nn.Parameter(p.detach().clone()) for p in params]
            saved, sampler = copy.deepcopy(sampler.state_dict()), make([{"params": [p]} for p in params])
            sampler.load_state_dict(saved)
        a, b = params
        if step == fails:
            before, state = b.detach().clone(), copy.deepcopy(sampler.state_dict())
            a.grad, b.grad = None, torch.full((4, 5), 3e37)
            b.data.fill_(3.4e38)
            with pytest.raises(FloatingPointError, match="nothing was changed"):
                sampler.step()
            b.data.copy_(before)
            assert same(sampler.state_dict(), state)
        slopes = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(step)) * torch.arange(1.0, 6)
        a.grad, b.grad = slopes[0], slopes[1] if has_gradient(step) else None
        sampler.step()
    return sampler, a, b


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("late", [0, 13])
def test_a_matrix_that_lacks_gradients_when_it_is_its_turn_is_whitened_all_the_same(first, late):
    sampler, _, b = chain(60, lambda step: step % 2 == first, late=late)
    covariance, root = sampler.state[b]["whitening"]
    now = inverse_root(covariance)
    assert (root + torch.eye(5) - now).norm() < 0.25 * now.norm()
    assert (torch.eye(5) - now).norm() > 0.4 * now.norm()


@pytest.mark.parametrize("late", [0, 6])
@pytest.mark.parametrize("has_gradient", [odd, lambda step: not 4 <= step < 13 and step != 20])
@pytest.mark.parametrize("resumed", [8, 10, 17, 34])
def test_it_resumes_bit_for_bit(resumed, has_gradient, late):
    reference, again = chain(40, has_gradient, late=late), chain(40, has_gradient, late=late, resumed=resumed)
    assert all(map(torch.equal, reference[1:], again[1:]))


@pytest.mark.parametrize("fails", [7, 29, 30])
def test_a_step_that_fails_counts_as_none(fails):
    (_, a, b), (_, c, d) = chain(41, fails=fails), chain(41)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
