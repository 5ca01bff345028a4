"""Priors for ``prior_precision=``: by fan-in, or with a precision of each tensor that is sampled with the weights.

A number is one precision for all weights; a dict by name of the parameter, ``{"*.weight": 0.3, "*.bias": 1.0}``, one
for each layer. The objects here are the rest.
"""

from learned_samplers.base.prior import ByName, Prior
from learned_samplers.priors.fan_in import FanIn
from learned_samplers.priors.gamma import GammaHyperprior
from learned_samplers.priors.relevance import Relevance

__all__ = ["ByName", "FanIn", "GammaHyperprior", "Prior", "Relevance"]
