"""`EarlyStopping`: which weights of a meta-training are its result, and when it has none better to hope for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Keeps the weights with the lowest held-out NLL, and says when they were the last for too long.

    They are kept whatever the patience, which a resumed run may change.

    Args:
        patience: evaluations in a row without a lower NLL after which the training ends; 0 for never.

    Attributes:
        weights: with the lowest held-out NLL so far; None before the first evaluation.
        score: theirs, see `HeldOutEvaluation.record`.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.weights: Tensor | None = None
        self.score: Mapping[str, Any] | None = None

    @property
    def result(self) -> Tensor | None:
        """The weights that a training with this patience has to show; None for its last ones."""
        return self.weights if self.patience else None

    def look(self, scores: Mapping[str, Any], weights: Tensor) -> None:
        """Take the weights that the last of the scores is of, if its NLL is lower than that of those kept.

        Args:
            scores: see `HeldOutEvaluation.record`. Where the score of the weights kept is none of them, it is of other
                held-out tasks, and the last ones are taken whatever it was.
            weights: copied.
        """
        last = scores["sampler"][-1]
        if self.score is None or self.score not in scores["sampler"] or last["nll"] < self.score["nll"]:
            self.score, self.weights = last, weights.detach().clone()

    def over(self, scores: Mapping[str, Any]) -> bool:
        """Whether ``patience`` evaluations have passed since that of the weights kept, on the same held-out tasks."""
        own = scores.get("sampler", [])
        if not self.patience or self.score is None or self.score not in own:
            return False
        return sum(each["iteration"] > self.score["iteration"] for each in own) >= self.patience

    def card(self) -> dict[str, Any]:
        """For the weight card, which of the iterations the weights are of; nothing with patience 0."""
        if not self.patience or self.score is None:
            return {}
        return {"patience": self.patience, "best_iteration": self.score["iteration"]}

    def state_dict(self) -> dict[str, Any]:
        """The weights and their score, for checkpoints."""
        return {"weights": self.weights, "score": self.score}

    def load_state_dict(self, saved: Mapping[str, Any] | Tensor | None, scores: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, or from the weights alone, which checkpoints of before have.

        Those had them with patience alone, or None: what was best before is lost then, and others count from now on.
        """
        if isinstance(saved, Mapping):
            self.weights, self.score = saved["weights"], saved["score"]
        elif saved is not None:
            self.weights, self.score = saved, min(scores["sampler"], key=lambda each: each["nll"])
