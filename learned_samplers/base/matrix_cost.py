"""The cost of the direction of `matrices`, and a warning where it is slow."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from learned_samplers.base.matrices import (
    NEWTON_SCHULZ_STEPS,
    ROOT_EVERY,
    TALLEST_BLOCK,
    blocks_of,
    state_shape,
)
from learned_samplers.base.segments import Segments
from learned_samplers.base.warning import warn

# Above this many operations a step on a CPU, half a second of a core, users are told.
_MANY_OPERATIONS = 5e10


def operations(segments: Segments) -> float:
    """Floating-point operations of `directions` of these tensors in a step, a multiply-add as two."""
    total = 0.0
    for rows, columns in segments.matrices:
        short, long = sorted((rows, columns))
        if short > 1:
            blocks, height = blocks_of(short, TALLEST_BLOCK)
            total += blocks * (4 * height**2 * long + 2 * (4 * NEWTON_SCHULZ_STEPS - 3) * height**3)
        shape = state_shape((rows, columns))
        if len(shape) > 1:
            _, blocks, width, _ = shape
            # An eigendecomposition is some ten products.
            total += blocks * (4 * rows * width**2 + 22 * width**3 / ROOT_EVERY)
    return total


def warn_if_slow(params: Sequence[Tensor], sees: str, instead: str) -> None:
    """Say so where the directions of these matrices take long at every step; on CPUs alone.

    ``sees`` begins the sentence ("… each matrix's momentum whitened"), ``instead`` ends it.
    """
    on_cpu = [p for p in params if p.device.type == "cpu" and p.numel()]
    if not on_cpu:
        return
    segments = Segments.of(on_cpu)
    needed = operations(segments)
    if needed > _MANY_OPERATIONS:
        rows, columns = max(segments.matrices, key=min)
        warn(
            f"{sees} each matrix's momentum whitened, {needed / 1e9:.0f} billion operations a step here (the largest "
            f"is {rows}×{columns}): slow on a CPU. {instead}"
        )
