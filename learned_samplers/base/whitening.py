"""The covariance of a matrix's inputs and its inverse root, by which momentum is whitened."""

from __future__ import annotations

import math
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
_TINY, _FLOOR = 1e-30, 1e-20


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


def operations(segments: Segments) -> float:
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
