"""Collecting, keeping and predicting with posterior samples."""

from learned_samplers.posterior.arviz_export import to_arviz
from learned_samplers.posterior.chains import Chains
from learned_samplers.posterior.collect import PosteriorSamples
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.normalisation import OwnBuffers
from learned_samplers.posterior.spread import Uncertainty

__all__ = ["Chains", "OwnBuffers", "PosteriorSamples", "SampleCollection", "Uncertainty", "to_arviz"]
