"""Clipped gradients: they make a posterior wider without bound, so a chain that sees them says so once."""

from __future__ import annotations

import math
from typing import Any

import torch

from learned_samplers.base.protocol import Chain
from learned_samplers.base.sharding import local
from learned_samplers.base.warning import warn

#: Steps with one and the same total norm after which the warning is given.
PATIENCE = 10
# Clipping divides by the norm plus 1e-6, in single precision.
_SAME = 1e-5


class ClippingWatch:
    """Watch on the total norm of the gradients: warns where it keeps returning to its largest value.

    Clipped gradients have the total norm that they are clipped to, again and again, and never a larger one, while the
    norm of a single tensor changes. Gradients of one tensor alone cannot be told apart from a constant gradient, and
    clipping by value leaves no such trace.
    """

    def __init__(self) -> None:
        self.largest = self.share = 0.0
        self.hits = 0
        #: Total norm from which on a step is worth a look; infinite once it has warned.
        self.watched = 0.0

    def look(self, sampler: Chain, evaluation: Any) -> None:
        """Compare a step's gradients, whose total norm is at least `watched`, with those of before."""
        gradients = [g for inputs in evaluation.groups for g in inputs.gradients]
        total = evaluation.total_norm
        if len(gradients) > 1 and 0 < total < math.inf:
            first = gradients[0] if sampler.mesh is None else local(gradients[0])
            self._compare(torch.linalg.vector_norm(first).item() / total, total)

    def _compare(self, share: float, total: float) -> None:
        """Count a total norm that may be the largest one again; ``share`` is that of the first tensor in it."""
        if total > self.largest * (1 + _SAME):
            self.largest, self.share, self.hits = total, share, 1
        else:
            changed = abs(share - self.share) > 1e-3 * max(share, self.share)
            self.share, self.hits = share, self.hits + changed
        self.watched = self.largest * (1 - _SAME)
        if self.hits >= PATIENCE:
            self.watched = math.inf
            warn(
                f"the gradients had the total norm {self.largest:g} in {PATIENCE} steps and never a larger one: they "
                "seem to be clipped. Clipping makes the posterior wider without bound (see "
                "docs/how-to/torch_habits.md#gradient-clipping); in the Hugging Face Trainer write max_grad_norm=0"
            )
