"""LeNets of M particles with a shared trunk and a head for each task, or with nothing shared."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import stack_module_state
from torch.nn import functional as F

from meta_tasks.datasets import scaled

STANDARDISED = 2000  # images of which mean and standard deviation are taken
KERNEL = 5  # side of both convolutions


class LeNet:
    """Convolution to 10 channels, pooling, convolution to 20, pooling, 50 latent units, and a linear head a task.

    22,350 parameters a particle for two tasks of ten classes on 28×28 pixels (the paper's number). Every parameter has
    a leading axis of length M; initial weights are drawn from torch's global random state.

    All particles see the same images: the first layer is one matrix product on the images' patches, the second a
    convolution with a group of channels for each particle, on channels-last activations, and ReLU comes after pooling,
    where it is the same on a quarter of the numbers.
    """

    def __init__(self, input_shape: tuple[int, int, int], tasks: int, classes: int, particles: int) -> None:
        channels, *sides = input_shape
        second = [(side - KERNEL + 1) // 2 - 4 for side in sides]
        if min(second) < 2:
            raise ValueError(f"images of {sides[0]}×{sides[1]} are too small for kernels of {KERNEL}")
        width = 20 * math.prod(side // 2 for side in second)
        trunks = [self.one(channels, width) for _ in range(particles)]
        heads = [[nn.Linear(50, classes) for _ in trunks] for _ in range(tasks)]
        self.trunk: dict[str, Tensor] = dict(stack_module_state(trunks)[0])
        self.heads: list[dict[str, Tensor]] = [dict(stack_module_state(head)[0]) for head in heads]
        self.mean, self.deviation = 0.0, 1.0

    @staticmethod
    def one(channels: int, width: int) -> nn.Sequential:
        """A single trunk, as a module."""
        first, then = nn.Conv2d(channels, 10, KERNEL), nn.Conv2d(10, 20, KERNEL)
        pooled = [first, nn.ReLU(), nn.MaxPool2d(2), then, nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*pooled, nn.Flatten(), nn.Linear(width, 50), nn.ReLU())

    def parameters(self) -> dict[str, Tensor]:
        """All of them by name: those of the trunk, and ``heads.<task>.weight`` and ``.bias``."""
        heads = {f"heads.{k}.{name}": p for k, head in enumerate(self.heads) for name, p in head.items()}
        return {**{f"trunk.{name}": p for name, p in self.trunk.items()}, **heads}

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for a particle sampler."""
        heads = [{"params": list(head.values()), "task": k} for k, head in enumerate(self.heads)]
        return [{"params": list(self.trunk.values())}, *heads]

    def to(self, device: torch.device | str) -> LeNet:
        """Move the parameters, as leaves, before a sampler has them."""
        for named in (self.trunk, *self.heads):
            for name, p in named.items():
                named[name] = p.detach().to(device).requires_grad_()
        return self

    def state(self) -> dict[str, Tensor]:
        """A copy of the parameters on the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self.parameters().items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back a copy that `state` made."""
        for name, p in self.parameters().items():
            p.copy_(state[name])

    def standardise(self, x: Tensor) -> None:
        """Take mean and standard deviation of some images' pixels, in uint8, for `inputs`."""
        values = scaled(x[:STANDARDISED])
        self.mean, self.deviation = values.mean().item(), values.std().item()

    def inputs(self, x: Tensor) -> Tensor:
        """Standardised pixels of images in uint8."""
        return (scaled(x) - self.mean) / self.deviation

    def latents(self, x: Tensor) -> Tensor:
        """(M, B, 50), the heads' input, of images (B, C, H, W)."""
        w1, b1, w2, b2, w3, b3 = self.trunk.values()
        size, particles = len(x), len(b1)
        patches = x.unfold(2, KERNEL, 1).unfold(3, KERNEL, 1)  # (B, C, H, W, k, k)
        height, width = patches.shape[2:4]
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(size * height * width, -1)
        hidden = torch.addmm(b1.flatten(), patches, w1.flatten(0, 1).flatten(1).T)
        hidden = hidden.view(size, height, width, -1).permute(0, 3, 1, 2)  # channels-last
        hidden = F.max_pool2d(hidden, 2).relu()
        w2 = w2.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        hidden = F.max_pool2d(F.conv2d(hidden, w2, b2.flatten(), groups=particles), 2).relu()
        hidden = hidden.contiguous().view(size, particles, -1).transpose(0, 1)
        return torch.baddbmm(b3[:, None], hidden, w3.mT).relu()

    def outputs(self, latents: Tensor) -> list[Tensor]:
        """Logits (M, B, classes) of every task."""
        return [torch.baddbmm(head["bias"][:, None], latents, head["weight"].mT) for head in self.heads]

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Probabilities of every task and particle, (K, M, B, classes)."""
        return torch.stack([logits.softmax(-1) for logits in self.outputs(self.latents(x))])


class SeparateNetworks(LeNet):
    """A whole network for every task, with nothing shared: each parameter is in the loss of its task alone."""

    def __init__(self, input_shape: tuple[int, int, int], tasks: int, classes: int, particles: int) -> None:
        self.parts = [LeNet(input_shape, 1, classes, particles) for _ in range(tasks)]
        self.mean, self.deviation = 0.0, 1.0

    def parameters(self) -> dict[str, Tensor]:
        """All of them by name, those of task k with ``tasks.<k>.`` before the name that they have in its network."""
        return {f"tasks.{k}.{name}": p for k, part in enumerate(self.parts) for name, p in part.parameters().items()}

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters().values())}]

    def to(self, device: torch.device | str) -> LeNet:
        for part in self.parts:
            part.to(device)
        return self

    def latents(self, x: Tensor) -> Tensor:
        """(M, B, K·50), those of the tasks beside each other."""
        return torch.cat([part.latents(x) for part in self.parts], dim=-1)

    def outputs(self, latents: Tensor) -> list[Tensor]:
        chunks = latents.chunk(len(self.parts), dim=-1)
        return [part.outputs(chunk)[0] for part, chunk in zip(self.parts, chunks, strict=True)]
