"""The direction in which a matrix of weights moves: momentum, whitened and made orthogonal, and how long it is.

A matrix M (momentum of a layer, a row an output) becomes `orthogonal` of M·(R + 10⁻⁴·‖R‖)^(−1/2), with R the covariance
of its inputs (`learned_samplers.base.whitening`), times the `attenuation`. Leading axes are members of a batch.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import whitening
from learned_samplers.base.segments import Segments

# p(x) = a·x + b·x³ + c·x⁵, five times over, brings every singular value in (0.003, 1] to between .68 and 1.2: fast and
# close enough, for the values need not be 1 (K. Jordan et al., Muon, 2024).
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_TIMES = 5
_FLOOR = 1e-20
# In `attenuation`: 1 without a pull, whatever the gradient, and differentiable where both are zero.
_TINY = 1e-30
# Above this many operations a step on a CPU, some .2 to .4 s of a core, users are told.
_MANY_OPERATIONS = 2e10


def averaged(average: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """d·m + (1−d)·g in the gradient's precision: the average after this gradient, or of that one a step ahead of it."""
    return torch.lerp(average.to(gradient.dtype), gradient, 1 - decay)


def attenuation(ahead: Tensor, parameter: Tensor, decay: Any) -> Tensor:
    """‖m‖/√(‖m‖² + ‖w·θ‖²): near 1, or small where m is small beside the prior's pull.

    A direction is as long for a small gradient as for a large one. Where few data are fitted, what is left of the
    likelihood's gradient is below the prior's, and a chain that went on at the same pace would only memorise.

    Args:
        ahead: ‖m‖², m an average of gradients of the mean loss, not corrected for its start at zero.
        parameter: ‖θ‖², of θ less the prior's mean, over as many numbers.
        decay: w = λ/N, by which θ is pulled.
    """
    return ((ahead + _TINY) / (ahead + parameter * (decay * decay) + _TINY)).sqrt()


def attenuations(ahead: Sequence[Tensor], parameters: Sequence[Tensor], decay: Any) -> Sequence[Tensor]:
    """`attenuation` of each matrix (..., rows, columns), in shapes that multiply it."""
    if ahead[0].dim() == 2:  # all tensors together: one by one it takes a tenth of a step
        m, theta = [torch.stack(list(torch._foreach_norm(list(x)))).square() for x in (ahead, parameters)]
        return attenuation(m, theta, decay).unbind()
    sizes = ([each.square().sum((-2, -1), keepdim=True) for each in x] for x in (ahead, parameters))
    return [attenuation(each, theta, decay) for each, theta in zip(*sizes, strict=True)]


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """√(longer side)·U·Vᵀ of each matrix M = U·S·Vᵀ, (..., rows, columns), root mean square about 1.

    Up to the error of five Newton–Schulz iterations; a single row is only divided by its root mean square. Matrices of
    one shape go together.
    """
    alike = defaultdict(list)
    for i, matrix in enumerate(matrices):
        alike[matrix.shape[-2:]].append(i)
    found: list[Tensor] = [torch.empty(0)] * len(matrices)
    for places in alike.values():
        # No copy of a single one, which may be as large as the model.
        together = torch.stack([matrices[i] for i in places]) if len(places) > 1 else matrices[places[0]].unsqueeze(0)
        for i, matrix in zip(places, _newton_schulz(together), strict=True):
            found[i] = matrix
    return found


def operations(segments: Segments) -> float:
    """Floating-point operations of `orthogonal` on these tensors, a multiply-add as two."""
    total = 0
    for sides in segments.matrices:
        short, long = sorted(sides)
        if _is_long(short, long):
            total += 4 * short**2 * long + 2 * (4 * _TIMES - 3) * short**3
        elif short > 1:
            total += _TIMES * (4 * short**2 * long + 2 * short**3)
    return total


def directions(
    ahead: Sequence[Tensor], states: Sequence[Tensor], parameters: Sequence[Tensor], decay: Any = 0.0
) -> list[Tensor]:
    """Of matrices (..., rows, columns) the orthogonal factor of each, whitened by ``states``, times its `attenuation`.

    The root mean square is about 1 over a tensor, or less by the attenuation; a single row is divided by its own.
    ``parameters`` and ``decay``, λ/N, are for the attenuation: 0 has none.
    """
    rows = orthogonal(whitening.whitened(ahead, states, normalise=False))
    if not rows or not (isinstance(decay, Tensor) or decay):
        return rows
    return [row * factor for row, factor in zip(rows, attenuations(ahead, parameters, decay), strict=True)]


def warn_if_slow(
    params: Sequence[Tensor],
    sees: str,
    instead: str,
    *,
    whitens: bool = True,
    makes_orthogonal: bool = True,
    stacklevel: int = 6,
) -> None:
    """Say so where the directions of these matrices take long at every step; on CPUs alone.

    ``sees`` begins the sentence ("… each matrix's momentum whitened"), ``instead`` ends it.
    """
    here = [p for p in params if p.device.type == "cpu" and p.numel()]
    if not here:
        return
    segments = Segments.of(here)
    what = "momentum whitened" if whitens else "orthogonal factor"
    needed = whitening.operations(segments) if whitens else 0.0
    needed += operations(segments) if makes_orthogonal else 0.0
    if needed > _MANY_OPERATIONS:
        largest = max(segments.matrices, key=min)
        warnings.warn(
            f"{sees} each matrix's {what}, {needed / 1e9:.0f} billion operations a step here "
            f"(the largest is {largest[0]}×{largest[1]}): slow on a CPU. {instead}",
            stacklevel=stacklevel,
        )


def _newton_schulz(x: Tensor) -> Tensor:
    rows, columns = x.shape[-2:]
    scale = math.sqrt(max(rows, columns))
    x = x * torch.rsqrt(x.square().sum((-2, -1), keepdim=True) + _FLOOR)
    if min(rows, columns) == 1:
        return x.mul_(scale)
    wide = x.mT if rows > columns else x
    lead = wide.shape[:-2]
    wide = wide.reshape(-1, *wide.shape[-2:])
    wide = (_by_squares(wide) if _is_long(*wide.shape[-2:]) else _directly(wide)).unflatten(0, lead)
    return (wide.mT if rows > columns else wide) * scale


def _directly(wide: Tensor) -> Tensor:
    a, b, c = _POLYNOMIAL
    for _ in range(_TIMES):
        square = torch.bmm(wide, wide.mT)
        wide = torch.baddbmm(wide, torch.baddbmm(square, square, square, beta=b, alpha=c), wide, beta=a)
    return wide


def _is_long(short: int, long: int) -> bool:
    # Measured on a core: 15 ms in the place of 46 at 256×2304, .40 in the place of .79 at 64×576, but 158 µs in the
    # place of 103 at 16×144, where every product costs the same few microseconds.
    return long >= 4 * short and short * long >= 2048


def _by_squares(wide: Tensor) -> Tensor:
    """The same from X·Xᵀ, with two products along the long side in the place of ten.

    Every iterate is Q·X with Q a polynomial of S = X·Xᵀ, and its own square is Q·S·Q.
    """
    a, b, c = _POLYNOMIAL
    square = torch.bmm(wide, wide.mT)
    whole: Tensor | None = None
    for time in range(_TIMES):
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor = factor + a * torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        whole = factor if whole is None else torch.bmm(factor, whole)
        if time < _TIMES - 1:
            square = torch.bmm(torch.bmm(factor, square), factor)
    assert whole is not None
    return torch.bmm(whole, wide)
