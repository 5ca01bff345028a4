"""Updates that evaluate their network twice, before and after the momentum moves (L2E, Precond-L2E).

They run out of place on buffers of several tensors, differentiably, or in place on one tensor, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned.network import NetworkOnChain, Phi

# Coordinates of a tensor that are updated at a time in place: what is made for them takes some thirty times as much.
_PIECE_ON_CPU = 1 << 15
_PIECE_ON_GPU = 1 << 22


@dataclass(frozen=True)
class TwoPasses:
    """r ← kick(θ, r; network(θ, r)), then θ ← move(θ, r; network(θ, r)); both act coordinate by coordinate."""

    #: (phi, parameter, gradient, averages, segments; settings, lr, num_data, step, prior_precision, whitening,
    #: in_place) ↦ the network at the state, and the updated averages (and whitening).
    network: Callable[..., tuple[NetworkOnChain, tuple[Tensor, ...]]]
    #: (parameter, gradient, noise, momentum, *outputs; settings and the hyperparameters) ↦ the new momentum.
    kick: Callable[..., Tensor]
    #: (parameter, momentum, output; settings and the hyperparameters) ↦ the new parameter.
    move: Callable[..., Tensor]
    #: The network's output that the second pass takes.
    second: int

    def __call__(
        self,
        parameter: Tensor,
        gradient: Tensor,
        noise: Tensor | None,
        momentum: Tensor,
        averages: Tensor,
        whitening: Tensor | None = None,
        *,
        phi: Phi,
        segments: Segments,
        settings: Any,
        lr: Any,
        num_data: Any,
        step: Any,
        **hyper: Any,
    ) -> tuple[Tensor, ...]:
        """The new (parameter, momentum, averages), and whitening where the feature set has any; not in place.

        The buffers are flat, with any leading axes.
        """
        at = dict(settings=settings, lr=lr, num_data=num_data, step=step)
        known = dict(whitening=whitening, prior_precision=hyper["prior_precision"])
        network, kept = self.network(phi, parameter, gradient, averages, segments, **known, **at)
        momentum = self.kick(parameter, gradient, noise, momentum, *network(momentum), **at, **hyper)
        (output,) = network(momentum, heads=(self.second,))
        return self.move(parameter, momentum, output, **at, **hyper), momentum, *kept

    def step_(
        self,
        parameter: Tensor,
        gradient: Tensor,
        noise: Tensor | None,
        momentum: Tensor,
        averages: Tensor,
        whitening: Tensor | None = None,
        *,
        phi: Phi,
        settings: Any,
        lr: Any,
        num_data: Any,
        step: Any,
        segments: Segments | None = None,
        **hyper: Any,
    ) -> None:
        """The same for one tensor (d,), in place: besides the state it needs memory for a piece of it only.

        ``segments``: where its statistics come from, if not from these values alone.
        """
        at = dict(settings=settings, lr=lr, num_data=num_data, step=step)
        segments = segments or Segments((len(parameter),))
        known = dict(whitening=whitening, prior_precision=hyper["prior_precision"], in_place=True)
        network, _ = self.network(phi, parameter, gradient, averages, segments, **at, **known)
        size = _PIECE_ON_CPU if parameter.device.type == "cpu" else _PIECE_ON_GPU
        for part, outputs in network.in_pieces(momentum, size):
            drawn = None if noise is None else noise[part]
            momentum[part] = self.kick(parameter[part], gradient[part], drawn, momentum[part], *outputs, **at, **hyper)
        for part, outputs in network.in_pieces(momentum, size, heads=(self.second,)):
            parameter[part] = self.move(parameter[part], momentum[part], *outputs, **at, **hyper)
