"""The mass of `AdaptedSGHMC`: measured on gradients, then frozen; any frozen one keeps the law."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import matrices, sharding
from learned_samplers.base.guards.side_by_side import is_stacked
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, Operations
from learned_samplers.base.segments import matrix_sides

#: Gradients that the exploration counts as when settling begins: at its end they may be nearly zero.
REMEMBERED = 20
# Added to a covariance, times its Frobenius norm, so that a direction without gradients has a finite step.
_RIDGE = 1e-6


def weight_of_gradient(step: Any, decay: float, settled: Any = None) -> Any:
    """Weight of the gradient of step t in a mass: Adam's (1−β)/(1−βᵗ), or 1/(s+20) where that is more.

    Args:
        step: t, from 1: an integer, or in double precision a tensor, for 1 − βᵗ is a small difference.
        decay: β.
        settled: s, the number of gradients since settling began; None while another optimizer explores, or none did.
    """
    weight = (1 - decay) / (1 - decay**step)
    if settled is None:
        return weight
    weight_while_settling = 1 / (settled + REMEMBERED)
    larger = torch.maximum if isinstance(weight_while_settling, Tensor) else max
    return larger(weight, weight_while_settling)


class DiagonalMass:
    """A preconditioner S that is measured on gradients and then frozen: the chain moves φ of θ = S·φ.

    Here S = √G, one number a coordinate, G = a/(√v̂ + floor), with v̂ the running average of g². The state is one tensor
    a parameter.
    """

    #: Steps after which `freeze` renews the states that hold S (`holds_root`) while they are measured; 0 for none.
    renewed_every = 0

    def refuse(self, tensors: list[Tensor]) -> None:
        """Raise TypeError if it cannot be the mass of one of these parameters."""

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the state of a parameter."""
        return tuple(shape)

    def is_possible(self, state: Tensor) -> bool:
        """Tell whether a saved state is one that measuring or freezing can have given: no square is negative."""
        return not bool((state < 0).any())

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        """Bring a fresh state in place to where it were if all steps before had had this gradient.

        For a parameter that joins later.
        """
        # The mean over the tensor: of few gradients v̂ would let single weights fly away.
        state.add_(gradient.square().mean())

    def measure(self, state: Any, gradient: Any, weight: Any, ops: Operations) -> Any:
        """Return the state after another gradient of the mean loss, whose share is ``weight``."""
        return ops.add_product(ops.scale(state, 1 - weight), gradient, gradient, weight)

    def holds_root(self, state: Tensor) -> bool:
        """Tell whether a state holds S beside what is measured, because S is too dear to make in each step."""
        return False

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any, renew: bool = True) -> Any:
        """Make of a measured state what `apply` takes: new tensors of the state's shape.

        Without ``renew`` a state that holds S is left as it is.
        """
        return ops.map(lambda scale: (momentum_decay / (scale + floor)) ** 0.5, ops.sqrt(state))

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        """S·x; may overwrite x."""
        return ops.multiply(x, frozen)


