"""Particle samplers: Stein variational methods for one target and for several, with their baselines."""

from .kernels import IMQ, RBF, Linear
from .mgda import MGDA, LinearScalarisation
from .moo_svgd import MOOSVGD
from .pareto_mtl import ParetoMTL
from .simplex_qp import min_norm_weights
from .svgd import MTSGD, SVGD

__all__ = [
    "IMQ",
    "MGDA",
    "MOOSVGD",
    "MTSGD",
    "RBF",
    "SVGD",
    "Linear",
    "LinearScalarisation",
    "ParetoMTL",
    "min_norm_weights",
]
