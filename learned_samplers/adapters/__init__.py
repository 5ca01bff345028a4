"""Posteriors of adapters (LoRA and others of ``peft``): predictions, generation, and folders that ``peft`` reads."""

from learned_samplers.adapters.collection import AdapterSamples
from learned_samplers.adapters.generation import Generated
from learned_samplers.adapters.language import TextScores

__all__ = ["AdapterSamples", "Generated", "TextScores"]