class MatrixMass(DiagonalMass):
    """A matrix G on the inputs' side of each matrix of weights, G = a·((R̂ + 10⁻⁶·‖R̂‖)^½ + floor)⁻¹, S·x = x·√G.

    R̂ is the running average of GᵀG/rows over the gradients G, a row an output: the diagonal mass with v̂ replaced by
    the covariance that the gradients of an output have. It is in blocks of columns, as that of the whitened direction
    (`matrices.state_shape`); what has none there (vectors, biases, a matrix of very many columns beside its rows) has
    the diagonal mass.

    State of a matrix: (2, blocks, width, width), R̂ and √G, which is renewed every ten steps while R̂ is measured; of
    other tensors: one axis, whatever they have, by which the two are told apart.
    """

    renewed_every = 10

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        blocks = matrices.state_shape(shape)
        return blocks if len(blocks) == 4 else (math.prod(shape),)

    def refuse(self, tensors: list[Tensor]) -> None:
        if any(map(sharding.is_sharded, tensors)):
            raise TypeError("a mass of 'matrix' cannot sample sharded parameters: take mass='diagonal'")
        if any(map(is_stacked, tensors)):
            raise TypeError(
                "AdaptedSGHMC cannot have mass='matrix' for chains that are stacked in one tensor, whose matrix it "
                "would share among them: take Chains(..., separate=True)"
            )

    def is_possible(self, state: Tensor) -> bool:
        squares = state.diagonal(dim1=-2, dim2=-1) if _of_matrix(state) else state
        return not bool((squares < 0).any())

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        if _of_matrix(state):
            state[0].diagonal(dim1=-2, dim2=-1).add_(gradient.square().mean())
        else:
            super().begin(state, gradient)

    def measure(self, state: Any, gradient: Any, weight: Any, ops: Operations) -> Any:
        if isinstance(state, Tensor):
            return self._measured([state.clone() if ops is FUNCTIONAL else state], [gradient], weight)[0]
        return self._measured(state, gradient, weight)

    def _measured(self, states: list[Tensor], gradients: list[Tensor], weight: Any) -> list[Tensor]:
        of_matrices, others = _places(states)
        rows = [gradients[i].reshape(matrix_sides(gradients[i].shape)).to(states[i].dtype) for i in of_matrices]
        for places, covariances in matrices.covariances_of([states[i] for i in of_matrices], rows):
            averages = [states[of_matrices[i]][0] for i in places]
            targets = FOREACH.scale(covariances, 1 / rows[places[0]].shape[0])
            FOREACH.add(averages, FOREACH.scale(torch._foreach_sub(targets, averages), weight))
        if others:
            flat = [gradients[i].flatten() for i in others]
            super().measure([states[i] for i in others], flat, weight, FOREACH)
        return states

    def holds_root(self, state: Tensor) -> bool:
        return _of_matrix(state)

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any, renew: bool = True) -> Any:
        freeze_diagonal = super().freeze

        def frozen(state: Tensor) -> Tensor:
            if not _of_matrix(state):
                return freeze_diagonal(state, FUNCTIONAL, momentum_decay=momentum_decay, floor=floor)
            if not renew:
                return state
            values, vectors = _eigen(state[0])
            roots = (momentum_decay / (values.sqrt() + floor)) ** 0.5
            return torch.stack([state[0], ((vectors * roots.unsqueeze(-2)) @ vectors.mT).to(state.dtype)])

        return ops.map(frozen, state)

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        return self._applied([x], [frozen])[0] if isinstance(x, Tensor) else self._applied(x, frozen)

    def _applied(self, x: list[Tensor], frozen: list[Tensor]) -> list[Tensor]:
        of_matrices, others = _places(frozen)
        products = list(x)
        shapes = [(x[i].shape, frozen[i].shape) for i in of_matrices]
        for positions in matrices.together([x[i] for i in of_matrices], shapes):
            places = [of_matrices[i] for i in positions]
            roots = [frozen[i][1].to(x[i].dtype) for i in places]
            sides = matrix_sides(x[places[0]].shape)
            if len(places) == 1:
                results = [_times(x[places[0]], roots[0], sides)]
            else:
                results = list(_times(torch.stack([x[i] for i in places]), torch.stack(roots), sides).unbind())
            for i, result in zip(places, results, strict=True):
                products[i] = result.reshape(x[i].shape)
        if others:
            factors = [frozen[i].view(x[i].shape) for i in others]
            for i, product in zip(others, torch._foreach_mul([x[i] for i in others], factors), strict=True):
                products[i] = product
        return products


MASSES: dict[str, DiagonalMass] = {"diagonal": DiagonalMass(), "matrix": MatrixMass()}


def freeze_(mass: DiagonalMass, states: list[Tensor], *, momentum_decay: Any, floor: Any) -> None:
    """Freeze states in place, or renew the S that they hold while they are measured."""
    for state in states:
        frozen = mass.freeze(state, FUNCTIONAL, momentum_decay=momentum_decay, floor=floor)
        # Not 0 where a gradient overflows, or the chain would stand still: what is not finite stays so.
        state.copy_(torch.where(state.isfinite(), frozen, state))


def _of_matrix(state: Tensor) -> bool:
    """Tell whether a state of `MatrixMass` is that of a matrix."""
    return state.dim() == 4


def _places(states: list[Tensor]) -> tuple[list[int], list[int]]:
    """Return the indices of the states of matrices, and those of the others."""
    of_matrices = [i for i, state in enumerate(states) if _of_matrix(state)]
    return of_matrices, [i for i, state in enumerate(states) if not _of_matrix(state)]


def _times(x: Tensor, root: Tensor, sides: tuple[int, int]) -> Tensor:
    """Tensors (..., *shape) as matrices (..., rows, columns) times roots (..., blocks, width, width)."""
    x = x.reshape(*root.shape[:-3], *sides)
    blocks = matrices.in_blocks(x, root.shape[-1]) @ root
    return blocks.transpose(-3, -2).flatten(-2)[..., : sides[1]]


def _eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of R̂ + 10⁻⁶·‖R̂‖, in single precision at least."""
    # What is not finite stays so in the mass (`freeze_`), and must not stop the decomposition of others.
    finite = covariance.to(torch.promote_types(covariance.dtype, torch.float32)).nan_to_num(0.0, 0.0, 0.0)
    # In units of a power of two, which is exact: squares of large entries would overflow.
    largest = finite.abs().amax((-2, -1), keepdim=True)
    unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    scaled = finite / unit
    ridge = _RIDGE * torch.linalg.matrix_norm(scaled, keepdim=True)
    # The ridge first: with inputs that are always zero the decomposition may not converge in single precision.
    ridged = scaled + ridge * torch.eye(scaled.shape[-1], dtype=scaled.dtype, device=scaled.device)
    values, vectors = matrices.eigen(ridged)
    return torch.maximum(values, ridge[..., 0]) * unit[..., 0], vectors
