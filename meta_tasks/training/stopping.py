"""`EarlyStopping`: which weights of a meta-training are its result, and when it has none better to hope for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Keeps the weights with the lowest held-out NLL, and says when they were the last for too long.

    Args:
        patience: evaluations in a row without a lower NLL after which the training ends; 0 for never, and then nothing
            is kept.

    Attributes:
        weights: with the lowest held-out NLL so far; None before the first evaluation, or with patience 0.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.weights: Tensor | None = None

    def look(self, scores: Mapping[str, Any], weights: Tensor) -> None:
        """Take the weights that the last of the scores is of, if none before it is as low.

        Args:
            scores: see `HeldOutEvaluation.record`.
            weights: copied.
        """
        if self.patience and best_of(scores.get("sampler", ())) == len(scores["sampler"]) - 1:
            self.weights = weights.detach().clone()

    def over(self, scores: Mapping[str, Any]) -> bool:
        """Whether ``patience`` evaluations have passed since the best one."""
        each = scores.get("sampler", ())
        return bool(self.patience and each) and len(each) - 1 - best_of(each) >= self.patience

    def card(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """For the weight card, which of the iterations the weights are of; nothing with patience 0."""
        if self.weights is None:
            return {}
        return {"patience": self.patience, "best_iteration": scores["sampler"][best_of(scores["sampler"])]["iteration"]}


def best_of(scores: Sequence[Mapping[str, Any]]) -> int:
    """Place of the first of the lowest NLLs; 0 if there is none."""
    return min(range(len(scores)), key=lambda place: scores[place]["nll"], default=0)
