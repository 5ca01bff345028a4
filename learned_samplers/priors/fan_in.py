"""A prior as wide as networks are initialised: a precision that grows with the number of inputs of a unit."""

from __future__ import annotations

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.prior import Prior


class FanIn(Prior):
    """N(0, gain²/fan_in) for the weights of matrices and convolutions, N(0, 1/bias) for all others.

        SGHMC(model.parameters(), lr=0.05, num_data=N, prior_precision=FanIn(gain=2.0))

    Under it the outputs of a unit have a variance that does not depend on the width before it (Neal, Bayesian Learning
    for Neural Networks, 1996).

    Args:
        gain: g > 0; λ = fan_in/g², with fan_in the number of inputs of a unit.
        bias: λ of vectors (biases, norms), at least 0.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
    """

    def __init__(self, gain: float = 1.0, bias: float = 1.0):
        validation.positive("gain", gain)
        validation.non_negative("bias", bias)
        self.gain, self.bias = float(gain), float(bias)

    def precision(self, name: str | None, p: Tensor) -> float:
        return p[0].numel() / self.gain**2 if p.dim() > 1 and len(p) else self.bias

    def scaled(self, factor: float) -> FanIn:
        return FanIn(self.gain / factor**0.5, self.bias * factor)

    def __repr__(self) -> str:
        return f"FanIn(gain={self.gain:g}, bias={self.bias:g})"
