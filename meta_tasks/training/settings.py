"""Settings of the outer loop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from learned_samplers.base import validation
from meta_tasks.objectives import objective_named

__all__ = ["TrainerSettings"]


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of the outer loop; the defaults are the paper's where it states them.

    Args:
        iterations: outer iterations in all.
        learning_rate, beta1, beta2: of Adam on the meta-parameters.
        averaging: d of the running average of the meta-parameters, φ̄ ← d·φ̄ + (1−d)·φ after each iteration, which is
            what is evaluated and written out: it takes away most of the noise that the steps leave in φ. 0: φ itself.
        max_gradient_norm: the meta-gradient is scaled down to this Euclidean norm; None leaves it.
        seed: of everything.
        objective: "bma", "ce", or "stein_kl" for truncated back-propagation.
        checkpoint_minutes: minutes between checkpoints (0: after every iteration).
        keep_checkpoints: how many to keep.
        evaluate_every: iterations between evaluations on held-out tasks; 0 for none.
        patience: evaluations in a row without a lower held-out NLL after which the run ends; the result is then the
            running average that had the lowest. 0: no such end, and the result is the last one.
        figures_every: iterations between figures of the network in the log; 0 for none.

    Raises:
        ValueError: a value is out of range, or an unknown objective.
    """

    iterations: int = 1000
    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    averaging: float = 0.98
    max_gradient_norm: float | None = 1.0
    seed: int = 0
    objective: str = "bma"
    checkpoint_minutes: float = 5.0
    keep_checkpoints: int = 3
    evaluate_every: int = 50
    figures_every: int = 25
    patience: int = 0

    def __post_init__(self) -> None:
        objective_named(self.objective)
        validation.integer("iterations", self.iterations)
        validation.positive("learning_rate", self.learning_rate)
        if self.max_gradient_norm is not None:
            validation.positive("max_gradient_norm", self.max_gradient_norm)
        validation.fraction("averaging", self.averaging, open_right=True)
        validation.non_negative("checkpoint_minutes", self.checkpoint_minutes)
        for name in ("beta1", "beta2"):
            validation.fraction(name, getattr(self, name), open_right=True)
        for name in ("evaluate_every", "figures_every", "patience", "seed"):
            validation.integer(name, getattr(self, name), least=0)
        validation.integer("keep_checkpoints", self.keep_checkpoints)

    @property
    def outer_loop(self) -> dict[str, Any]:
        """The settings that change the result, which a resumed run must share (it may run longer)."""
        free = ("iterations", "checkpoint_minutes", "keep_checkpoints", "evaluate_every", "figures_every", "patience")
        return {key: value for key, value in asdict(self).items() if key not in free}
