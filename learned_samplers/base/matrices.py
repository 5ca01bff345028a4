"""The direction in which a matrix of weights moves: momentum, whitened and made orthogonal, and how long it is.

A matrix M (momentum of a layer, a row an output) becomes `orthogonal` of M·(R + 10⁻⁴·‖R‖)^(−1/2), with R the covariance
of its inputs, a running average of GᵀG over the gradients G, times the `attenuation`. Leading axes are members of a
batch.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments, matrix_sides

#: Of the running average R ← d·R + (1−d)·GᵀG.
COVARIANCE_DECAY = 0.95
#: Steps between two roots of R after the first `AT_FIRST`, in which it changes most; the step is the chain's.
ROOT_EVERY = 10
AT_FIRST = 10
#: Columns that have a covariance together: of more, R is in equal blocks along the diagonal.
WIDEST_BLOCK = 512
# Of its Frobenius norm: what is added to R, so that no direction is blown up by noise.
_RIDGE = 1e-4
# p(x) = a·x + b·x³ + c·x⁵, five times over, brings every singular value in (0.003, 1] to between .68 and 1.2: fast and
# close enough, for the values need not be 1 (K. Jordan et al., Muon, 2024).
_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
_TIMES = 5
_FLOOR = 1e-20
# In `attenuation`: 1 without a pull, whatever the gradient, and differentiable where both are zero.
_TINY = 1e-30
# Above this many operations a step on a CPU, some .2 to .4 s of a core, users are told.
_MANY_OPERATIONS = 2e10


# ------------------------------------------------------------------- the whole direction


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


def orthogonal_operations(segments: Segments) -> float:
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
    rows = orthogonal(whitened(ahead, states, normalise=False))
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
    needed = whitening_operations(segments) if whitens else 0.0
    needed += orthogonal_operations(segments) if makes_orthogonal else 0.0
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


# ------------------------------------------------------------------- the covariance of the inputs


def state_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor's covariance and its root, (2, blocks, width, width), or (0,) of what is no matrix."""
    rows, columns = matrix_sides(shape)
    if min(rows, columns) < 2:
        return (0,)
    blocks = math.ceil(columns / WIDEST_BLOCK)
    width = math.ceil(columns / blocks)
    return 2, blocks, width, width


def initial_whitening(p: Tensor) -> Tensor:
    """The state of a tensor without gradients: no covariance, and 1 for its root.

    One that joins a chain late begins with it; at the chain's first steps the root is made before it is used.
    """
    state = p.new_zeros(state_shape(p.shape))
    if state.numel():
        state[1] = torch.eye(state.shape[-1], dtype=p.dtype, device=p.device)
    return state


def state_lengths(segments: Segments) -> tuple[int, ...]:
    """How many numbers each tensor's state has.

    Raises:
        ValueError: ``segments`` do not know the shapes.
    """
    return tuple(math.prod(state_shape(sides)) for sides in segments.matrices)


def flat_states(whitening: Tensor, segments: Segments) -> list[Tensor]:
    """The states of the tensors, (..., 2, blocks, width, width) each, as views of a flat buffer (..., w)."""
    pieces = whitening.split(state_lengths(segments), -1)
    return [piece.unflatten(-1, state_shape(sides)) for piece, sides in zip(pieces, segments.matrices, strict=True)]


def makes_roots(step: int) -> bool:
    """Whether the root of every covariance is made anew in this step of the chain."""
    return step < AT_FIRST or step % ROOT_EVERY == 0


