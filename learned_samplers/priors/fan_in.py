"""A prior as wide as networks are initialised: a precision that grows with the number of inputs of a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.base.layers import layers_of
from learned_samplers.base.prior import Prior

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class FanIn(Prior):
    """N(0, gain²/fan_in) for the weights of matrices and convolutions, N(0, 1/bias) for all others.

        SGHMC(model.parameters(), lr=0.05, num_data=N, prior_precision=FanIn(gain=2.0))

    Under it the outputs of a unit have a variance that does not depend on the width before it (Neal, Bayesian Learning
    for Neural Networks, 1996). fan_in is the number of inputs that an output adds up:

    - of a linear layer, ``in_features``; of a convolution, ``in_channels/groups`` · ∏ kernel;
    - of an embedding, 1: an output is one entry of the table, whatever its size;
    - of a transposed convolution, ``in_channels/groups`` · ∏ kernel/stride, on average over the outputs, 1 at least.

    The layer is the module that holds the parameter. A weight that two layers share has the larger of their numbers,
    and a tensor of two or more axes that is in no layer is taken for a linear one's or a convolution's.

    Args:
        gain: g > 0; λ = fan_in/g².
        bias: λ of vectors (biases, norms), at least 0.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
    """

    def __init__(self, gain: float = 1.0, bias: float = 1.0):
        validation.positive("gain", gain)
        validation.non_negative("bias", bias)
        self.gain, self.bias = float(gain), float(bias)

    def precision(self, name: str | None, p: Tensor) -> float:
        return self.of_parameters([(name, p)])[0]

    def of_parameters(self, entries: Sequence[tuple[str | None, Tensor]]) -> list[float]:
        matrices = [p for _, p in entries if p.dim() > 1 and len(p)]
        layers = layers_of(matrices)
        fans = {id(p): max((fan_in(p, layer) for layer in layers[id(p)]), default=_columns(p)) for p in matrices}
        return [fans[id(p)] / self.gain**2 if id(p) in fans else self.bias for _, p in entries]

    def scaled(self, factor: float) -> FanIn:
        return FanIn(self.gain / factor**0.5, self.bias * factor)

    def __repr__(self) -> str:
        return f"FanIn(gain={self.gain:g}, bias={self.bias:g})"


def fan_in(weight: Tensor, layer: nn.Module) -> float:
    """Number of inputs that an output of this layer adds up; ``weight`` has two axes or more."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return 1.0
    if isinstance(layer, _TRANSPOSED):
        overlap = math.prod(layer.kernel_size) / math.prod(layer.stride)
        return max(1.0, layer.in_channels / layer.groups * overlap)
    return _columns(weight)


def _columns(weight: Tensor) -> float:
    return float(weight[0].numel())
