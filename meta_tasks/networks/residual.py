"""Residual networks for small images, without running statistics; and many of one kind at once: `BatchedResidual`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from learned_samplers.base import validation
from meta_tasks.networks.batched import BatchedNetwork, channels_last, linear
from meta_tasks.networks.building import ACTIVATIONS, InputShape, check_size, is_count

__all__ = ["BatchedResidual", "FilterResponseNorm", "ResNet", "ResidualBlock", "resnet", "resnet20_frn", "resnet_frn"]

#: Depths of He et al.'s networks for CIFAR that `resnet` builds: 6n + 2 layers, n blocks a stage.
DEPTHS = (20, 32, 44, 56, 110)


class FilterResponseNorm(nn.Module):
    """Filter response normalisation (Singh and Krishnan, 2020), without the thresholded activation.

    y = γ·x / √(mean over height and width of x² + ε) + β, with γ and β of shape (channels,). It uses one image at a
    time, so it keeps no running statistics and each posterior sample is complete by itself.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight[:, None, None] * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + self.eps)
        return x * scale + self.bias[:, None, None]


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, with a normalised 1×1 convolution as shortcut where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]()
        self.convolution_1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm_1 = FilterResponseNorm(channels)
        self.convolution_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_2 = FilterResponseNorm(channels)
        self.shortcut = nn.Sequential()
        if in_channels != channels or stride != 1:
            projection = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, FilterResponseNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.norm_1(self.convolution_1(x)))
        return self.activation(self.norm_2(self.convolution_2(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """A CIFAR ResNet (He et al., 2016) with filter response normalisation, by default with Swish.

    A stem, stages of residual blocks with ``width``, 2·``width``, 4·``width``, … channels (each stage but the first
    halves the image), global average pooling, and a linear read-out. ``blocks`` says how many blocks each stage has.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        width: int,
        blocks: Sequence[int],
        activation: str = "silu",
    ) -> None:
        super().__init__()
        self.activation = activation
        first = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, FilterResponseNorm(width), ACTIVATIONS[activation]())
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                out = width * 2**stage
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(ResidualBlock(channels, out, stride, activation))
                channels = out
        self.blocks = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(self.stem(x)).mean((-2, -1)))


def resnet(
    input_shape: InputShape,
    num_classes: int,
    *,
    depth: int = 20,
    width: int = 16,
    activation: str = "silu",
) -> nn.Module:
    """CIFAR ResNet of `depth` 20, 32, 44, 56 or 110 with filter response normalisation, which keeps no buffers:
    `activation` (relu, tanh, sigmoid, silu, gelu), `width` channels in the first stage, 2·width and 4·width in the next
    two. Images of 8×8 pixels or more."""
    validation.one_of("depth", depth, DEPTHS)
    validation.integer("width", width)
    validation.one_of("activation", activation, ACTIVATIONS)
    check_size("resnet", input_shape, 8)
    return ResNet(input_shape[0], num_classes, width, ((depth - 2) // 6,) * 3, activation)


def resnet20_frn(input_shape: InputShape, num_classes: int, *, width: int = 16) -> nn.Module:
    """CIFAR ResNet-20 with filter response normalisation and Swish, no buffers: `width` channels in the first stage,
    2·width and 4·width in the next two. Images of 8×8 pixels or more.

    The network of Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?": 65 tensors."""
    check_size("resnet20_frn", input_shape, 8)
    return resnet(input_shape, num_classes, depth=20, width=width)


def resnet_frn(
    input_shape: InputShape, num_classes: int, *, width: int = 8, blocks: Sequence[int] = (1, 1)
) -> nn.Module:
    """A shallow kin of `resnet20_frn`: as many residual blocks in each stage as `blocks` says, `width` channels in the
    first stage and twice as many in each further one. Images of 2^(stages) pixels a side or more."""
    validation.integer("width", width)
    if isinstance(blocks, int | str) or not blocks or not all(is_count(count) for count in blocks):
        raise ValueError(f"blocks must be a sequence of positive integers, at least one, got {blocks!r}")
    check_size("resnet_frn", input_shape, 2 ** len(blocks))
    return ResNet(input_shape[0], num_classes, width, blocks)


class BatchedResidual(BatchedNetwork):
    """P copies of `ResNet`: each member is a group of channels of every convolution.

    Gradients come from one graph for all members, in which normalisation and Swish are one operation with its gradient
    written out. At 8×8 pixels, eight members of width 4 take a quarter of the time of one member after another.

    Args:
        build: makes the network.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build)
        module = self.module
        if not isinstance(module, ResNet) or module.activation != "silu":
            raise TypeError(f"build must make a ResNet with activation 'silu', got {module}")
        convolutions = [m.convolution_1 for m in module.modules() if isinstance(m, ResidualBlock)]
        self._strides = [convolution.stride[0] for convolution in convolutions]
        self._eps = next(m.eps for m in module.modules() if isinstance(m, FilterResponseNorm))

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        w, members, (groups, n) = self.views(weights), len(weights), x.shape[:2]
        image = x.transpose(0, 1).reshape(n, -1, *x.shape[3:])
        hidden = channels_last(image)
        hidden = self._normalised(w, "stem.1", _convolution(w["stem.0.weight"], hidden, groups, padding=1))
        for i, stride in enumerate(self._strides):
            block = f"blocks.{i}"
            inner = _convolution(w[f"{block}.convolution_1.weight"], hidden, members, stride, padding=1)
            inner = self._normalised(w, f"{block}.norm_1", inner)
            inner = _convolution(w[f"{block}.convolution_2.weight"], inner, members, padding=1)
            if f"{block}.shortcut.0.weight" in w:
                hidden = _convolution(w[f"{block}.shortcut.0.weight"], hidden, members, stride)
                hidden = self._normalised(w, f"{block}.shortcut.1", hidden, swish=False)
            hidden = nn.functional.silu(self._normalised(w, f"{block}.norm_2", inner, swish=False) + hidden)
        features = hidden.mean((-2, -1)).view(n, members, -1).transpose(0, 1)
        return linear(features, w["linear.weight"], w["linear.bias"])

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        leaf = weights.detach().requires_grad_()
        classes = y.repeat_interleave(len(weights) // len(y), 0)
        with torch.enable_grad():
            log_p = self.log_probabilities(leaf, x)
            losses = -log_p.gather(-1, classes.unsqueeze(-1)).mean((1, 2))
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    def _normalised(self, w: dict[str, Tensor], name: str, x: Tensor, swish: bool = True) -> Tensor:
        return _FilterResponse.apply(x, w[f"{name}.weight"], w[f"{name}.bias"], self._eps, swish)


def _convolution(weight: Tensor, x: Tensor, groups: int, stride: int = 1, padding: int = 0) -> Tensor:
    """Weights (P, out, in, k, k) on x (n, P·in, height, width); on (n, G·in, …) with ``groups`` G < P."""
    flat = channels_last(weight.reshape(-1, *weight.shape[2:]))
    return torch.conv2d(x, flat, None, stride, padding, 1, groups)


class _FilterResponse(torch.autograd.Function):
    """`FilterResponseNorm` of every member, then Swish where asked for: few passes over the activations.

    With s = 1/√(mean x² + ε) and u = γ·s·x + β, ∂u/∂x gives back γ·s·(g − s²·x·mean(g·x)) of a gradient g of u.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, swish: bool) -> Tensor:
        inverse = torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + eps)
        scale = weight.reshape(-1, 1, 1)
        u = torch.addcmul(bias.reshape(-1, 1, 1), x, inverse * scale)
        ctx.save_for_backward(x, inverse, scale, u if swish else None)
        ctx.shape = weight.shape
        return nn.functional.silu(u) if swish else u

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse, scale, u = ctx.saved_tensors
        (gradient,) = gradients
        if u is not None:
            gradient = torch.ops.aten.silu_backward(gradient, u)
        along = (gradient * x).sum((-2, -1), keepdim=True)
        pixels = x.shape[-2] * x.shape[-1]
        to_x = torch.addcmul(gradient * (inverse * scale), x, along * inverse.pow(3) * scale, value=-1 / pixels)
        to_weight = (along * inverse).sum((0, 2, 3)).view(ctx.shape)
        return to_x, to_weight, gradient.sum((0, 2, 3)).view(ctx.shape), None, None
