"""The fifteen corruptions of CIFAR-10-C at five severities, made of any images: a re-creation.

From the definitions of Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations" (ICLR 2019), with their values for 32×32 pixels. Numbers on it stand beside those on the published files,
not in their place: the random numbers are others, frost is made up instead of photographed, glass blur swaps pixels
(the published code copies one of the two), enlargements are about the exact centre, and nothing but JPEG rounds to
256 values. Lengths of blurs are in pixels, so that small images suffer more; those of elastic_transform, zoom_blur and
pixelate are shares of an image's side.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.datasets import corruption_rules as rules

LARGEST_SEVERITY = 5
CHUNK = 500  # images corrupted at a time, each chunk with random numbers of its own


class Corruption(NamedTuple):
    """A corruption: its function, and its parameters at severities 1 to 5."""

    rule: Callable[..., np.ndarray]
    levels: tuple[tuple[Any, ...], ...]


def _of(rule: Callable[..., np.ndarray], *levels: Any) -> Corruption:
    return Corruption(rule, tuple(level if isinstance(level, tuple) else (level,) for level in levels))


#: By name, in the published order: noise, blur, weather, digital.
RECREATED: dict[str, Corruption] = {
    "gaussian_noise": _of(rules.gaussian_noise, 0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _of(rules.shot_noise, 500, 250, 100, 75, 50),
    "impulse_noise": _of(rules.impulse_noise, 0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": _of(rules.defocus_blur, (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": _of(rules.glass_blur, (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": _of(rules.motion_blur, (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": _of(rules.zoom_blur, 1.06, 1.11, 1.16, 1.21, 1.26),
    "snow": _of(
        rules.snow,
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": _of(rules.frost, (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": _of(rules.fog, (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _of(rules.brightness, 0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _of(rules.contrast, 0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": _of(
        rules.elastic_transform,
        *((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": _of(rules.pixelate, 0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _of(rules.jpeg_compression, 80, 65, 58, 50, 40),
}


def corrupt(images: Tensor, corruption: str, severity: int, *, seed: int = 0) -> Tensor:
    """Images under one corruption at one severity; the labels stay what they are.

    The same seed gives the same images, and the same random numbers at every severity.

    Args:
        images: floats (n, C, H, W) in [0, 1], with one channel or three, of at least 4×4 pixels.
        corruption: one of `RECREATED`.
        severity: 1 to 5.

    Returns:
        As ``images``, in their dtype, on their device.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name and value.
    """
    validation.one_of("corruption", corruption, RECREATED)
    validation.whole("severity", severity)
    validation.whole("seed", seed, least=0)
    if severity > LARGEST_SEVERITY:
        raise ValueError(f"severity must be at most {LARGEST_SEVERITY}, got {severity}")
    if not images.is_floating_point():
        raise TypeError(f"images must be floats, got {images.dtype}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 4:
        raise ValueError(
            f"images must be (n, C, H, W) with one channel or three and at least 4×4 pixels, got {tuple(images.shape)}"
        )
    if len(images) and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ValueError(f"images must lie in [0, 1], got {float(images.min()):g} to {float(images.max()):g}")
    rule, levels = RECREATED[corruption]
    found = []
    for number, chunk in enumerate(images.split(CHUNK) if len(images) else ()):
        stream = np.random.default_rng([seed, zlib.crc32(corruption.encode()), number])
        changed = rule(chunk.cpu().double().numpy(), stream, *levels[severity - 1])
        found.append(torch.from_numpy(np.clip(changed, 0, 1)).to(images))
    return torch.cat(found) if found else images.clone()
