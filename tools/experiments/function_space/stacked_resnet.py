"""Several ResNets at once with weights of unit scale, as `stacked_mlp` has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_tasks.networks.batched import batched_network_for

#: Of a normalisation's gain (about one) and shift (about zero), and of biases, in units of w.
SMALL = 0.1


class StackedResNet:
    """P copies of ResNet-20 with filter response normalisation and Swish.

    One tensor w (P, n) holds all parameters of each: a convolution's weights are w/√(inputs of a unit), and so are the
    read-out's; a normalisation has the gain 1 + 0.1·w and the shift 0.1·w, the read-out the bias 0.1·w. So the prior
    N(0, 2·I) on w suits every layer.

    Args:
        input_shape: of one image, (C, H, W).
        classes: their number.
        width: channels of the first stage.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: int):
        self.network = batched_network_for("resnet20_frn", input_shape, classes, width=width)
        count = len(self.network.initial(0))
        self.scale, self.offset = torch.full((count,), SMALL), torch.zeros(count)
        scales, offsets = (self.network.views(each[None]) for each in (self.scale, self.offset))
        for name, scale in scales.items():
            if scale.dim() > 2:  # a leading axis of one copy, then (out, in, k, k) or (out, in)
                scale.fill_(scale[0, 0].numel() ** -0.5)
            elif not name.startswith("linear") and name.endswith("weight"):
                offsets[name].fill_(1.0)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> list[Tensor]:
        """Weights of so many networks from N(0, 1)."""
        return [torch.randn(count, len(self.scale), generator=generator)]

    def __call__(self, params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Outputs (P, n, C) of images (n, C, H, W), the same for all networks."""
        return self.network.logits(params[0] * self.scale + self.offset, inputs[None])
