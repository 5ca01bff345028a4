"""Angles between samples, and the loss on lines between them, where it is known."""

import numpy as np
import pytest
import torch

from learned_samplers import diagnostics
from tests.learned_samplers.posterior.common import collection, ensemble


def test_cosine_similarity():
    vectors = torch.tensor([[1.0, 0, 0], [1, 1, 0], [-2, 0, 0]])
    expected = [[1, 2**-0.5, -1], [2**-0.5, 1, -(2**-0.5)], [-1, -(2**-0.5), 1]]
    np.testing.assert_allclose(diagnostics.cosine_similarity(vectors), expected, atol=1e-12)
    samples = collection(ensemble())
    flat = torch.stack([torch.cat([t.flatten() for t in sample.values()]) for sample in samples])
    np.testing.assert_allclose(diagnostics.cosine_similarity(samples), diagnostics.cosine_similarity(flat))
    # From (1, 0, 0) the directions are (0, 1, 0) and (−3, 0, 0).
    apart = diagnostics.cosine_similarity(vectors[1:], torch.tensor([1.0, 0, 0]))
    np.testing.assert_allclose(apart, np.eye(2), atol=1e-12)
    arrays = diagnostics.cosine_similarity(vectors[1:].numpy(), origin=np.array([1.0, 0, 0]))
    np.testing.assert_allclose(arrays, apart, atol=1e-12)


def test_the_order_of_the_names_does_not_matter():
    torch.manual_seed(0)
    sample = {"a": torch.randn(3, 2), "b": torch.randn(4), "c": torch.randn(1)}
    independent = {name: torch.randn_like(tensor) for name, tensor in sample.items()}
    turned = [
        {name: one[name] for name in order} for one, order in ((sample, "abc"), (sample, "cba"), (independent, "bca"))
    ]
    expected = diagnostics.cosine_similarity([sample, sample, independent])
    np.testing.assert_allclose(diagnostics.cosine_similarity(turned), expected, rtol=1e-12)
    assert expected[0, 1] == pytest.approx(1)
    assert abs(expected[0, 2]) < 0.9


def at(*values):
    return {"a": torch.tensor(values[:1], dtype=torch.float64), "b": torch.tensor(values[1:], dtype=torch.float64)}


def barrier(first, second, loss):
    return diagnostics.loss_lines([first, second], loss).barriers.item()


def double_well(state):
    """(a² − 1)² + b²: minima at a = ±1, a hill of height 1 between them."""
    return (state["a"] ** 2 - 1) ** 2 + state["b"] ** 2


def test_barrier_of_a_quadratic_is_zero_and_of_a_double_well_one():
    def quadratic(state):
        return 3 * state["a"] ** 2 + state["b"] ** 2

    # A convex loss lies below its chord everywhere, and on it at the ends.
    assert barrier(at(1, 2), at(-4, 1), quadratic) == 0
    lines = diagnostics.loss_lines([at(1, 2), at(-4, 1)], quadratic, num_points=3)
    assert lines.losses[0].tolist() == [7.0, 3 * 1.5**2 + 1.5**2, 49.0]
    # A concave one, −x² between −1 and 2: −x² + 1 + 3t with x = 3t − 1 is 9t(1 − t), at most 9/4.
    concave = barrier(at(-1, 0), at(2, 0), lambda state: -(state["a"] ** 2))
    assert concave == pytest.approx(9 / 4)
    assert barrier(at(-1, 0), at(1, 0), double_well) == pytest.approx(1)
    # Between unequal ends, (a, b) = (−1, 0) and (1, 2), the loss at t is (x² − 1)² + 4t² and the chord 4t.
    t = np.linspace(0, 1, 21)
    expected = (((2 * t - 1) ** 2 - 1) ** 2 + 4 * t**2 - 4 * t).max()
    assert barrier(at(-1, 0), at(1, 2), double_well) == pytest.approx(expected)


def test_which_pairs():
    samples = [at(-1, 0), at(1, 0), at(1, 0.5), at(-1, 0)]
    every = diagnostics.loss_lines(samples, double_well, num_points=5)
    assert every.pairs == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert every.losses.shape == (6, 5)
    assert every.positions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert every.barriers == pytest.approx([1, 0.9375, 0, 0, 1, 0.9375])
    chosen = diagnostics.loss_lines(samples, double_well, pairs=[(3, 1)])
    assert chosen.barriers == pytest.approx([1])


def test_the_loss_of_a_sample_is_computed_once():
    seen = []
    samples = [at(-1, 0), at(1, 0.25), at(0.5, 0)]
    lines = diagnostics.loss_lines(samples, lambda state: seen.append(state) or double_well(state), num_points=4)
    assert len(seen) == 3 + 3 * 2
    ends = [double_well(state).item() for state in samples]
    assert lines.losses[:, [0, -1]].tolist() == [[ends[i], ends[j]] for i, j in lines.pairs]


def test_the_loss_gets_the_weights_in_their_shapes_and_at_least_in_float32():
    seen = []
    pair = [{"a": torch.randn(4, 3).bfloat16(), "b": torch.randn(5).bfloat16()} for _ in range(2)]
    diagnostics.loss_lines(pair, lambda state: seen.append(state) or 0.0, num_points=3)
    assert len(seen) == 3
    assert all(state["a"].dtype == torch.float32 and state["a"].shape == (4, 3) for state in seen)
