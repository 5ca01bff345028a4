"""The mass of `AdaptedSGHMC`: measured on gradients, then frozen, it is a change of coordinates that keeps the law."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from learned_samplers.base.operations import Operations


class Mass(Protocol):
    """A change of coordinates θ = S·φ: measured on gradients, then frozen. Its state is one tensor a parameter."""

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the state of a parameter."""

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        """Let a fresh state be as if all steps before had had this gradient, in place: the parameter joins late."""

    def measure(self, state: Any, gradient: Any, rate: Any, ops: Operations) -> Any:
        """The state after another gradient of the mean loss, whose weight is ``rate``."""

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any) -> Any:
        """S, of the state's shape, new tensors."""

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        """S·x; may overwrite x."""


class DiagonalMass:
    """S = √G, one number a coordinate, G = a/(√v̂ + floor), with v̂ the running average of g²."""

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(shape)

    def begin(self, state: Tensor, gradient: Tensor) -> None:
        # The mean over the tensor: of few gradients v̂ would let single weights fly away.
        state.add_(gradient.square().mean())

    def measure(self, state: Any, gradient: Any, rate: Any, ops: Operations) -> Any:
        return ops.add_product(ops.scale(state, 1 - rate), gradient, gradient, rate)

    def freeze(self, state: Any, ops: Operations, *, momentum_decay: Any, floor: Any) -> Any:
        return ops.map(lambda scale: (momentum_decay / (scale + floor)) ** 0.5, ops.sqrt(state))

    def apply(self, x: Any, frozen: Any, ops: Operations) -> Any:
        return ops.multiply(x, frozen)


MASSES: dict[str, Mass] = {"diagonal": DiagonalMass()}
