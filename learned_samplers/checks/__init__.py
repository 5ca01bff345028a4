"""Is a sampler's stationary distribution right, and how large may its step be?"""

from learned_samplers.checks.check import CurvatureResult, SamplerReport, check_sampler
from learned_samplers.checks.held_out import HeldOutReport, suggest_prior, suggest_temperature
from learned_samplers.checks.law import Law, LawReport
from learned_samplers.checks.step_size import StepSizeReport, suggest_lr
from learned_samplers.checks.targets import Kernel, Target

__all__ = [
    "CurvatureResult",
    "HeldOutReport",
    "Kernel",
    "Law",
    "LawReport",
    "SamplerReport",
    "StepSizeReport",
    "Target",
    "check_sampler",
    "suggest_lr",
    "suggest_prior",
    "suggest_temperature",
]
