"""Collecting, keeping and predicting with posterior samples."""

from learned_samplers.posterior.arviz_export import to_arviz
from learned_samplers.posterior.collecting import PosteriorSamples
from learned_samplers.posterior.collection import SampleCollection

__all__ = ["PosteriorSamples", "SampleCollection", "to_arviz"]
