"""The fifteen corruptions of CIFAR-10-C at five severities, made of any images: a re-creation.

From the definitions of Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations" (ICLR 2019), with their values for 32×32 pixels. Numbers on it stand beside those on the published files,
not in their place: the random numbers are others, frost is made up instead of photographed, glass blur swaps pixels
(the published code copies one of the two), enlargements are about the exact centre, and nothing but JPEG rounds to
256 values. Lengths of blurs are in pixels, so that small images suffer more; those of elastic_transform, zoom_blur and
pixelate are shares of an image's side.

A corruption is (images, stream, parameters…) → images: float64 arrays (n, C, H, W) in [0, 1] with one or three
channels, and random numbers of its own for every image. `corrupt` cuts off what lies outside [0, 1] afterwards.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from scipy.ndimage import correlate, gaussian_filter
from torch import Tensor
from torch.nn.functional import grid_sample

from learned_samplers.base import validation
from learned_samplers.base.optional import require

Images = np.ndarray

LUMA = np.array([0.299, 0.587, 0.114])[:, None, None]  # ITU-R BT.601


# --- noise --------------------------------------------------------------------------------------------------------


def gaussian_noise(x: Images, stream: Generator, scale: float) -> Images:
    """Normal noise of that standard deviation."""
    return x + scale * stream.standard_normal(x.shape)


def shot_noise(x: Images, stream: Generator, photons: float) -> Images:
    """Poisson counts, with so many photons in a white pixel."""
    return stream.poisson(x * photons) / photons


def impulse_noise(x: Images, stream: Generator, share: float) -> Images:
    """Salt and pepper: a share of the values becomes 0 or 1."""
    hit, white = stream.random(x.shape) < share, stream.random(x.shape) < 0.5
    return np.where(hit, white, x)


# --- blur ---------------------------------------------------------------------------------------------------------


def defocus_blur(x: Images, stream: Generator, radius: float, softness: float) -> Images:
    """The mean over a disk whose edge is softened by a 3×3 Gaussian."""
    side = np.arange(-2 - int(radius), 3 + int(radius))
    disk = (side[:, None] ** 2 + side**2 <= radius**2).astype(float)
    edge = np.exp(-0.5 * (np.arange(-1, 2) / softness) ** 2)
    edge /= edge.sum()
    kernel = correlate(disk / disk.sum(), np.outer(edge, edge), mode="constant")
    return correlate(x, kernel[None, None], mode="mirror")


def glass_blur(x: Images, stream: Generator, sigma: float, reach: int, rounds: int) -> Images:
    """Every pixel changes places with one up to ``reach`` pixels up and to the left, between two slight blurs."""
    x, which = blurred(x, sigma), np.arange(len(x))
    height, width = x.shape[2:]
    for _ in range(rounds):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = stream.integers(-reach, reach, (2, len(x)))
                pixel, partner = x[:, :, row, column].copy(), (which, slice(None), row + down, column + right)
                x[:, :, row, column], x[partner] = x[partner], pixel
    return blurred(x, sigma)


def blurred(x: Images, sigma: float) -> Images:
    """A Gaussian blur, of copies."""
    return gaussian_filter(x, (0, 0, sigma, sigma), mode="nearest")


def motion_blur(x: Images, stream: Generator, radius: int, sigma: float) -> Images:
    """A smear in a direction within 45° of the horizontal."""
    return smeared(x, radius, sigma, stream.uniform(-np.pi / 4, np.pi / 4, len(x)))


def smeared(x: Images, radius: int, sigma: float, angles: np.ndarray) -> Images:
    """Each pixel is a mean over those in one direction from it, with the weights of half a Gaussian, over 2·radius."""
    count, _, height, width = x.shape
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    last, which = x.transpose(0, 2, 3, 1), np.arange(count)[:, None, None]
    out = np.zeros_like(last)
    for distance, weight in enumerate(weights / weights.sum()):
        if weight > 1e-6:
            down, right = (np.rint(distance * part).astype(int)[:, None] for part in (np.sin(angles), np.cos(angles)))
            rows = np.clip(np.arange(height) + down, 0, height - 1)
            columns = np.clip(np.arange(width) + right, 0, width - 1)
            out += weight * last[which, rows[:, :, None], columns[:, None, :]]
    return out.transpose(0, 3, 1, 2)


def zoom_blur(x: Images, stream: Generator, largest: float) -> Images:
    """The mean of the image and of its enlargements by 1, 1.01, … up to that factor."""
    factors = np.arange(1, largest - 0.005, 0.01)
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def zoomed(x: Images, factor: float) -> Images:
    """The images enlarged about their centre, bilinear, at the same size."""
    rows, columns = (_enlargement(side, factor) for side in x.shape[2:])
    return rows @ x @ columns.T


def _enlargement(side: int, factor: float) -> np.ndarray:
    """The matrix of an enlargement along one axis."""
    centre = (side - 1) / 2
    places = centre + (np.arange(side) - centre) / factor
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(side)))


# --- weather ------------------------------------------------------------------------------------------------------


def snow(x: Images, stream: Generator, *settings: float) -> Images:
    """Flakes of thresholded, enlarged and smeared normal noise, and their half turn, on a whitened image."""
    mean, scale, zoom, threshold, radius, sigma, share = settings
    flakes = zoomed(stream.normal(mean, scale, (len(x), 1, *x.shape[2:])), zoom)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = smeared(flakes, int(radius), sigma, stream.uniform(-3 * np.pi / 4, -np.pi / 4, len(x)))
    grey = x if x.shape[1] == 1 else (x * LUMA).sum(1, keepdims=True)
    whitened = share * x + (1 - share) * np.maximum(x, 1.5 * grey + 0.5)
    return whitened + flakes + flakes[:, :, ::-1, ::-1]


def frost(x: Images, stream: Generator, kept: float, added: float) -> Images:
    """A weighted sum of the image and of `ice`; the published corruption has photographs of frozen panes there."""
    return kept * x + added * ice(stream, len(x), *x.shape[1:])


def ice(stream: Generator, count: int, channels: int, height: int, width: int) -> Images:
    """Made-up frost: bright ridges of a fractal landscape, bluish in colour, (count, channels, height, width)."""
    side = 1 << (max(height, width) - 1).bit_length()
    rough, smooth = (fractal(stream, count, side, decay)[:, None, :height, :width] for decay in (1.4, 2.0))
    ridges = (1 - np.abs(2 * rough - 1)) ** 3
    white = 0.25 + 0.45 * smooth + 0.6 * ridges
    tint = np.array([0.85, 0.95, 1.05])[:, None, None] if channels == 3 else 1.0
    return np.clip(white * tint, 0, 1)


def fog(x: Images, stream: Generator, strength: float, decay: float) -> Images:
    """A fractal cloud is added, and the sum scaled back to the image's largest value."""
    height, width = x.shape[2:]
    most = x.max((1, 2, 3), keepdims=True)
    cloud = fractal(stream, len(x), 1 << (max(height, width) - 1).bit_length(), decay)[:, None, :height, :width]
    return (x + strength * cloud) * most / (most + strength)


