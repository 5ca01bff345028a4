"""Gaussian approximations of the posterior: baselines, whose draws predict as posterior samples do."""

from learned_samplers.approximations.ivon import IVON
from learned_samplers.approximations.laplace import laplace_samples
from learned_samplers.approximations.swag import SWAG

__all__ = ["IVON", "SWAG", "laplace_samples"]
