"""Particle samplers: Stein variational methods for one target and for several, with their baselines."""

from .fsvgd import FSVGD
from .kernels import IMQ, RBF, Linear
from .measurement import (
    FittedPrior,
    GaussianProcessPrior,
    classification_loss,
    measurement_set,
    network_draws,
    regression_loss,
    squared_exponential,
)
from .mgda import MGDA, LinearScalarisation
from .moo_svgd import MOOSVGD
from .pareto_mtl import ParetoMTL
from .prediction import particle_samples
from .simplex_qp import min_norm_weights
from .svgd import MTSGD, SVGD

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