class RootSteps:
    """Makes the roots of tensors that have no gradient in the steps in which roots are made.

    Such a tensor (it joined late, or has a gradient in odd steps only) would keep an old root, or none. Once its root
    is `ROOT_EVERY` steps old it is made after a step in which it has a gradient.
    """

    def __init__(self) -> None:
        #: The step in which each parameter's root was made last.
        self.last: dict[Tensor, int] = {}

    def after(self, step: int, params: Sequence[Tensor], states: Iterable[Tensor]) -> None:
        """After ``step`` has updated the ``states`` of ``params``."""
        if makes_roots(step):
            self.last.update(dict.fromkeys(params, step))
            return
        for p, state in zip(params, states, strict=True):
            if step - self.last.setdefault(p, _regular(step)) >= ROOT_EVERY:
                self.last[p] = step
                if state.numel():
                    state[1] = _inverse_root(state[0])

    def keep(self, sampler: Any, params: Sequence[Tensor], step: Any) -> None:
        """`after` a step of a sampler whose state "whitening" they are.

        Raises:
            RuntimeError: inside ``torch.compile``, where nothing can be kept by the step: a parameter has no gradient.
        """
        if torch.compiler.is_compiling():
            if any(p.grad is None for group in sampler.param_groups for p in group["params"] if p.requires_grad):
                raise RuntimeError(
                    f"{type(sampler).__name__} whitens, and a parameter has no gradient: take the step outside of "
                    "torch.compile"
                )
        else:
            self.after(int(step), params, [sampler.state[p]["whitening"] for p in params])

    def save(self, sampler: Any, saved: dict[str, Any]) -> None:
        """Put into a saved state of the sampler what cannot be told from the number of its steps."""
        irregular = self.irregular(sampler.step_count)
        if irregular:
            saved["sampler"]["roots"] = {i: irregular[p] for _, p, i in sampler.indexed(saved) if p in irregular}

    def load(self, sampler: Any, saved: dict[str, Any]) -> None:
        """Go on after a saved state, which the sampler has loaded."""
        known = saved["sampler"].get("roots", {})
        last = {p: known[i] for _, p, i in sampler.indexed(saved) if i in known}
        self.resume(sampler.step_count, last, (p for p, own in sampler.state.items() if "whitening" in own))

    def bookmark(self) -> Callable[[], None]:
        """What puts them back as they are now, for a step that is undone."""
        last = dict(self.last)

        def restore() -> None:
            self.last = dict(last)

        return restore

    def irregular(self, steps: int) -> dict[Tensor, int]:
        """The last steps that a chain of ``steps`` steps cannot tell from their number: to be saved."""
        return {p: last for p, last in self.last.items() if last != _last_regular(steps)}

    def resume(self, steps: int, saved: Mapping[Tensor, int], moved: Iterable[Tensor]) -> None:
        """Go on after ``steps`` steps: with the ``saved`` ones, and for all others that have ``moved`` as their number
        says."""
        self.last = {p: saved.get(p, _last_regular(steps)) for p in moved}


def _last_regular(steps: int) -> int:
    """The last step of ``steps`` in which roots were made."""
    return steps - 1 if steps <= AT_FIRST else _regular(steps - 1)


def _regular(step: int) -> int:
    return step - step % ROOT_EVERY


def update_whitening(
    whitening: Tensor | None, gradient: Tensor, segments: Segments, step: int, *, in_place: bool = False
) -> Tensor:
    """As `update_whitening_`, of flat buffers (..., w) and (..., d), in new ones or in place.

    Raises:
        ValueError: there are no covariances, or the gradient is differentiated, which their root does not allow.
    """
    if whitening is None:
        raise ValueError("whitening must be given for a feature set with covariances, got None")
    if torch.is_grad_enabled() and (whitening.requires_grad or gradient.requires_grad):
        raise ValueError(
            "the root of a covariance is not differentiated through: take weights of a feature set that does not "
            "whiten, such as network='l2e' of L2E"
        )
    whitening = whitening if in_place else whitening.clone()
    update_whitening_(flat_states(whitening, segments), segments.as_matrices(gradient), step)
    return whitening


