"""Bayesian deep learning as a one-line change: samplers with the interface of ``torch.optim``."""

import sys as _sys

from learned_samplers.approximations.ivon import IVON
from learned_samplers.approximations.laplace import laplace_samples
from learned_samplers.approximations.swag import SWAG
from learned_samplers.base.sampler import Sampler
from learned_samplers.checks.check import SamplerReport, check_sampler
from learned_samplers.checks.step_size import StepSizeReport, suggest_lr
from learned_samplers.classical.adapted import ScaleAdaptedSGHMC
from learned_samplers.classical.baoa import BAOA
from learned_samplers.classical.cyclical import CyclicalSchedule, CyclicalSGMCMC
from learned_samplers.classical.entropy_mcmc import EntropyMCMC
from learned_samplers.classical.hmc import HMC
from learned_samplers.classical.mclmc import MCLMC
from learned_samplers.classical.psgld import PSGLD
from learned_samplers.classical.sghmc import SGHMC
from learned_samplers.classical.sgld import SGLD
from learned_samplers.classical.sglrw import SGLRW
from learned_samplers.classical.sgnht import SGNHT
from learned_samplers.conventions import convert
from learned_samplers.learned.kinetic.optimizer import KineticL2E
from learned_samplers.learned.l2e.optimizer import L2E
from learned_samplers.learned.meta_sgmcmc.optimizer import MetaSGMCMC
from learned_samplers.learned.preconditioned.optimizer import PrecondL2E
from learned_samplers.learned.scale_adapted.optimizer import ScaleAdaptedL2E
from learned_samplers.particles import FSVGD, MGDA, MOOSVGD, MTSGD, SVGD, LinearScalarisation, ParetoMTL
from learned_samplers.posterior import PosteriorSamples, SampleCollection, to_arviz

#: The one place that says so: pyproject.toml reads it here, without importing the package.
__version__ = "0.2.0"

__all__ = [
    "BAOA",
    "FSVGD",
    "HMC",
    "IVON",
    "L2E",
    "MCLMC",
    "MGDA",
    "MOOSVGD",
    "MTSGD",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGLRW",
    "SGNHT",
    "SVGD",
    "SWAG",
    "CyclicalSGMCMC",
    "CyclicalSchedule",
    "EntropyMCMC",
    "KineticL2E",
    "LinearScalarisation",
    "MetaSGMCMC",
    "ParetoMTL",
    "PosteriorSamples",
    "PrecondL2E",
    "SampleCollection",
    "Sampler",
    "SamplerReport",
    "ScaleAdaptedL2E",
    "ScaleAdaptedSGHMC",
    "StepSizeReport",
    "check_sampler",
    "convert",
    "laplace_samples",
    "suggest_lr",
    "to_arviz",
]

if "higher" in _sys.modules:  # its user expects it to know the samplers; see `learned_samplers.differentiable`
    from learned_samplers import differentiable as _differentiable  # noqa: F401
