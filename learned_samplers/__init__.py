"""Bayesian deep learning as a one-line change: samplers with the interface of ``torch.optim``."""

import sys as _sys

from learned_samplers.base.sampler import Sampler
from learned_samplers.checks import check_sampler, suggest_lr
from learned_samplers.classical.adapted import AdaptedSGHMC
from learned_samplers.classical.baoa import BAOA
from learned_samplers.classical.cyclical import CyclicalSchedule, CyclicalSGMCMC
from learned_samplers.classical.entropy_mcmc import EntropyMCMC
from learned_samplers.classical.hmc import HMC
from learned_samplers.classical.mclmc import MCLMC
from learned_samplers.classical.psgld import PSGLD
from learned_samplers.classical.restarts import Restarts
from learned_samplers.classical.sghmc import SGHMC
from learned_samplers.classical.sgld import SGLD
from learned_samplers.classical.sglrw import SGLRW
from learned_samplers.classical.sgnht import SGNHT
from learned_samplers.classical.whitened import WhitenedSGHMC
from learned_samplers.learned import preconditioned as _preconditioned  # noqa: F401 (weights find it by its name)
from learned_samplers.learned.kinetic import KineticL2E
from learned_samplers.learned.l2e import L2E
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMC
from learned_samplers.particles import FSVGD, MOOSVGD, MTSGD, SVGD
from learned_samplers.posterior import Chains, PosteriorSamples, SampleCollection

#: The one place that says so: pyproject.toml reads it here, without importing the package.
__version__ = "1.0.0.dev0"

__all__ = [
    "BAOA",
    "FSVGD",
    "HMC",
    "L2E",
    "MCLMC",
    "MOOSVGD",
    "MTSGD",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGLRW",
    "SGNHT",
    "SVGD",
    "AdaptedSGHMC",
    "Chains",
    "CyclicalSGMCMC",
    "CyclicalSchedule",
    "EntropyMCMC",
    "KineticL2E",
    "MetaSGMCMC",
    "PosteriorSamples",
    "Restarts",
    "SampleCollection",
    "Sampler",
    "WhitenedSGHMC",
    "check_sampler",
    "suggest_lr",
]

if "higher" in _sys.modules:  # its user expects it to know the samplers; see `learned_samplers.differentiable`
    from learned_samplers import differentiable as _differentiable  # noqa: F401
