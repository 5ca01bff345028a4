"""Momentum whitened by the covariance of a matrix's inputs: against eigenvectors, in blocks, dead and diverged ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learned_samplers.base import matrices
from learned_samplers.base.matrices import state_shape, update_whitening_, whitened

D = matrices.COVARIANCE_DECAY


def matrix(rows, columns, seed=0, **kind):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **kind)


def expected_direction(ahead, covariance):
    """By the definition: M·(R + 10⁻⁴·‖R‖)^(−1/2), root mean square 1."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors @ torch.diag((values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT
    found = ahead @ root
    return found / found.square().mean().sqrt()


def states_after(gradients):
    """The state of one matrix after these gradients."""
    state = torch.zeros(state_shape(gradients[0].shape), dtype=gradients[0].dtype)
    for step, gradient in enumerate(gradients):
        update_whitening_([state], [gradient], step)
    return state


@settings(deadline=None)
@given(st.integers(2, 7), st.integers(2, 9), st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e6]))
def test_it_is_momentum_times_the_inverse_root_of_the_covariance(rows, columns, seed, scale):
    gradients = [scale * matrix(rows, columns, seed + i) for i in range(4)]
    covariance = sum(D ** (3 - i) * (1 - D) * g.mT @ g for i, g in enumerate(gradients))
    ahead = matrix(rows, columns, seed + 7)
    (found,) = whitened([ahead], [states_after(gradients)])
    torch.testing.assert_close(found, expected_direction(ahead, covariance), rtol=1e-6, atol=1e-8)


def test_a_layer_of_correlated_inputs_moves_as_one_of_independent_inputs():
    """With gradients G·A in the place of G, A symmetric, the direction of M·A is that of M.

    It makes harmless that inputs share a large component, as pixels do, and what comes out of a ReLU.
    """
    mix = torch.eye(6, dtype=torch.float64) + 3.0
    gradients = [matrix(20, 6, i) for i in range(60)]
    plain = states_after(gradients)
    mixed = states_after([g @ mix for g in gradients])
    ahead = matrix(20, 6, 99)
    (first,), (second,) = whitened([ahead], [plain]), whitened([ahead @ mix], [mixed])
    assert (first - second).norm() / first.norm() < 0.25
    by_size = (ahead @ mix) / (ahead @ mix).square().mean().sqrt()
    assert (first - by_size).norm() / first.norm() > 0.8


def test_wide_matrices_have_a_covariance_in_blocks(monkeypatch):
    monkeypatch.setattr(matrices, "WIDEST_BLOCK", 4)
    assert state_shape((3, 2, 5)) == (2, 3, 4, 4)
    gradients = [matrix(5, 10, i).view(5, 2, 5) for i in range(5)]
    state = states_after([g.flatten(1) for g in gradients])
    ahead = matrix(5, 10, 9)
    (found,) = whitened([ahead], [state])
    pieces = []
    for start in (0, 4, 8):
        part = slice(start, min(start + 4, 10))
        covariance = sum(
            D ** (4 - i) * (1 - D) * g.flatten(1)[:, part].mT @ g.flatten(1)[:, part] for i, g in enumerate(gradients)
        )
        values, vectors = torch.linalg.eigh(covariance)
        pieces.append(ahead[:, part] @ (vectors * (values / covariance.norm() + 1e-4) ** -0.5) @ vectors.mT)
    whole = torch.cat(pieces, -1)
    torch.testing.assert_close(found, whole / whole.square().mean().sqrt(), rtol=1e-6, atol=1e-8)


def test_the_root_is_made_at_every_early_step_and_then_at_every_tenth():
    gradients = [matrix(3, 4, i) for i in range(25)]
    state, roots = torch.zeros(2, 1, 4, 4, dtype=torch.float64), []
    for step, gradient in enumerate(gradients):
        update_whitening_([state], [gradient], step)
        roots.append(state[1].clone())
    changed = [i for i in range(1, 25) if not torch.equal(roots[i], roots[i - 1])]
    assert changed == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20]


@pytest.mark.parametrize("value", [0.0, 1e-25, math.inf, math.nan])
def test_dead_and_diverged_matrices_leave_the_others_alone(value):
    good, bad = matrix(3, 4, 1).float(), torch.full((3, 4), value)
    states = [torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)]
    update_whitening_(states, [bad, good], 0)
    assert states[0][1].isfinite().all()
    dead, found = whitened([bad, good], states)
    assert dead.isfinite().all() == math.isfinite(value)
    torch.testing.assert_close(found.double(), expected_direction(good, good.mT @ good).double(), rtol=2e-3, atol=2e-3)


def test_inputs_that_are_always_zero_do_not_stop_the_decomposition():
    """In single precision, where it fails on such a covariance without damping first (found in a meta-training)."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        gradient = 1e-3 * torch.randn(4, 256, generator=generator) * (torch.rand(256, generator=generator) < 0.3)
        state = torch.zeros(state_shape(gradient.shape))
        for step in range(3):
            update_whitening_([state], [gradient * 10**-seed], step)
        assert state.isfinite().all()
        (found,) = whitened([gradient], [state])
        assert found.square().mean() == pytest.approx(1.0, abs=1e-3)


def test_what_does_not_converge_is_done_again_in_double_precision(monkeypatch):
    state, gradient, eigh = torch.zeros(2, 1, 4, 4), matrix(3, 4, 1).float(), torch.linalg.eigh

    def fails(x):
        if x.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no")
        return eigh(x)

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    update_whitening_([state], [gradient], 0)
    (found,) = whitened([gradient], [state])
    expected = expected_direction(gradient.double(), gradient.double().mT @ gradient.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
