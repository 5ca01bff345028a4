"""Adversarial examples against a classifier's averaged prediction: FGSM, and the same in several steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Images (n, ...) in [0, 1] → log-probabilities (n, C).
LogPredictive = Callable[[Tensor], Tensor]


def loss_gradient(log_predictive: LogPredictive, images: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each image's −log p(label), of the images' shape."""
    images = images.detach().requires_grad_()
    loss = nn.functional.nll_loss(log_predictive(images), labels, reduction="sum")
    return torch.autograd.grad(loss, images)[0]


def attack(
    log_predictive: LogPredictive,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int = 1,
    step_size: float | None = None,
) -> Tensor:
    """Images within ``epsilon`` of the given ones, every pixel in [0, 1], on which the loss is larger.

        x ← clip(x + step_size·sign ∇ₓ(−log p(label | x))), to the box of radius epsilon about the image, and to [0, 1]

    One step of size ``epsilon`` (the default) is the fast gradient sign method (Goodfellow et al., ICLR 2015); several
    are its iterated form (Kurakin et al., 2017), by default with steps of 2.5·epsilon/steps.

    Raises:
        ValueError: ``epsilon`` is negative, or ``steps`` below 1.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must not be negative, got {epsilon}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if step_size is None:
        step_size = epsilon if steps == 1 else 2.5 * epsilon / steps
    low, high = (images - epsilon).clamp_min(0), (images + epsilon).clamp_max(1)
    current = images
    for _ in range(steps):
        current = current + step_size * loss_gradient(log_predictive, current, labels).sign()
        current = current.maximum(low).minimum(high)
    return current


def robust_accuracy(
    log_predictive: LogPredictive, images: Tensor, labels: Tensor, epsilon: float, *, steps: int = 1, batch: int = 500
) -> float:
    """Share of images that are classified rightly after the attack."""
    right = 0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        moved = attack(log_predictive, x, y, epsilon, steps=steps)
        with torch.no_grad():
            right += int((log_predictive(moved).argmax(-1) == y).sum())
    return right / len(labels)


def share_without_gradient(log_predictive: LogPredictive, images: Tensor, labels: Tensor, *, batch: int = 500) -> float:
    """Share of images whose gradient is exactly zero, by underflow: the attack cannot move them."""
    dead = 0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        dead += int((loss_gradient(log_predictive, x, y).flatten(1) == 0).all(1).sum())
    return dead / len(labels)
