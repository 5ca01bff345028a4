"""The update of microcanonical Langevin Monte Carlo, a pure function of all tensors of a chain at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import scalar_sqrt

Tensors = Sequence[Tensor]


def inner_product(x: Tensors, y: Tensors, batch_axes: int = 0) -> Tensor:
    """Σ x·y over a list of tensors and all but their leading ``batch_axes`` axes, in double precision."""
    products = (a.double() * b.double() for a, b in zip(x, y, strict=True))
    return torch.stack([p.reshape(*p.shape[:batch_axes], -1).sum(-1) for p in products]).sum(0)


def per_chain(scalar: Tensor, like: Tensor) -> Tensor:
    """One number a chain, in the shape and dtype in which it multiplies a tensor of the chains."""
    return scalar.to(like).reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


def normalise(x: Tensors, batch_axes: int = 0) -> list[Tensor]:
    """The unit vector of all tensors together, one a chain."""
    norm = inner_product(x, x, batch_axes).sqrt()
    return [a / per_chain(norm, a) for a in x]


def joined(kept: Sequence[Tensor | None], fresh: Tensors, size: int) -> list[Tensor]:
    """The directions that are there, and N(0, I) draws for those that are not, to be normalised together.

    What joins a chain that moves already begins with its share of the direction, 1/√d a weight.
    """
    share = 1.0 if all(u is None for u in kept) else 1 / math.sqrt(size)
    return [share * new if u is None else u for u, new in zip(kept, fresh, strict=True)]


def turn(
    direction: Tensors, force: Tensors, time: float, size: int, batch_axes: int = 0
) -> tuple[list[Tensor], Tensor]:
    """Turn the unit vector u towards the force f for a time τ: the exact flow of u' = (I − uuᵀ)f/(d−1).

    With e = f/‖f‖, δ = τ‖f‖/(d−1) and ζ = exp(−δ): u ← normalise[e·(1−ζ)·(1+ζ+(u·e)(1−ζ)) + 2ζu].

    Returns:
        The new direction, and (d−1)·log(cosh δ + (u·e)·sinh δ), one number a chain: the growth of the kinetic energy,
        in units of T, which along the exact trajectory is the fall of U/T.
    """
    norm = inner_product(force, force, batch_axes).sqrt()
    unit = [f * per_chain(1 / norm.clamp(min=1e-37), f) for f in force]  # 0 where there is no force: nothing turns
    cosine = inner_product(direction, unit, batch_axes).clamp(-1, 1)
    delta = time * norm / (size - 1)
    zeta = (-delta.clamp(max=80)).exp()  # beyond, the direction is e to the last bit
    along, across = (1 - zeta) * (1 + zeta + cosine * (1 - zeta)), 2 * zeta
    turned = [per_chain(along, e) * e + per_chain(across, u) * u for e, u in zip(unit, direction, strict=True)]
    growth = delta - math.log(2) + torch.log(1 + cosine + (1 - cosine) * zeta**2)
    return normalise(turned, batch_axes), (size - 1) * growth


def step_length(lr: Any, num_data: Any, temperature: Any, size: int) -> Any:
    """σ = √(lr·T·d/N), in units of θ: what a momentum of variance T moves all d weights in a step of `SGHMC`."""
    return scalar_sqrt(lr * temperature * size / num_data)


def energy_force(
    params: Tensors,
    gradients: Tensors,
    step_size: Sequence[Any],
    *,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
) -> list[Tensor]:
    """f = −σ·(N·g + λθ)/T of every tensor, the force that turns the direction in the time of one step."""
    pairs = zip(params, gradients, step_size, strict=True)
    return [-s / temperature * (num_data * g + prior_precision * p) for p, g, s in pairs]


def depart(
    params: Tensors,
    noise: Tensors,
    direction: Tensors,
    force: Tensors,
    step_size: Sequence[Any],
    *,
    momentum_decay: Any,
    size: int,
    batch_axes: int = 0,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """u ← normalise[(1−a)·u + √((1−(1−a)²)/d)·ξ];  half a turn;  θ ← θ + σ·u. The last answer is `turn`'s growth."""
    keep = 1 - momentum_decay
    spread = scalar_sqrt((1 - keep * keep) / size)
    direction = normalise([keep * u + spread * z for u, z in zip(direction, noise, strict=True)], batch_axes)
    direction, growth = turn(direction, force, 0.5, size, batch_axes)
    return [p + s * u for p, s, u in zip(params, step_size, direction, strict=True)], direction, growth


def mclmc_rule(
    params: Tensors,
    gradients: Tensors,
    noise: Tensors,
    direction: Tensors,
    step_size: Sequence[Any],
    *,
    momentum_decay: Any,
    size: int,
    batch_axes: int = 0,
    **energy: Any,
) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, Tensor]]:
    """Half a turn, refresh, half a turn, move: one step of microcanonical Langevin dynamics with one gradient.

    Every argument is a list over all tensors of a chain, each with ``batch_axes`` leading axes of chains; ``size`` is
    d, the coordinates of one chain. ``step_size`` is σ, a number or a tensor for each: the length of the step is that
    of σ·u, u a unit vector of all tensors together. ``energy`` is what `energy_force` takes.

    Returns:
        The parameters, the directions, and the growth of the kinetic energy in the first and in the second half turn.
    """
    force = energy_force(params, gradients, step_size, **energy)
    direction, before = turn(normalise(direction, batch_axes), force, 0.5, size, batch_axes)
    settings = {"momentum_decay": momentum_decay, "size": size, "batch_axes": batch_axes}
    params, direction, after = depart(params, noise, direction, force, step_size, **settings)
    return params, direction, (before, after)


def noise_scale(
    gradients: Tensors, mean: Tensors, square: Tensors, *, rate: float, limit: float = 10.0, batch_axes: int = 0
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """ḡ ← ḡ + ρ(g−ḡ), s² ← s² + ρ((g−ḡ)² − s²), and ŝ = s over its root mean square, in [1/limit, limit].

    The root mean square is over all tensors of a chain; ŝ is 1 as long as no gradient has differed from the mean.
    """
    square = [s + rate * ((g - m).square() - s) for g, m, s in zip(gradients, mean, square, strict=True)]
    mean = [m + rate * (g - m) for g, m in zip(gradients, mean, strict=True)]
    roots = [s.sqrt() for s in square]
    count = inner_product([torch.ones_like(r) for r in roots], [torch.ones_like(r) for r in roots], batch_axes)
    size = (inner_product(roots, roots, batch_axes) / count).sqrt()
    scale = [torch.where(per_chain(size, r) > 0, r / per_chain(size, r), 1.0).clamp(1 / limit, limit) for r in roots]
    return mean, square, scale
