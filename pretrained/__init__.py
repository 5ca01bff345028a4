"""Weights of learned samplers that ship with the package.

    import pretrained

    pretrained.names()  # what there is
    pretrained.load("l2e")  # the network, an nn.Module
    pretrained.card("l2e")  # how it was trained, and what it reaches

A learned sampler takes them by name: ``L2E(params, num_data=N, network="l2e")``.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from learned_samplers.learned import weights
from learned_samplers.learned.cards import Card

__all__ = ["card", "load", "names", "path"]


def names() -> list[str]:
    """The names of the weights that ship with the package."""
    return weights.shipped_names()


def path(name: str) -> Path:
    """The weight file of that name; its card lies beside it.

    Raises:
        ValueError: no shipped weights have that name.
    """
    return weights.shipped_path(name)


def load(name: str) -> nn.Sequential:
    """The network of that name, in float32 on the CPU.

    Raises:
        ValueError: no shipped weights have that name, or the file is damaged.
    """
    return weights.load(path(name))[0]


def card(name: str) -> Card:
    """The card of that name: architecture, features, meta-training, curve, metrics, measured law, licence.

    A dict whose ``print`` is a summary of some lines.

    Raises:
        ValueError: no shipped weights have that name, or the card is damaged.
    """
    return Card(weights.load_card(path(name)))