def fractal(stream: Generator, count: int, side: int, decay: float) -> np.ndarray:
    """Periodic fractal landscapes by midpoint displacement (diamond–square), (count, side, side) from 0 to 1.

    Args:
        side: a power of two.
        decay: each halving of the distance divides the displacements by its square.
    """
    land, step, amplitude = np.zeros((count, side, side)), side, 1.0

    def displaced(*four: np.ndarray) -> np.ndarray:
        return sum(four) / 4 + amplitude * stream.uniform(-1, 1, four[0].shape)

    while step > 1:
        half = step // 2
        corners = land[:, ::step, ::step]
        below = np.roll(corners, -1, 1)
        beside, across = np.roll(corners, -1, 2), np.roll(below, -1, 2)
        centres = displaced(corners, below, beside, across)
        land[:, half::step, half::step] = centres
        land[:, ::step, half::step] = displaced(corners, beside, centres, np.roll(centres, 1, 1))
        land[:, half::step, ::step] = displaced(corners, below, centres, np.roll(centres, 1, 2))
        step, amplitude = half, amplitude / decay**2
    land -= land.min((1, 2), keepdims=True)
    return land / np.maximum(land.max((1, 2), keepdims=True), np.finfo(float).tiny)


def brightness(x: Images, stream: Generator, added: float) -> Images:
    """A higher value (largest of the channels) at the same hue and saturation."""
    value = x.max(1, keepdims=True)
    brighter = np.clip(value + added, 0, 1)
    return np.where(value > 0, x * (brighter / np.where(value > 0, value, 1)), brighter)


# --- digital ------------------------------------------------------------------------------------------------------


