"""Stacked ResNets: each copy is the plain module with its weights; the prior on functions has a unit's size."""

import torch
from experiments.function_space.stacked_resnet import StackedResNet

from meta_tasks.networks import architectures


def test_each_copy_is_the_plain_network():
    stack = StackedResNet((3, 8, 8), 5, 4)
    params = stack.draw(3, generator=torch.Generator().manual_seed(0))
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = stack(params, x)
    assert found.shape == (3, 6, 5)
    module = architectures.build("resnet20_frn", (3, 8, 8), 5, width=4)
    for copy, expected in zip((params[0] * stack.scale + stack.offset).float(), found, strict=True):
        torch.nn.utils.vector_to_parameters(copy, module.parameters())
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


def test_weights_are_scaled_by_the_inputs_of_a_unit():
    stack = StackedResNet((3, 8, 8), 5, 4)
    scale = {name: each.unique().item() for name, each in stack.views(stack.scale).items()}
    offset = {name: each.unique().item() for name, each in stack.views(stack.offset).items()}
    assert scale["stem.0.weight"] == 27**-0.5
    assert scale["blocks.0.convolution_1.weight"] == 36**-0.5
    assert scale["linear.weight"] == 16**-0.5
    assert scale["linear.bias"] == scale["stem.1.weight"] == 0.1
    assert (offset["stem.1.weight"], offset["stem.1.bias"], offset["linear.weight"]) == (1, 0, 0)
    draws = [2**0.5 * p for p in stack.draw(200, generator=torch.Generator().manual_seed(0))]
    outputs = stack(draws, torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)))
    assert 0.3 < outputs.std() < 5, "functions of the prior are far from a unit's size"


def test_attacks_have_a_gradient_by_the_image():
    stack = StackedResNet((1, 8, 8), 3, 4)
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    stack(stack.draw(2), x).sum().backward()
    assert (x.grad.abs().amax((1, 2, 3)) > 0).all()
