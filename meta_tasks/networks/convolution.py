"""Convolutional networks: `cnn`, `lenet`, `gong_cnn`; and many of the first at once: `BatchedConvolution`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from meta_tasks.networks.batched import BatchedNetwork, channels_last, cross_entropy, linear, linear_gradients
from meta_tasks.networks.building import ACTIVATIONS, InputShape, check_size

__all__ = ["BatchedConvolution", "ConvNet", "cnn", "gong_cnn", "lenet"]


class ConvNet(nn.Module):
    """The convolutional task family of L2E (Section 5 of the paper).

    Plain: `depth` × [3×3 convolution, stride 1, zero padding → ReLU] → 2×2 max-pool → Linear(20) → Linear(classes),
    with no activation between the last two. Residual: the last convolution adds a 1×1-convolution shortcut from the
    input image before its ReLU, and there is no hidden Linear.
    """

    HIDDEN = 20

    def __init__(self, input_shape: InputShape, num_classes: int, channels: int, depth: int, residual: bool) -> None:
        super().__init__()
        in_channels, height, width = input_shape
        widths = [in_channels] + [channels] * depth
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))
        self.shortcut = nn.Conv2d(in_channels, channels, 1) if residual else None
        features = channels * (height // 2) * (width // 2)
        linear_widths = [features, num_classes] if residual else [features, self.HIDDEN, num_classes]
        self.linear = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(linear_widths)))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:  # channels-last by its strides: twice as fast on a CPU, and nothing is copied
            x = x.squeeze(1).unsqueeze(-1).movedim(-1, 1)
        *first, last = self.convolutions
        hidden = x
        for convolution in first:
            hidden = convolution(hidden).relu()
        hidden = last(hidden)
        if self.shortcut is not None:
            hidden = hidden + self.shortcut(x)
        # max(relu(h)) = relu(max(h)), and where it is zero neither passes a gradient on.
        return self.linear(nn.functional.max_pool2d(hidden, 2).relu().flatten(1))


def cnn(
    input_shape: InputShape, num_classes: int, *, channels: int = 16, depth: int = 2, residual: bool = False
) -> nn.Module:
    """Convolutional network of the L2E task family: `depth` 3×3 convolutions with `channels` channels and ReLU, a 2×2
    max-pool, a linear layer of 20 and the read-out; `residual` adds a 1×1 shortcut from the image and drops the layer
    of 20. Images of 2×2 pixels or more."""
    validation.integer("channels", channels)
    validation.integer("depth", depth)
    if not isinstance(residual, bool):
        raise TypeError(f"residual must be True or False, got {residual!r}")
    check_size("cnn", input_shape, 2)
    return ConvNet(input_shape, num_classes, channels, depth, residual)


def lenet(input_shape: InputShape, num_classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: 5×5 convolutions of 6 (padded) and 16 channels, linear layers of 120 and 84.
    The first linear layer adapts to the image size; images of 12×12 pixels or more."""
    check_size("lenet", input_shape, 12)
    channels, height, width = input_shape
    features = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    first = nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    linear = nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)
    return nn.Sequential(*first, *second, *linear)


def gong_cnn(input_shape: InputShape, num_classes: int, *, channels: int = 16, activation: str = "relu") -> nn.Module:
    """Convolutional network of Meta-SGMCMC's CIFAR-10 experiments: twice a 3×3 convolution of `channels` channels
    without padding, `activation` (relu, tanh, sigmoid, silu, gelu) and a 2×2 max-pool, then linear layers of 100 and
    the read-out. Images of 10×10 pixels or more."""
    validation.integer("channels", channels)
    validation.one_of("activation", activation, ACTIVATIONS)
    check_size("gong_cnn", input_shape, 10)
    in_channels, height, width = input_shape
    features = channels * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2)
    function = ACTIVATIONS[activation]
    first = nn.Conv2d(in_channels, channels, 3), function(), nn.MaxPool2d(2)
    second = nn.Conv2d(channels, channels, 3), function(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(features, 100), function(), nn.Linear(100, num_classes))


_aten = torch.ops.aten

# Measured for networks of 4 to 16 channels on images of 8×8 to 28×28 pixels, see reports/inner_loop.md.
_LEAST_MEMBERS = 4
_ACTIVATION_BYTES = 3 << 20


