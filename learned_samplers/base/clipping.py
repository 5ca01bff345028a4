"""Notices gradients that were clipped to a norm, which breaks the law of every sampler."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from learned_samplers.base.sharding import local

#: Steps with one and the same total norm after which the warning is given.
PATIENCE = 10
# Clipping divides by the norm plus 1e-6, in single precision.
_SAME = 1e-5


class ClippingWatch:
    """Sees the gradients' norms step after step; warns once where their total keeps returning to its largest value.

    Clipped gradients have the total norm that they are clipped to, again and again, and never a larger one, while the
    norm of a single tensor changes. Gradients of one tensor alone cannot be told apart from a constant gradient, and
    clipping by value leaves no such trace.
    """

    def __init__(self) -> None:
        self.largest = self.share = 0.0
        self.hits = 0

    def see(self, gradients: list[Tensor], total: float) -> None:
        """One step's gradients, and the norm of all together."""
        if self.hits < 0 or len(gradients) < 2 or not 0 < total < math.inf or total < self.largest * (1 - _SAME):
            return
        share = torch.linalg.vector_norm(local(gradients[0])).item() / total
        if total > self.largest * (1 + _SAME):
            self.largest, self.share, self.hits = total, share, 1
        else:
            changed = abs(share - self.share) > 1e-3 * max(share, self.share)
            self.share, self.hits = share, self.hits + changed
        if self.hits >= PATIENCE:
            self.hits = -1
            warnings.warn(
                f"the gradients had the total norm {self.largest:g} in {PATIENCE} steps and never a larger one: they "
                "seem to be clipped. Clipping makes the posterior wider without bound (see "
                "docs/how-to/gradient_clipping.md); in the Hugging Face Trainer write max_grad_norm=0",
                stacklevel=4,
            )
