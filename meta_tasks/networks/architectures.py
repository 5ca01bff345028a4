"""Image classifiers by name: `build`, `names`, `describe`.

Every network maps images (n, C, H, W) to logits (n, num_classes) and keeps no buffers, so that its parameters are all
of its state: a posterior sample is then a list of tensors, with no running statistics to decide about.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from learned_samplers.base import validation

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
InputShape = tuple[int, int, int]


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

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolution_1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm_1 = FilterResponseNorm(channels)
        self.convolution_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_2 = FilterResponseNorm(channels)
        self.shortcut = nn.Sequential()
        if in_channels != channels or stride != 1:
            projection = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, FilterResponseNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        silu = nn.functional.silu
        hidden = silu(self.norm_1(self.convolution_1(x)))
        return silu(self.norm_2(self.convolution_2(hidden)) + self.shortcut(x))


class ResNetFRN(nn.Module):
    """A CIFAR ResNet (He et al., 2016) with filter response normalisation and Swish.

    A stem, stages of residual blocks with ``width``, 2·``width``, 4·``width``, … channels (each stage but the first
    halves the image), global average pooling, and a linear read-out. ``blocks`` says how many blocks each stage has.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, blocks: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1, bias=False), FilterResponseNorm(width), nn.SiLU()
        )
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                out = width * 2**stage
                layers.append(ResidualBlock(channels, out, stride=2 if stage > 0 and block == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(self.stem(x)).mean((-2, -1)))


def mlp(
    input_shape: InputShape, num_classes: int, *, hidden: Sequence[int] = (100, 100), activation: str = "relu"
) -> nn.Module:
    """Fully connected network on the flattened image: `hidden` widths of the hidden layers, `activation` between them
    (relu, tanh, sigmoid, silu, gelu). Any image size."""
    if isinstance(hidden, int | str) or not all(_is_count(width) for width in hidden):
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
    _check_size("cnn", input_shape, 2)
    return ConvNet(input_shape, num_classes, channels, depth, residual)


def lenet(input_shape: InputShape, num_classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: 5×5 convolutions of 6 (padded) and 16 channels, linear layers of 120 and 84.
    The first linear layer adapts to the image size; images of 12×12 pixels or more."""
    _check_size("lenet", input_shape, 12)
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


def resnet20_frn(input_shape: InputShape, num_classes: int, *, width: int = 16) -> nn.Module:
    """CIFAR ResNet-20 with filter response normalisation and Swish, no buffers: `width` channels in the first stage,
    2·width and 4·width in the next two. Images of 8×8 pixels or more.

    The network of Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?": 65 tensors."""
    validation.whole("width", width)
    _check_size("resnet20_frn", input_shape, 8)
    return ResNetFRN(input_shape[0], num_classes, width, (3, 3, 3))


def resnet_frn(
    input_shape: InputShape, num_classes: int, *, width: int = 8, blocks: Sequence[int] = (1, 1)
) -> nn.Module:
    """A shallow kin of `resnet20_frn`: as many residual blocks in each stage as `blocks` says, `width` channels in the
    first stage and twice as many in each further one. Images of 2^(stages) pixels a side or more."""
    validation.whole("width", width)
    if isinstance(blocks, int | str) or not blocks or not all(_is_count(count) for count in blocks):
        raise ValueError(f"blocks must be a sequence of positive integers, at least one, got {blocks!r}")
    _check_size("resnet_frn", input_shape, 2 ** len(blocks))
    return ResNetFRN(input_shape[0], num_classes, width, blocks)


_BUILDERS: dict[str, Callable[..., nn.Module]] = {f.__name__: f for f in (mlp, cnn, lenet, resnet20_frn, resnet_frn)}


def names() -> tuple[str, ...]:
    """The architectures that `build` takes."""
    return tuple(_BUILDERS)


def describe(name: str) -> str:
    """One paragraph about an architecture and its options.

    Raises:
        ValueError: an unknown name.
    """
    return " ".join((_builder(name).__doc__ or "").split())


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
    builder = _builder(name)
    shape = tuple(input_shape)
    if len(shape) != 3 or not all(_is_count(extent) for extent in shape):
        raise ValueError(f"input_shape must be (C, H, W), three positive integers, got {input_shape!r}")
    validation.whole("num_classes", num_classes, least=2)
    known = [p.name for p in inspect.signature(builder).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in known]:
        raise TypeError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    return builder(shape, num_classes, **options)


def _builder(name: str) -> Callable[..., nn.Module]:
    if name not in _BUILDERS:
        raise ValueError(f"name={name!r} is not an architecture; choose one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_size(name: str, input_shape: InputShape, smallest: int) -> None:
    _, height, width = input_shape
    if min(height, width) < smallest:
        raise ValueError(
            f"input_shape={input_shape} is too small for {name}, which needs {smallest}×{smallest} pixels or more; "
            f"load the images larger (size={smallest})"
        )
