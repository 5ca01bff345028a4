"""Transformer encoders: `vit` for images, and `Encoder`, which it shares with the one for texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from meta_tasks.networks.building import InputShape, check_size

__all__ = ["Encoder", "check_attention", "vit"]


class Encoder(nn.Module):
    """``depth`` layers of self-attention on ``length`` vectors with learned positions, and the mean of what comes out.

    Normalisation comes before attention and before the two linear layers (of 4·``width``, GELU); nothing is dropped
    out.
    """

    def __init__(self, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, L, width), and where ``mask`` (n, L) is False nothing to look at → (n, width)."""
        hidden = x + self.positions[: x.shape[1]]
        if mask is None:
            return self.layers(hidden).mean(1)
        hidden = self.layers(hidden, src_key_padding_mask=~mask)
        hidden = torch.where(mask.unsqueeze(-1), hidden, 0.0)
        return hidden.sum(1) / mask.sum(1, keepdim=True)


class VisionTransformer(nn.Module):
    """Patches of the image as vectors, an `Encoder`, and a linear read-out."""

    def __init__(
        self, input_shape: InputShape, num_classes: int, patch: int, width: int, heads: int, depth: int
    ) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.encoder = Encoder((rows // patch) * (columns // patch), width, heads, depth)
        self.linear = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.encoder(self.patches(x).flatten(2).transpose(1, 2)))


def check_attention(width: int, heads: int, depth: int) -> None:
    """Raise TypeError or ValueError for sizes of which no encoder can be made."""
    for name, value in (("width", width), ("heads", heads), ("depth", depth)):
        validation.integer(name, value)
    if width % heads:
        raise ValueError(f"width must be a multiple of heads={heads}, got {width}")


def vit(
    input_shape: InputShape, num_classes: int, *, patch: int = 4, width: int = 64, heads: int = 4, depth: int = 4
) -> nn.Module:
    """Small vision transformer: patches of `patch`×`patch` pixels (what is left over at the right and below is not
    seen), `depth` layers of attention with `heads` heads on vectors of `width`, learned positions, the mean over the
    patches and a linear read-out; no dropout. Images of one patch or more."""
    validation.integer("patch", patch)
    check_attention(width, heads, depth)
    check_size("vit", input_shape, patch)
    return VisionTransformer(input_shape, num_classes, patch, width, heads, depth)
