"""Meta-objectives on validation data: `BMALoss`, of the model average, and `CELoss`, of the single states."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta_tasks.objectives.base import Objective

__all__ = ["BMALoss", "CELoss"]


class BMALoss(Objective):
    """Negative log-likelihood of the Bayesian model average, in nats (Eq. 7 of the L2E paper), mean over points v:

        L = −(1/V) Σ_v log (1/K) Σ_k p(y_v | x_v, θ_k)

    Summed in logarithms, so that a probability that underflows in single precision still has a finite loss.
    """

    name = "bma"

    def add(self, log_probabilities: Tensor, y: Tensor) -> None:
        new = log_probabilities
        self.total = new if self.total is None else torch.logaddexp(self.total, new)
        self.count, self._y = self.count + 1, y

    def log_probabilities(self) -> Tensor:
        """log of the model average (P, V, classes) of the states so far."""
        return self._collected() - math.log(self.count)

    def loss(self) -> Tensor:
        return -self.log_probabilities().gather(-1, self._y.unsqueeze(-1)).mean((1, 2))

    def accuracy(self) -> Tensor:
        """Share of the validation points (P,) whose most probable class under the model average is the true one."""
        return (self._collected().argmax(-1) == self._y).double().mean(-1)

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "y": self._y if self.count else None}

    def load_state_dict(self, state: dict[str, object]) -> None:
        super().load_state_dict(state)
        self._y = state["y"]  # type: ignore[assignment]


class CELoss(Objective):
    """Cross-entropy of the single states, in nats (the L2E paper's ablation), mean over states and points:

    L = −(1/VK) Σ_v Σ_k log p(y_v | x_v, θ_k)
    """

    name = "ce"

    def add(self, log_probabilities: Tensor, y: Tensor) -> None:
        true = log_probabilities.gather(-1, y.unsqueeze(-1)).squeeze(-1).mean(-1)
        self.total = true if self.total is None else self.total + true
        self.count += 1

    def loss(self) -> Tensor:
        return -self._collected() / self.count
