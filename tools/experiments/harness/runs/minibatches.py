"""The minibatches of a run: the same for every method of a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments.harness.runs.settings import Settings
from meta_tasks.datasets import ImageData
from meta_tasks.random_streams import generator


class Minibatches:
    """Inputs and targets of minibatches without end, augmented if the settings say so; `advance` skips to a position.

    Generators of their own: a seed's minibatches come in the same order whatever numbers a method draws, and whether
    they are augmented or not; every method sees the same crops. (On a CPU torch takes the lower 32 bits of a seed, so
    that the order is made of the numbers that a run's own stream begins with; the tables hold these orders.)
    """

    def __init__(self, data: ImageData, settings: Settings, seed: int) -> None:
        self.data, self.augment, self.position = data, settings.augment, 0
        order = torch.Generator().manual_seed(2**32 + seed)
        self._crops = generator(seed, "augmentation")
        self._indices = batches(data.num_data, settings.batch_size, data.train_x.device, order)

    def __iter__(self) -> Minibatches:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        self.position += 1
        index = next(self._indices)
        inputs = self.data.train_x[index]
        return crop_and_flip(inputs, self._crops) if self.augment else inputs, self.data.train_y[index]

    def advance(self, position: int) -> None:
        """Skip what a run that goes on has seen already."""
        while self.position < position:
            next(self)


def batches(
    num_data: int, batch_size: int, device: torch.device, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Indices of minibatches without end: each epoch in a new order, without its incomplete last minibatch.

    The order is drawn on the CPU, so that it is the same on every device.
    """
    while True:
        order = torch.randperm(num_data, generator=generator).to(device)
        yield from order.split(batch_size)[: num_data // batch_size]


def crop_and_flip(images: Tensor, stream: torch.Generator) -> Tensor:
    """Images (n, C, H, W), each shifted by up to an eighth of its side (at least one pixel) in each direction, with
    zeros where nothing was, and mirrored with probability ½.

    That is a random crop of the padded image: of 32×32 pixels with 4 of padding, as usual for CIFAR. The random numbers
    of the ``stream`` are drawn on the CPU.
    """
    count, channels, height, width = images.shape
    up, left = max(1, height // 8), max(1, width // 8)
    rows = torch.randint(2 * up + 1, (count, 1), generator=stream) + torch.arange(height)
    columns = torch.randint(2 * left + 1, (count, 1), generator=stream) + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=stream) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    device = images.device
    which, channel = torch.arange(count, device=device), torch.arange(channels, device=device)
    return pad(images, (left, left, up, up))[
        which[:, None, None, None],
        channel[:, None, None],
        rows.to(device)[:, None, :, None],
        columns.to(device)[:, None, None, :],
    ]
