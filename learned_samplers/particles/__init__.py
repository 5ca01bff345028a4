"""Particle samplers: Stein variational methods for one target and for several, with their baselines."""

from learned_samplers.particles.baselines import MGDA, LinearScalarisation, ParetoMTL
from learned_samplers.particles.fsvgd import FSVGD
from learned_samplers.particles.function_space import (
    FittedPrior,
    GaussianProcessPrior,
    classification_loss,
    measurement_set,
    network_draws,
    regression_loss,
    squared_exponential,
)
from learned_samplers.particles.kernels import IMQ, RBF, Linear
from learned_samplers.particles.moo_svgd import MOOSVGD
from learned_samplers.particles.prediction import particle_samples
from learned_samplers.particles.svgd import MTSGD, SVGD
from learned_samplers.particles.target_weights import min_norm_weights

__all__ = [
    "FSVGD",
    "IMQ",
    "MGDA",
    "MOOSVGD",
    "MTSGD",
    "RBF",
    "SVGD",
    "FittedPrior",
    "GaussianProcessPrior",
    "Linear",
    "LinearScalarisation",
    "ParetoMTL",
    "classification_loss",
    "measurement_set",
    "min_norm_weights",
    "network_draws",
    "particle_samples",
    "regression_loss",
    "squared_exponential",
]
