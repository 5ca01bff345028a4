"""Which of the shipped weights ``network="default"`` means, where that depends on the number of data."""

from __future__ import annotations

#: Number of data from which the default weights of L2E have a learned gate (and a little mixed in), which is worth
#: nothing with few data; below it their direction is damped where the data are fitted.
GATED_FROM = 10_000


def l2e_weights(num_data: float, form: str | None = None) -> str:
    """The name of L2E's default weights for N = ``num_data``, in the residual form (None) or the paper's."""
    if form == "paper":
        return "l2e-paper"
    return "l2e-gated" if num_data >= GATED_FROM else "l2e-damped"
