"""Networks of M particles with a shared trunk and a head for each task: the LeNet of Multi-MNIST, and a ResNet-18."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

from meta_tasks.datasets import scaled

NETWORKS = ("lenet", "resnet18")
STANDARDISED = 2000  # images of which mean and standard deviation are taken


class ParticleNetwork(ABC):
    """M trunks, and M linear heads a task; every parameter has a leading axis of length M."""

    def __init__(self, trunks: list[nn.Module], width: int, tasks: int, classes: int) -> None:
        heads = [[nn.Linear(width, classes) for _ in trunks] for _ in range(tasks)]
        self.trunk: dict[str, Tensor] = dict(stack_module_state(trunks)[0])
        self.heads: list[dict[str, Tensor]] = [dict(stack_module_state(head)[0]) for head in heads]
        self.mean, self.deviation = 0.0, 1.0

    @property
    def particles(self) -> int:
        """M."""
        return len(self.heads[0]["bias"])

    @property
    def num_parameters(self) -> int:
        """Of one particle."""
        return sum(p[0].numel() for p in self.parameters().values())

    def parameters(self) -> dict[str, Tensor]:
        """All of them by name: those of the trunk, and ``heads.<task>.weight`` and ``.bias``."""
        heads = {f"heads.{k}.{name}": p for k, head in enumerate(self.heads) for name, p in head.items()}
        return {**{f"trunk.{name}": p for name, p in self.trunk.items()}, **heads}

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for a particle sampler."""
        return [
            {"params": list(self.trunk.values())},
            *({"params": list(head.values()), "task": k} for k, head in enumerate(self.heads)),
        ]

    def to(self, device: torch.device | str) -> ParticleNetwork:
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
        """Put back what `state` has copied."""
        for name, p in self.parameters().items():
            p.copy_(state[name])

    def standardise(self, x: Tensor) -> None:
        """Take mean and standard deviation of some images' pixels, in uint8, for `inputs`."""
        values = scaled(x[:STANDARDISED])
        self.mean, self.deviation = values.mean().item(), values.std().item()

    def inputs(self, x: Tensor) -> Tensor:
        """What the network sees of images in uint8: floats in [0, 1], or standardised."""
        return (scaled(x) - self.mean) / self.deviation

    @abstractmethod
    def latents(self, x: Tensor) -> Tensor:
        """(M, B, width), the heads' input, of images (B, C, H, W)."""

    def outputs(self, latents: Tensor) -> list[Tensor]:
        """Logits (M, B, classes) of every task."""
        return [torch.baddbmm(head["bias"][:, None], latents, head["weight"].mT) for head in self.heads]

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Probabilities of every task and particle, (K, M, B, classes)."""
        return torch.stack([logits.softmax(-1) for logits in self.outputs(self.latents(x))])


class LeNet(ParticleNetwork):
    """Convolution to 10 channels, pooling, 5×5 convolution to 20, pooling, 50 latent units, and linear heads.

    22,350 parameters a particle for two tasks of ten classes on 28×28 pixels with a first kernel of 5×5 (the paper's
    number), 31,910 on 36×36 with 9×9 (its code's network).

    All particles see the same images: the first layer is one matrix product on the images' patches, the second a
    convolution with a group of channels for each particle, on channels-last activations, and ReLU comes after pooling,
    where it is the same on a quarter of the numbers. ``python tools/benchmark.py lenet`` times other ways.
    """

    def __init__(
        self, input_shape: tuple[int, int, int], tasks: int, classes: int, particles: int, first_kernel: int = 5
    ) -> None:
        channels, *sides = input_shape
        self.first_kernel = first_kernel
        second = [(side - first_kernel + 1) // 2 - 4 for side in sides]
        if min(second) < 2:
            raise ValueError(f"images of {sides[0]}×{sides[1]} are too small for a first kernel of {first_kernel}")
        width = 20 * math.prod(side // 2 for side in second)
        super().__init__([self.one(channels, width, first_kernel) for _ in range(particles)], 50, tasks, classes)

    @staticmethod
    def one(channels: int, width: int, first_kernel: int) -> nn.Sequential:
        """A single trunk, as a module."""
        first, then = nn.Conv2d(channels, 10, first_kernel), nn.Conv2d(10, 20, 5)
        pooled = [first, nn.ReLU(), nn.MaxPool2d(2), then, nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*pooled, nn.Flatten(), nn.Linear(width, 50), nn.ReLU())

    def latents(self, x: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = self.trunk.values()
        size, particles, kernel = len(x), len(b1), self.first_kernel
        patches = x.unfold(2, kernel, 1).unfold(3, kernel, 1)  # (B, C, H, W, k, k)
        height, width = patches.shape[2:4]
        patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(size * height * width, -1)
        hidden = torch.addmm(b1.flatten(), patches, w1.flatten(0, 1).flatten(1).T)
        hidden = hidden.view(size, height, width, -1).permute(0, 3, 1, 2)  # channels-last
        hidden = F.max_pool2d(hidden, 2).relu()
        w2 = w2.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        hidden = F.max_pool2d(F.conv2d(hidden, w2, b2.flatten(), groups=particles), 2).relu()
        hidden = hidden.contiguous().view(size, particles, -1).transpose(0, 1)
        return torch.baddbmm(b3[:, None], hidden, w3.mT).relu()


class ResNet18(ParticleNetwork):
    """torchvision's ResNet-18 without its last layer as trunk, 512 latent units; a loop over the particles.

    With group normalisation (32 groups) in the place of batch normalisation: the running statistics of the latter are
    buffers that no direction of a sampler moves, and they would make a particle's loss depend on what else is in
    the minibatch. 11.2 million parameters a particle.
    """

    def __init__(self, input_shape: tuple[int, int, int], tasks: int, classes: int, particles: int) -> None:
        if input_shape[0] != 3:
            raise ValueError(f"ResNet-18 takes colour images, got {input_shape[0]} channels")
        trunks = [self.one() for _ in range(particles)]
        self.module = trunks[0]
        super().__init__(trunks, 512, tasks, classes)

    @staticmethod
    def one() -> nn.Module:
        """A single trunk, as a module."""
        from torchvision.models import resnet18

        module = resnet18(weights=None, norm_layer=lambda channels: nn.GroupNorm(32, channels))
        module.fc = nn.Identity()
        return module

    def latents(self, x: Tensor) -> Tensor:
        slices = zip(*(p.unbind(0) for p in self.trunk.values()), strict=True)
        calls = [functional_call(self.module, dict(zip(self.trunk, one, strict=True)), (x,)) for one in slices]
        return torch.stack(calls)


class SeparateNetworks(ParticleNetwork):
    """A whole network for every task, with nothing shared: each parameter is in the loss of its task alone.

    Args:
        parts: a network of one task for each task.
    """

    def __init__(self, parts: list[ParticleNetwork]) -> None:
        self.parts = parts
        self.trunk, self.heads = {}, [part.heads[0] for part in parts]
        self.mean, self.deviation = 0.0, 1.0

    def parameters(self) -> dict[str, Tensor]:
        """All of them by name, those of task k with ``tasks.<k>.`` before the name that they have in its network."""
        return {f"tasks.{k}.{name}": p for k, part in enumerate(self.parts) for name, p in part.parameters().items()}

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.parameters().values())}]

    def to(self, device: torch.device | str) -> ParticleNetwork:
        for part in self.parts:
            part.to(device)
        return self

    def latents(self, x: Tensor) -> Tensor:
        """(M, B, K·width), those of the tasks beside each other."""
        return torch.cat([part.latents(x) for part in self.parts], dim=-1)

    def outputs(self, latents: Tensor) -> list[Tensor]:
        own = latents.chunk(len(self.parts), dim=-1)
        return [part.outputs(one)[0] for part, one in zip(self.parts, own, strict=True)]


def build(
    name: str,
    input_shape: tuple[int, int, int],
    tasks: int,
    classes: int,
    particles: int,
    first_kernel: int,
    *,
    separate: bool = False,
) -> ParticleNetwork:
    """M particles with initial weights of their own, drawn from torch's global random state.

    Args:
        separate: each task has a network of its own, see `SeparateNetworks`.
    """
    if separate:
        shape = (name, input_shape, 1, classes, particles, first_kernel)
        return SeparateNetworks([build(*shape) for _ in range(tasks)])
    if name == "resnet18":
        return ResNet18(input_shape, tasks, classes, particles)
    if name != "lenet":
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}")
    return LeNet(input_shape, tasks, classes, particles, first_kernel)