class BatchedConvolution(BatchedNetwork):
    """P copies of `ConvNet`, plain or residual, as grouped convolutions on channels-last activations.

    A convolution call works on some members (a group of channels for each) and some images; the gradients of the pieces
    add up. What pieces are fastest was measured, see reports/inner_loop.md.

    Attributes:
        members_per_call, images_per_call: size of the pieces; None takes what was fastest on this kind of device.
    """

    members_per_call: int | None = None
    images_per_call: int | None = None

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(build)
        self.depth = sum(name.startswith("convolutions.") for name in self.names) // 2
        self.channels, self.in_channels = self.shapes["convolutions.0.weight"][:2]
        self.residual = "shortcut.weight" in self.shapes
        self.linear = [name.removesuffix(".weight") for name in self.names if name.startswith("linear.")][::2]

    def _member_pieces(self, members: int, x: Tensor) -> list[tuple[slice, slice]]:
        """Members of each call, and the groups of images that they need."""
        per_group = members // len(x)
        size = min(self.members_per_call or self._fastest_members(members, x), members)
        if size < per_group:
            size = max(n for n in range(1, size + 1) if per_group % n == 0)
        else:
            size -= size % per_group
        starts = range(0, members, size)
        stops = [min(start + size, members) for start in starts]
        return [(slice(a, b), slice(a // per_group, (b - 1) // per_group + 1)) for a, b in zip(starts, stops)]

    def _fastest_members(self, members: int, x: Tensor) -> int:
        """Number of members whose activations of a layer, for a minibatch, fit the processor's cache."""
        if x.device.type != "cpu":
            return members
        return max(_LEAST_MEMBERS, _ACTIVATION_BYTES // (self._bytes_per_image(x) * x.shape[1]))

    def _bytes_per_image(self, x: Tensor) -> int:
        """Size of a layer's activations of one member for one image."""
        return self.channels * x.shape[-1] * x.shape[-2] * x.element_size()

    def _images(self, members: int, x: Tensor) -> int:
        """Images in one call: as many as keep a layer's activations in the processor's cache."""
        if self.images_per_call is not None or x.device.type != "cpu":
            return self.images_per_call or x.shape[1]
        return max(_ACTIVATION_BYTES // (members * self._bytes_per_image(x)), 1)

    def _forward(self, w: dict[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor], Tensor, list[Tensor]]:
        """Logits, convolution inputs, max-pool input and indices, inputs of the linear layers."""
        members, (groups, n, in_channels, height, width) = len(w["convolutions.0.bias"]), x.shape
        channels = members * self.channels
        image = x.transpose(0, 1).reshape(n, groups * in_channels, height, width)
        hidden = [channels_last(image)]
        for i in range(self.depth):
            weight = channels_last(w[f"convolutions.{i}.weight"].reshape(channels, -1, 3, 3))
            bias = w[f"convolutions.{i}.bias"].reshape(channels)
            h = torch.conv2d(hidden[-1], weight, bias, padding=1, groups=groups if i == 0 else members)
            if i < self.depth - 1:
                hidden.append(h.relu_())
        if self.residual:
            weight = w["shortcut.weight"].reshape(channels, -1, 1, 1)
            h += torch.conv2d(hidden[0], weight, w["shortcut.bias"].reshape(channels), groups=groups)
        pooled, indices = nn.functional.max_pool2d_with_indices(h, [2, 2])
        features = torch.empty(members, n, self.channels, height // 2, width // 2, dtype=h.dtype, device=h.device)
        features.copy_(pooled.relu_().view(n, members, self.channels, height // 2, width // 2).transpose(0, 1))
        linear_inputs = [features.flatten(2)]
        for name in self.linear:
            linear_inputs.append(linear(linear_inputs[-1], w[f"{name}.weight"], w[f"{name}.bias"]))
        return linear_inputs.pop(), [*hidden, h], indices, linear_inputs

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        rows = []
        for members, groups in self._member_pieces(len(weights), x):
            w, images = self.views(weights[members]), x[groups]
            pieces = images.split(self._images(members.stop - members.start, x), 1)
            rows.append(torch.cat([self._forward(w, piece)[0] for piece in pieces], 1))
        return torch.cat(rows)

    def loss_and_gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gradient, losses = torch.empty_like(weights), []
        for members, groups in self._member_pieces(len(weights), x):
            w, total, images = self.views(weights[members]), gradient[members], self._images(len(weights[members]), x)
            for start in range(0, x.shape[1], images):
                part = slice(start, start + images)
                piece = total if start == 0 else torch.empty_like(total)
                loss = self._backward(w, self.views(piece), x[groups, part], y[groups, part], x.shape[1])
                if start == 0:
                    losses.append(loss)
                else:
                    losses[-1] = losses[-1] + loss
                    total += piece
        return torch.cat(losses), gradient

    def _backward(self, w: dict[str, Tensor], out: dict[str, Tensor], x: Tensor, y: Tensor, batch: int) -> Tensor:
        """The part of the loss that these images add; writes their part of the gradient to ``out``."""
        logits, hidden, indices, linear_inputs = self._forward(w, x)
        loss, g = cross_entropy(logits, y, batch)
        for name, layer_input in zip(reversed(self.linear), reversed(linear_inputs), strict=True):
            linear_gradients(out, name, layer_input, g)
            g = torch.bmm(g, w[f"{name}.weight"])
        g = _aten.threshold_backward(g, linear_inputs[0], 0)
        *hidden, before_pool = hidden
        members, n = len(logits), x.shape[1]
        pooled = torch.empty_like(indices, dtype=g.dtype)  # channels-last, as the indices are
        pooled.view(n, members, self.channels, *pooled.shape[2:]).copy_(
            g.view(members, n, self.channels, *pooled.shape[2:]).transpose(0, 1)
        )
        g = _aten.max_pool2d_with_indices_backward(pooled, before_pool, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
        if self.residual:
            _convolution_gradients(out, "shortcut", hidden[0], g, w["shortcut.weight"], len(x), False)
        for i in reversed(range(self.depth)):
            name = f"convolutions.{i}"
            groups = len(x) if i == 0 else members
            g = _convolution_gradients(out, name, hidden[i], g, w[f"{name}.weight"], groups, i > 0)
            if i > 0:
                _aten.threshold_backward.grad_input(g, hidden[i], 0, grad_input=g)
        return loss


def _convolution_gradients(
    out: dict[str, Tensor],
    name: str,
    layer_input: Tensor,
    gradient: Tensor,
    weight: Tensor,
    groups: int,
    needs_input: bool,
) -> Any:
    """Writes the gradients of weight and bias to ``out``; returns that of the input, or None if it is not needed."""
    flat = channels_last(weight.reshape(-1, *weight.shape[2:]))
    stride, padding, outputs = [1, 1], [weight.shape[-1] // 2] * 2, [needs_input, True, True]
    g_input, g_weight, g_bias = _aten.convolution_backward(
        gradient, layer_input, flat, [len(flat)], stride, padding, [1, 1], False, [0, 0], groups, outputs
    )
    out[f"{name}.weight"].copy_(g_weight.view(weight.shape))
    out[f"{name}.bias"].copy_(g_bias.view(weight.shape[:2]))
    return g_input
