"""Is a sampler's stationary distribution right, and how large may its step be?"""

from learned_samplers.checks.check import CurvatureResult, SamplerReport, check_sampler
from learned_samplers.checks.step_size import StepSizeReport, suggest_lr

__all__ = ["CurvatureResult", "SamplerReport", "StepSizeReport", "check_sampler", "suggest_lr"]
