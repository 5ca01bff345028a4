"""Bayesian deep learning as a one-line change: samplers with the interface of ``torch.optim``."""

from . import differentiable as _differentiable  # noqa: F401  (registers the samplers with higher)
from .check import SamplerReport, check_sampler
from .conventions import convert
from .cyclical import CyclicalSchedule, CyclicalSGMCMC
from .hmc import HMC
from .kinetic_l2e import KineticL2E
from .l2e import L2E
from .meta_sgmcmc import MetaSGMCMC
from .particles import FSVGD, MGDA, MOOSVGD, MTSGD, SVGD, LinearScalarisation, ParetoMTL
from .posterior import PosteriorSamples, SampleCollection, to_arviz
from .precond_l2e import PrecondL2E
from .psgld import PSGLD
from .sampler import Sampler
from .sghmc import SGHMC
from .sgld import SGLD
from .sgnht import SGNHT

__all__ = [
    "FSVGD",
    "HMC",
    "L2E",
    "MGDA",
    "MOOSVGD",
    "MTSGD",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SVGD",
    "CyclicalSGMCMC",
    "CyclicalSchedule",
    "KineticL2E",
    "LinearScalarisation",
    "MetaSGMCMC",
    "ParetoMTL",
    "PosteriorSamples",
    "PrecondL2E",
    "SampleCollection",
    "Sampler",
    "SamplerReport",
    "check_sampler",
    "convert",
    "to_arviz",
]