def update_whitening_(states: Sequence[Tensor], gradients: Sequence[Tensor], step: int) -> None:
    """R ← d·R + (1−d)·GᵀG and, where ``step`` says so, (R + 10⁻⁴·‖R‖)^(−1/2), in place.

    The root is in units that drop out of the feature.

    Args:
        states: (..., 2, blocks, width, width) for each tensor, zeros before the first step; (..., 0) of no matrix.
        gradients: (..., rows, columns) each.
        step: updates done so far.
    """
    for places in _alike(states, gradients):
        width = states[places[0]].shape[-1]
        covariances = [states[i][..., 0, :, :, :] for i in places]
        blocks = _in_blocks(_stacked([gradients[i] for i in places]), width)
        for kept, new in zip(covariances, blocks.mT @ blocks, strict=True):
            kept.lerp_(new, 1 - COVARIANCE_DECAY)
        if makes_roots(step):
            for i, root in zip(places, _inverse_root(_stacked(covariances)), strict=True):
                states[i][..., 1, :, :, :] = root


def whitened(matrices: Sequence[Tensor], states: Sequence[Tensor], *, normalise: bool = True) -> list[Tensor]:
    """M·(R + 10⁻⁴·‖R‖)^(−1/2) of each matrix M (..., rows, columns), over its root mean square; of no matrix M over it.

    Not ``normalise`` leaves them as long as they are, to whoever does it next: a huge tensor has a copy less.

    R, the running average of GᵀG over the gradients G, is in blocks of at most `WIDEST_BLOCK` columns. (Shampoo, of
    Gupta, Koren and Singer, 2018, on one side.)
    """
    found: list[Tensor] = list(matrices)
    for places in _alike(states, matrices):
        roots = _stacked([states[i][..., 1, :, :, :] for i in places])
        blocks = _in_blocks(_stacked([matrices[i] for i in places]), roots.shape[-1]) @ roots
        together = blocks.transpose(-3, -2).flatten(-2)
        for i, matrix in zip(places, together, strict=True):
            found[i] = matrix[..., : matrices[i].shape[-1]]
    if not normalise:
        return found
    return [x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + _FLOOR) for x in found]


def whitening_operations(segments: Segments) -> float:
    """Floating-point operations of a step's whitening of these tensors, a multiply-add as two."""
    total = 0.0
    for rows, columns in segments.matrices:
        shape = state_shape((rows, columns))
        if len(shape) > 1:
            _, blocks, width, _ = shape
            # An eigendecomposition is some ten products.
            total += 4 * rows * blocks * width**2 + blocks * 22 * width**3 / ROOT_EVERY
    return total


def _alike(states: Sequence[Tensor], matrices: Sequence[Tensor]) -> Iterable[list[int]]:
    """Places of those that have a state, of one shape together."""
    groups = defaultdict(list)
    for i, (state, matrix) in enumerate(zip(states, matrices, strict=True)):
        if state.shape[-1]:
            groups[matrix.shape].append(i)
    return groups.values()


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    # No copy of a single one, which may be as large as the model.
    return torch.stack(list(tensors)) if len(tensors) > 1 else tensors[0].unsqueeze(0)


def _in_blocks(matrix: Tensor, width: int) -> Tensor:
    """(..., rows, columns) ↦ (..., blocks, rows, width), with columns of zeros at the end of the last block."""
    missing = -matrix.shape[-1] % width
    if missing:
        matrix = torch.nn.functional.pad(matrix, (0, missing))
    return matrix.unflatten(-1, (-1, width)).transpose(-3, -2)


def _inverse_root(covariance: Tensor) -> Tensor:
    # A diverged chain has no covariance, and must not stop the others beside it.
    finite = covariance.to(torch.promote_types(covariance.dtype, torch.float32)).nan_to_num(0.0, 0.0, 0.0)
    size = torch.linalg.matrix_norm(finite, keepdim=True).clamp(min=_TINY)
    eye = torch.eye(finite.shape[-1], dtype=finite.dtype, device=finite.device)
    # The ridge first: with inputs that are always zero the decomposition may not converge in single precision.
    ridged = torch.addcdiv(_RIDGE * eye, finite, size)
    try:
        values, vectors = torch.linalg.eigh(ridged)
    except torch.linalg.LinAlgError:
        values, vectors = (x.to(finite) for x in torch.linalg.eigh(ridged.double()))
    return ((vectors * values.clamp(min=_RIDGE).rsqrt().unsqueeze(-2)) @ vectors.mT).to(covariance.dtype)
