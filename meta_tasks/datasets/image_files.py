"""Images from files of their own: `decoded`."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base.optional import require

__all__ = ["MOST_BYTES", "decoded"]

#: Bytes of an image file, and pixels of an image, at most; those of the data sets have about 10,000 and 40,000.
MOST_BYTES, MOST_PIXELS = 2**24, 2**24


def decoded(content: bytes, name: str) -> Tensor:
    """The image in a file's bytes, (3, H, W) in uint8.

    Raises:
        ValueError: it is damaged, no image, or larger than 2²⁴ pixels; calls it ``name``.
    """
    image_module = require("PIL.Image", "meta")
    try:
        with image_module.open(BytesIO(content)) as image:
            if image.width * image.height > MOST_PIXELS:  # known from its header; nothing is decoded yet
                raise ValueError(f"it has {image.width}×{image.height} pixels")
            pixels = np.array(image.convert("RGB"))
    # What Pillow raises for files that are damaged, or too large for itself.
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
        raise ValueError(f"{name} cannot be decoded as an image: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