def contrast(x: Images, stream: Generator, share: float) -> Images:
    """A share of the distance to each channel's mean over the image."""
    mean = x.mean((2, 3), keepdims=True)
    return mean + share * (x - mean)


def elastic_transform(x: Images, stream: Generator, strength: float, sigma: float, shift: float) -> Images:
    """A random affine map, and then a random smooth displacement; lengths are shares of the image's shorter side.

    Args:
        strength: of the displacement, before it is smoothed.
        sigma: of the smoothing.
        shift: how far each of three points moves at most under the affine map.
    """
    count, _, height, width = x.shape
    side = min(height, width)
    centre, reach = np.array([width // 2, height // 2]), side // 3
    old = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    new = old + stream.uniform(-shift * side, shift * side, (count, 3, 2))
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(float)
    ones = np.ones((count, 3, 1))
    # Where the image at a place of the result comes from.
    back = np.linalg.solve(np.concatenate([new, ones], 2), np.broadcast_to(old, new.shape).astype(float))
    x = _taken(x, (grid @ back[:, None, :2, :] + back[:, None, 2:, :]))
    noise = stream.uniform(-1, 1, (count, height, width, 2))
    smooth = (0, sigma * side, sigma * side, 0)
    return _taken(x, grid + strength * side * gaussian_filter(noise, smooth, mode="reflect", truncate=3))


def _taken(x: Images, places: np.ndarray) -> Images:
    """The images at these places (n, H, W, 2), columns and rows, bilinear, mirrored at the borders."""
    sides = np.maximum(np.array(x.shape[:1:-1]) - 1, 1)
    grid = torch.from_numpy(2 * places / sides - 1)
    images = torch.from_numpy(np.ascontiguousarray(x))
    return grid_sample(images, grid, padding_mode="reflection", align_corners=True).numpy()


def pixelate(x: Images, stream: Generator, share: float) -> Images:
    """Shrunk to that share of its sides and enlarged again, both by means over boxes."""
    image = require("PIL.Image", "meta")
    height, width = x.shape[2:]
    small, box = (int(width * share), int(height * share)), image.Resampling.BOX
    planes = (image.fromarray(plane) for plane in x.reshape(-1, height, width).astype(np.float32))
    return np.stack([plane.resize(small, box).resize((width, height), box) for plane in planes]).reshape(x.shape)


def jpeg_compression(x: Images, stream: Generator, quality: int) -> Images:
    """Written as JPEG at that quality, and read."""
    image = require("PIL.Image", "meta")
    decoded = []
    for pixels in (x * 255).round().astype(np.uint8).transpose(0, 2, 3, 1):
        file = BytesIO()
        image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "JPEG", quality=quality)
        decoded.append(np.array(image.open(file)).reshape(pixels.shape))
    return np.stack(decoded).transpose(0, 3, 1, 2) / 255


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
    corruption.rule.__name__: corruption
    for corruption in (
        _of(gaussian_noise, 0.04, 0.06, 0.08, 0.09, 0.10),
        _of(shot_noise, 500, 250, 100, 75, 50),
        _of(impulse_noise, 0.01, 0.02, 0.03, 0.05, 0.07),
        _of(defocus_blur, (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        _of(glass_blur, (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        _of(motion_blur, (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        _of(zoom_blur, 1.06, 1.11, 1.16, 1.21, 1.26),
        _of(
            snow,
            *((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9)),
            *((0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ),
        _of(frost, (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        _of(fog, (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        _of(brightness, 0.05, 0.1, 0.15, 0.2, 0.3),
        _of(contrast, 0.75, 0.5, 0.4, 0.3, 0.15),
        _of(
            elastic_transform,
            *((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ),
        _of(pixelate, 0.95, 0.9, 0.85, 0.75, 0.65),
        _of(jpeg_compression, 80, 65, 58, 50, 40),
    )
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
    validation.integer("severity", severity)
    validation.integer("seed", seed, least=0)
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
    chunks = []
    for number, chunk in enumerate(images.split(CHUNK) if len(images) else ()):
        stream = np.random.default_rng([seed, zlib.crc32(corruption.encode()), number])
        changed = rule(chunk.cpu().double().numpy(), stream, *levels[severity - 1])
        chunks.append(torch.from_numpy(np.clip(changed, 0, 1)).to(images))
    return torch.cat(chunks) if chunks else images.clone()
