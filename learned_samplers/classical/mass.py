"""The masses of `AdaptedSGHMC`: measured on gradients, then frozen, each keeps the law as it changes coordinates."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from learned_samplers.base import matrices
from learned_samplers.base.operations import FUNCTIONAL, IN_PLACE, Operations
from learned_samplers.base.segments import matrix_sides

# Of its Frobenius norm: what is added to a covariance, so that a direction without gradients has a finite step.
_RIDGE = 1e-6


class Mass(Protocol):
    """A change of coordinates θ = S·φ: measured on gradients, then frozen. Its state is one tensor a parameter."""

    #: Steps after which `freeze` renews the states that it says are `kept`, while they are measured; 0 for none.
    renewed_every: int

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the state of a parameter."""

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        """Let a fresh state be as if all steps before had had this gradient, in place: the parameter joins late."""

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
        def measured(state: Tensor, gradient: Tensor) -> Tensor:
            state = state.clone() if ops is FUNCTIONAL else state
            if not _of_matrix(state):
                return self._diagonal.measure(state, gradient.flatten(), rate, IN_PLACE)
            rows = _in_blocks(gradient.to(state.dtype), state.shape[-1])
            covariance = rows.mT @ rows / rows.shape[-2]
            state[0].add_((covariance - state[0]) * rate)
            return state

        return ops.map(measured, state, gradient)

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
        def applied(x: Tensor, frozen: Tensor) -> Tensor:
            if not _of_matrix(frozen):
                return x * frozen.view(x.shape)
            blocks = _in_blocks(x, frozen.shape[-1]) @ frozen[1].to(x.dtype)
            return blocks.transpose(-3, -2).flatten(-2)[:, : matrix_sides(x.shape)[1]].reshape(x.shape)

        return ops.map(applied, x, frozen)


MASSES: dict[str, Mass] = {"diagonal": DiagonalMass(), "matrix": MatrixMass()}


def _of_matrix(state: Tensor) -> bool:
    """Whether a state of `MatrixMass` is that of a matrix."""
    return state.dim() == 4


def _in_blocks(x: Tensor, width: int) -> Tensor:
    """A tensor as a matrix in blocks of columns, (blocks, rows, width)."""
    return matrices.in_blocks(x.reshape(matrix_sides(x.shape)), width)


def _eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of R̂ + 10⁻⁶·‖R̂‖, in single precision at least."""
    # What is not finite stays so in the mass (`AdaptedSGHMC`), and must not stop the decomposition of others.
    finite = covariance.to(torch.promote_types(covariance.dtype, torch.float32)).nan_to_num(0.0, 0.0, 0.0)
    ridge = _RIDGE * torch.linalg.matrix_norm(finite, keepdim=True)
    # The ridge first: with inputs that are always zero the decomposition may not converge in single precision.
    ridged = finite + ridge * torch.eye(finite.shape[-1], dtype=finite.dtype, device=finite.device)
    try:
        values, vectors = torch.linalg.eigh(ridged)
    except torch.linalg.LinAlgError:
        values, vectors = (x.to(finite) for x in torch.linalg.eigh(ridged.double()))
    return torch.maximum(values, ridge[..., 0]), vectors
