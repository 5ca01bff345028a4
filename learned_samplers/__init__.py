"""Bayesian deep learning as a one-line change: samplers with the interface of ``torch.optim``."""

from . import differentiable as _differentiable  # noqa: F401  (registers the samplers with higher)
from .check import SamplerReport, check_sampler
from .conventions import convert
from .cyclical import CyclicalSchedule, CyclicalSGMCMC
from .hmc import HMC
from .posterior import PosteriorSamples, SampleCollection, to_arviz
from .psgld import PSGLD
from .sampler import Sampler
from .sghmc import SGHMC
from .sgld import SGLD
from .sgnht import SGNHT

__all__ = [
    "HMC",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "CyclicalSGMCMC",
    "CyclicalSchedule",
    "PosteriorSamples",
    "SampleCollection",
    "Sampler",
    "SamplerReport",
    "check_sampler",
    "convert",
    "to_arviz",
]
