"""Diagnostics: convergence of chains, how far apart their samples are, and the local learning coefficient."""

from learned_samplers.diagnostics.convergence import (
    MINIMUM_DRAWS,
    chainwise_rhat,
    converged_share,
    ess,
    ess_per_second,
    split_rhat,
)
from learned_samplers.diagnostics.landscape import (
    LossLines,
    cosine_similarity,
    loss_lines,
)
from learned_samplers.diagnostics.learning_coefficient import LearningCoefficient, local_learning_coefficient
from learned_samplers.diagnostics.network_loss import network_loss
from learned_samplers.diagnostics.pairs import Exploration, exploration

__all__ = [
    "MINIMUM_DRAWS",
    "Exploration",
    "LearningCoefficient",
    "LossLines",
    "chainwise_rhat",
    "converged_share",
    "cosine_similarity",
    "ess",
    "ess_per_second",
    "exploration",
    "local_learning_coefficient",
    "loss_lines",
    "network_loss",
    "split_rhat",
]
