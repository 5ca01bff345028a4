"""Attacks on a linear classifier, where the worst point of the box is known."""

from __future__ import annotations

import pytest
import torch
from experiments.function_space.attacks import attack, loss_gradient, robust_accuracy, share_without_gradient

WEIGHTS = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 2.0, -0.5]])


def linear(x):
    return (x @ WEIGHTS.T).log_softmax(-1)


def test_worst_point_of_the_box():
    x, y = torch.full((1, 3), 0.5), torch.tensor([0])
    worst = x + 0.2 * torch.tensor([[-1.0, 1.0, -1.0]])
    torch.testing.assert_close(attack(linear, x, y, 0.2), worst)
    torch.testing.assert_close(attack(linear, x, y, 0.2, steps=7), worst)
    # Pixels stay in [0, 1].
    torch.testing.assert_close(attack(linear, x, y, 0.9, steps=3), torch.tensor([[0.0, 1.0, 0.0]]))
    assert torch.equal(attack(linear, x, y, 0.0), x)


def test_accuracy_falls_where_the_margin_is_passed():
    """Image i has margin mᵢ in Σ|w|·ε units: at ε exactly those with a smaller one are misread."""
    margins = torch.tensor([0.02, 0.06, 0.11, 0.16])
    x = 0.5 + margins[:, None] * torch.tensor([1.0, -1.0, 1.0])
    y = torch.zeros(4, dtype=torch.long)
    x = x - (x @ WEIGHTS[0] - margins * 3.5)[:, None] * WEIGHTS[0] / WEIGHTS[0].square().sum()
    for epsilon, share in ((0.0, 1.0), (0.05, 0.75), (0.1, 0.5), (0.2, 0.0)):
        assert robust_accuracy(linear, x, y, epsilon, batch=3) == share
        assert robust_accuracy(linear, x, y, epsilon, steps=5) == share
    # Planted: an attack that goes down the loss, as with a sign forgotten, leaves all of them right.
    wrong_way = x - 0.2 * loss_gradient(linear, x, y).sign()
    assert (linear(wrong_way).argmax(-1) == y).all()


def test_several_steps_go_round_a_bend():
    """A loss whose slope turns inside the box: one step is carried past the peak, several find it."""

    def bent(x):
        return torch.stack([-((x[:, 0] - 0.55) ** 2), torch.full_like(x[:, 0], 0.0)], 1).neg().log_softmax(-1)

    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    once, often = (attack(bent, x, y, 0.3, steps=steps) for steps in (1, 50))
    assert bent(often)[0, 0] < bent(once)[0, 0]


def test_gradients_that_are_zero_are_counted():
    def saturated(x):
        return (1e6 * (x @ WEIGHTS.T)).log_softmax(-1)

    x, y = torch.tensor([[0.9, 0.1, 0.5], [0.5, 0.25, 0.0]]), torch.tensor([0, 0])
    assert share_without_gradient(saturated, x, y) == 0.5
    assert share_without_gradient(linear, x, y) == 0


def test_bad_arguments():
    x, y = torch.zeros(1, 3), torch.tensor([0])
    with pytest.raises(ValueError, match=r"epsilon must not be negative, got -0\.1"):
        attack(linear, x, y, -0.1)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        attack(linear, x, y, 0.1, steps=0)
