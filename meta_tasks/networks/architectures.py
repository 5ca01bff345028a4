"""Image classifiers by name: `build`, `names`, `describe`.

Every network maps images (n, C, H, W) to logits (n, num_classes) and keeps no buffers, so that its parameters are all
of its state: a posterior sample is then a list of tensors, with no running statistics to decide about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from learned_samplers.base import validation
from meta_tasks.networks.attention import vit
from meta_tasks.networks.building import ACTIVATIONS, InputShape, called, check_call, check_size, is_count
from meta_tasks.networks.residual import resnet, resnet20_frn, resnet_frn

__all__ = ["ConvNet", "build", "describe", "names"]


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
        hidden = x
        for index, convolution in enumerate(self.convolutions):
            hidden = convolution(hidden)
            if self.shortcut is not None and index == len(self.convolutions) - 1:
                hidden = hidden + self.shortcut(x)
            hidden = hidden.relu()
        return self.linear(nn.functional.max_pool2d(hidden, 2).flatten(1))


def mlp(
    input_shape: InputShape, num_classes: int, *, hidden: Sequence[int] = (100, 100), activation: str = "relu"
) -> nn.Module:
    """Fully connected network on the flattened image: `hidden` widths of the hidden layers, `activation` between them
    (relu, tanh, sigmoid, silu, gelu). Any image size."""
    if isinstance(hidden, int | str) or not all(is_count(width) for width in hidden):
        raise ValueError(f"hidden must be a sequence of positive integers, got {hidden!r}")
    validation.one_of("activation", activation, ACTIVATIONS)
    channels, height, width = input_shape
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [channels * height * width, *hidden]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def cnn(
    input_shape: InputShape, num_classes: int, *, channels: int = 16, depth: int = 2, residual: bool = False
) -> nn.Module:
    """Convolutional network of the L2E task family: `depth` 3×3 convolutions with `channels` channels and ReLU, a 2×2
    max-pool, a linear layer of 20 and the read-out; `residual` adds a 1×1 shortcut from the image and drops the layer
    of 20. Images of 2×2 pixels or more."""
    validation.whole("channels", channels)
    validation.whole("depth", depth)
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
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def gong_cnn(input_shape: InputShape, num_classes: int, *, channels: int = 16, activation: str = "relu") -> nn.Module:
    """Convolutional network of Meta-SGMCMC's CIFAR-10 experiments: twice a 3×3 convolution of `channels` channels
    without padding, `activation` (relu, tanh, sigmoid, silu, gelu) and a 2×2 max-pool, then linear layers of 100 and
    the read-out. Images of 10×10 pixels or more."""
    validation.whole("channels", channels)
    validation.one_of("activation", activation, ACTIVATIONS)
    check_size("gong_cnn", input_shape, 10)
    in_channels, height, width = input_shape
    features = channels * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2)
    function = ACTIVATIONS[activation]
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 3),
        function(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3),
        function(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 100),
        function(),
        nn.Linear(100, num_classes),
    )


_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    builder.__name__: builder for builder in (mlp, cnn, lenet, gong_cnn, resnet, resnet20_frn, resnet_frn, vit)
}


def names() -> tuple[str, ...]:
    """The architectures that `build` takes."""
    return tuple(_BUILDERS)


def describe(name: str) -> str:
    """One paragraph about an architecture and its options.

    Raises:
        ValueError: an unknown name.
    """
    return " ".join((called(_BUILDERS, name).__doc__ or "").split())


def build(name: str, input_shape: Sequence[int], num_classes: int, **options: object) -> nn.Module:
    """A freshly initialised network (from torch's global random state).

    Args:
        name: one of `names()`.
        input_shape: (C, H, W) of one image.
        num_classes: number of logits.
        options: the architecture's own, see `describe(name)`.

    Raises:
        ValueError: an unknown name, a shape that is not three positive integers or too small for the architecture,
            or an option out of range.
        TypeError: an option that the architecture does not have.
    """
    builder = called(_BUILDERS, name)
    shape = tuple(input_shape)
    if len(shape) != 3 or not all(is_count(extent) for extent in shape):
        raise ValueError(f"input_shape must be (C, H, W), three positive integers, got {input_shape!r}")
    check_call(name, builder, num_classes, options)
    return builder(shape, num_classes, **options)
