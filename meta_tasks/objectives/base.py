"""`Objective`: the base class of all meta-objectives."""

from __future__ import annotations

from torch import Tensor

__all__ = ["Objective"]


class Objective:
    """A meta-loss of the states that a sampler collects: base class.

    `add` is called once for each collected state of all P members, `loss` whenever the loss so far is wanted. A
    subclass has a ``name`` and both methods; what it accumulates lies in `total` and `count`, which checkpoints keep.
    """

    name: str
    #: Whether it takes states and the energy's gradient there (`SteinKL`) instead of log-probabilities.
    reads_states = False

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | None = None

    def add(self, log_probabilities: Tensor, y: Tensor) -> None:
        """Account for one state of each member.

        Args:
            log_probabilities: log p(·|x, θ) on the validation images, (P, V, classes).
            y: labels (P, V).
        """
        raise NotImplementedError

    def loss(self) -> Tensor:
        """The meta-loss of each member (P,), in nats.

        Raises:
            ValueError: no state was added.
        """
        raise NotImplementedError

    def _collected(self) -> Tensor:
        if self.total is None:
            raise ValueError("the meta-objective has no collected state; the schedule collected none so far")
        return self.total

    def state_dict(self) -> dict[str, object]:
        """Accumulated values, for checkpoints."""
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from what `state_dict` gave."""
        self.count, self.total = state["count"], state["total"]  # type: ignore[assignment]
