"""Weights of learned samplers that ship with the package.

>>> import pretrained
>>> pretrained.names()          # what there is
>>> pretrained.load("l2e")      # the network, an nn.Module
>>> pretrained.card("l2e")      # how it was trained, and what it reaches
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from learned_samplers.learned import weights

__all__ = ["card", "load", "names", "path"]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of the shipped weights."""
    return sorted(file.stem for file in _FOLDER.glob("*.safetensors"))


def path(name: str) -> Path:
    """The weight file of that name; its card lies beside it.

    Raises:
        ValueError: no shipped weights have that name.
    """
    if name not in names():
        raise ValueError(f"no shipped weights are named {name!r}; there are {', '.join(names()) or 'none'}")
    return _FOLDER / f"{name}.safetensors"


def load(name: str) -> nn.Sequential:
    """The network of that name, in float32 on the CPU.

    Raises:
        ValueError: no shipped weights have that name, or the file is damaged.
    """
    return weights.load(path(name))[0]


def card(name: str) -> dict[str, Any]:
    """The card of that name: architecture, features, meta-training, curve, metrics, licence.

    Raises:
        ValueError: no shipped weights have that name, or the card is damaged.
    """
    return weights.load_card(path(name))
