"""Several ResNets at once with weights of unit scale, as `StackedNetwork` has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.function_space.stacked_network import StackedNetwork
from meta_tasks.networks import batched_network_for

#: Of a normalisation's gain (about one) and shift (about zero), and of biases, in units of w.
SMALL = 0.1


class StackedResNet(StackedNetwork):
    """P copies of ResNet-20 with filter response normalisation and Swish.

    A convolution's weights are w/√(inputs of a unit), and so are the read-out's; a normalisation has the gain 1 + 0.1·w
    and the shift 0.1·w, the read-out the bias 0.1·w. So the prior N(0, 2·I) on w suits every layer.

    Args:
        input_shape: of one image, (C, H, W).
        classes: their number.
        width: channels of the first stage.
    """

    def __init__(self, input_shape: tuple[int, int, int], classes: int, width: int):
        super().__init__(batched_network_for("resnet20_frn", input_shape, classes, width=width))
        self.offset = torch.zeros_like(self.scale)
        scales, offsets = self.views(self.scale.fill_(SMALL)), self.views(self.offset)
        for name, scale in scales.items():
            if scale.dim() > 1:  # (out, in, k, k) or (out, in)
                scale.fill_(scale[0].numel() ** -0.5)
            elif not name.startswith("linear") and name.endswith("weight"):
                offsets[name].fill_(1.0)

    def __call__(self, params: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Outputs (P, n, C) of images (n, C, H, W), the same for all networks."""
        return super().__call__(params, inputs[None])
