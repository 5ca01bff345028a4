"""Classifiers of texts by name: `build_text`, `text_networks`.

They map indices of words (n, L), with padding (index 0) after the last word, to logits (n, num_classes), keep no
buffers, and do not see the padding: a longer L changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from meta_tasks.datasets import mask_of
from meta_tasks.networks.building import called, check_call

__all__ = ["build_text", "text_networks"]


class ConvolutionLSTM(nn.Module):
    """Embedding, 1-D convolution with ReLU, max-pooling, LSTM, and a linear read-out of its state after the last word.

    Padding is embedded as zeros. The state that is read is that of the last pooling window which begins at a word.
    """

    def __init__(self, vocabulary: int, num_classes: int, width: int, filters: int, kernel: int, pool: int) -> None:
        super().__init__()
        self.pool = pool
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolution = nn.Conv1d(width, filters, kernel)
        self.lstm = nn.LSTM(filters, width, batch_first=True)
        self.linear = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = mask_of(tokens)
        embedded = self.embedding(tokens) * mask.unsqueeze(-1)
        hidden = self.convolution(embedded.transpose(1, 2)).relu()
        states, _ = self.lstm(nn.functional.max_pool1d(hidden, self.pool).transpose(1, 2))
        last = ((mask.sum(1) - 1) // self.pool).clamp(0, states.shape[1] - 1)
        return self.linear(states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1))


class TextTransformer(nn.Module):
    """Embedding with learned positions, ``depth`` layers of attention that see words only, and a linear read-out of the
    mean over the words.

    Normalisation comes before attention and before the two linear layers (of 4·``width``, GELU); nothing is dropped
    out.
    """

    def __init__(self, vocabulary: int, num_classes: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.linear = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = mask_of(tokens)
        mask = mask | (torch.arange(tokens.shape[1], device=tokens.device) == 0)  # something to look at in every text
        hidden = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        hidden = self.layers(hidden, src_key_padding_mask=~mask)
        hidden = torch.where(mask.unsqueeze(-1), hidden, 0.0)
        return self.linear(hidden.sum(1) / mask.sum(1, keepdim=True))


def cnn_lstm(
    vocabulary: int, length: int, num_classes: int, *, width: int = 128, kernel: int = 5, pool: int = 4
) -> nn.Module:
    """CNN-LSTM: an embedding of `width`, a convolution of `width`/2 filters over `kernel` words with ReLU, max-pooling
    over `pool`, an LSTM of `width` cells and a linear read-out of its last state. Texts of kernel + pool − 1 words or
    more, padding included.

    With the sizes given here it is the network of Wenzel et al. (2020) and Izmailov et al. (2021) for IMDB."""
    for name, value in (("width", width), ("kernel", kernel), ("pool", pool)):
        validation.integer(name, value)
    if length < kernel + pool - 1:
        raise ValueError(f"length={length} is too short for cnn_lstm, which needs {kernel + pool - 1} words or more")
    return ConvolutionLSTM(vocabulary, num_classes, width, max(1, width // 2), kernel, pool)


def transformer(
    vocabulary: int, length: int, num_classes: int, *, width: int = 64, heads: int = 4, depth: int = 2
) -> nn.Module:
    """Transformer encoder: an embedding of `width`, learned positions, `depth` layers of attention with `heads` heads,
    the mean over the words and a linear read-out; no dropout."""
    for name, value in (("width", width), ("heads", heads), ("depth", depth)):
        validation.integer(name, value)
    if width % heads:
        raise ValueError(f"width must be a multiple of heads={heads}, got {width}")
    return TextTransformer(vocabulary, num_classes, length, width, heads, depth)


_BUILDERS: dict[str, Callable[..., nn.Module]] = {f.__name__: f for f in (cnn_lstm, transformer)}


def text_networks() -> tuple[str, ...]:
    """The networks that `build_text` makes."""
    return tuple(_BUILDERS)


def build_text(name: str, vocabulary: int, length: int, num_classes: int, **options: object) -> nn.Module:
    """A freshly initialised classifier of texts (from torch's global random state).

    Args:
        name: one of `text_networks()`.
        vocabulary: number of indices.
        length: words of a text, padding included.
        num_classes: number of logits.
        options: the network's own, the keyword arguments of the function of its name.

    Raises:
        ValueError: an unknown name, a text too short for the network, or an option out of range.
        TypeError: an option that the network does not have.
    """
    builder = called(_BUILDERS, name)
    validation.integer("vocabulary", vocabulary, least=2)
    validation.integer("length", length)
    check_call(name, builder, num_classes, options)
    return builder(vocabulary, length, num_classes, **options)
