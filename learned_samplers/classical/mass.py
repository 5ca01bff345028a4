"""The masses of `AdaptedSGHMC`: measured on gradients, then frozen, each keeps the law as it changes coordinates."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from learned_samplers.base import matrices
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, Operations
from learned_samplers.base.segments import matrix_sides

# Of its Frobenius norm: what is added to a covariance, so that a direction without gradients has a finite step.
_RIDGE = 1e-6


class Mass(Protocol):
    """A preconditioner S that is measured on gradients and then frozen: the chain moves φ of θ = S·φ.

    Its state is one tensor a parameter.
    """

    #: Steps after which `freeze` renews the states that it says are `kept`, while they are measured; 0 for none.
    renewed_every: int

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the state of a parameter."""

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        """Let a fresh state be in place, as if all steps before had had this gradient: a parameter was added later."""

    def measure(self, state: Any, gradient: Any, rate: Any, ops: Operations) -> Any:
        """The state after another gradient of the mean loss, whose weight is ``rate``."""

    def kept(self, state: Tensor) -> bool:
        """Whether a state that is still measured holds what `apply` takes: it is too dear to make in each step."""

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any, moment: bool = False) -> Any:
        """What `apply` takes, made of what was measured: of the state's shape, new tensors.

        Of the ``moment``: a state that is kept is left as it is.
        """

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        """S·x; may overwrite x."""


class DiagonalMass:
    """S = √G, one number a coordinate, G = a/(√v̂ + floor), with v̂ the running average of g²."""

    renewed_every = 0

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape)

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        # The mean over the tensor: of few gradients v̂ would let single weights fly away.
        state.add_(gradient.square().mean())

    def measure(self, state: Any, gradient: Any, rate: Any, ops: Operations) -> Any:
        return ops.add_product(ops.scale(state, 1 - rate), gradient, gradient, rate)

    def kept(self, state: Tensor) -> bool:
        return False

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any, moment: bool = False) -> Any:
        return ops.map(lambda scale: (momentum_decay / (scale + floor)) ** 0.5, ops.sqrt(state))

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        return ops.multiply(x, frozen)


class MatrixMass:
    """A matrix G on the inputs' side of each matrix of weights, G = a·((R̂ + 10⁻⁶·‖R̂‖)^½ + floor)⁻¹, S·x = x·√G.

    R̂ is the running average of GᵀG/rows over the gradients G, a row an output: the diagonal mass with v̂ replaced by
    the covariance that the gradients of an output have. It is in blocks of columns, as that of the whitened direction
    (`matrices.state_shape`); what has none there (vectors, biases, a matrix of very many columns beside its rows) has
    the diagonal mass.

    State of a matrix: (2, blocks, width, width), R̂ and √G, which is renewed every ten steps while R̂ is measured; of
    other tensors: one axis, whatever they have, by which the two are told apart.
    """

    renewed_every = 10
    _diagonal = DiagonalMass()

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        found = matrices.state_shape(shape)
        return found if len(found) == 4 else (math.prod(shape),)

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        if _of_matrix(state):
            state[0].diagonal(dim1=-2, dim2=-1).add_(gradient.square().mean())
        else:
            self._diagonal.begin(state, gradient)

    def measure(self, state: Any, gradient: Any, rate: Any, ops: Operations) -> Any:
        if isinstance(state, Tensor):
            return self._measured([state.clone() if ops is FUNCTIONAL else state], [gradient], rate)[0]
        return self._measured(state, gradient, rate)

    def _measured(self, state: list[Tensor], gradient: list[Tensor], rate: Any) -> list[Tensor]:
        known, rest = _sorted(state)
        gradients = [gradient[i].reshape(matrix_sides(gradient[i].shape)).to(state[i].dtype) for i in known]
        for places, covariances in matrices.covariances_of([state[i] for i in known], gradients):
            rows = gradients[places[0]].shape[0]
            kept = [state[known[i]][0] for i in places]
            FOREACH.add(kept, FOREACH.scale(torch._foreach_sub(FOREACH.scale(covariances, 1 / rows), kept), rate))
        if rest:
            flat = [gradient[i].flatten() for i in rest]
            self._diagonal.measure([state[i] for i in rest], flat, rate, FOREACH)
        return state

    def kept(self, state: Tensor) -> bool:
        return _of_matrix(state)

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any, moment: bool = False) -> Any:
        def frozen(state: Tensor) -> Tensor:
            if not _of_matrix(state):
                return self._diagonal.freeze(state, FUNCTIONAL, momentum_decay=momentum_decay, floor=floor)
            if moment:
                return state
            values, vectors = _eigen(state[0])
            roots = (momentum_decay / (values.sqrt() + floor)) ** 0.5
            return torch.stack([state[0], ((vectors * roots.unsqueeze(-2)) @ vectors.mT).to(state.dtype)])

        return ops.map(frozen, state)

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        return self._applied([x], [frozen])[0] if isinstance(x, Tensor) else self._applied(x, frozen)

    def _applied(self, x: list[Tensor], frozen: list[Tensor]) -> list[Tensor]:
        known, rest = _sorted(frozen)
        found = list(x)
        shapes = [(x[i].shape, frozen[i].shape) for i in known]
        for places in matrices.together([x[i] for i in known], shapes):
            chosen = [known[i] for i in places]
            root, one = [frozen[i][1].to(x[i].dtype) for i in chosen], len(chosen) == 1
            both = (x[chosen[0]], root[0]) if one else (torch.stack([x[i] for i in chosen]), torch.stack(root))
            made = _times(*both, matrix_sides(x[chosen[0]].shape))
            for i, each in zip(chosen, [made] if one else made.unbind(), strict=True):
                found[i] = each.reshape(x[i].shape)
        if rest:
            factors = [frozen[i].view(x[i].shape) for i in rest]
            for i, each in zip(rest, torch._foreach_mul([x[i] for i in rest], factors), strict=True):
                found[i] = each
        return found


MASSES: dict[str, Mass] = {"diagonal": DiagonalMass(), "matrix": MatrixMass()}


def _of_matrix(state: Tensor) -> bool:
    """Whether a state of `MatrixMass` is that of a matrix."""
    return state.dim() == 4


def _sorted(states: list[Tensor]) -> tuple[list[int], list[int]]:
    """The places of the matrices, and those of the others."""
    found = [i for i, state in enumerate(states) if _of_matrix(state)]
    return found, [i for i, state in enumerate(states) if not _of_matrix(state)]


def _times(x: Tensor, root: Tensor, sides: tuple[int, int]) -> Tensor:
    """Tensors (..., *shape) as matrices (..., rows, columns) times roots (..., blocks, width, width)."""
    x = x.reshape(*root.shape[:-3], *sides)
    blocks = matrices.in_blocks(x, root.shape[-1]) @ root
    return blocks.transpose(-3, -2).flatten(-2)[..., : sides[1]]


def _eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of R̂ + 10⁻⁶·‖R̂‖, in single precision at least."""
    # What is not finite stays so in the mass (`AdaptedSGHMC`), and must not stop the decomposition of others.
    finite = covariance.to(torch.promote_types(covariance.dtype, torch.float32)).nan_to_num(0.0, 0.0, 0.0)
    ridge = _RIDGE * torch.linalg.matrix_norm(finite, keepdim=True)
    # The ridge first: with inputs that are always zero the decomposition may not converge in single precision.
    ridged = finite + ridge * torch.eye(finite.shape[-1], dtype=finite.dtype, device=finite.device)
    values, vectors = matrices.eigen(ridged)
    return torch.maximum(values, ridge[..., 0]), vectors
