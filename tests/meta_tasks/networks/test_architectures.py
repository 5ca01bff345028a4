"""The networks: shapes, sizes, the family that the paper describes, and refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from meta_tasks.networks import BatchedModule, BatchedResidual, architectures, batched_network_for
from meta_tasks.networks.residual import FilterResponseNorm

SMALLEST = {**{"mlp": 1, "cnn": 2, "lenet": 12, "gong_cnn": 10}, **{"resnet": 8, "resnet20_frn": 8, "resnet_frn": 4}}

KINDS = ("weight", "bias")


@settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(
    st.sampled_from(architectures.names()), st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.integers(2, 12)
)
def test_every_size_from_the_smallest_gives_logits_and_a_gradient_everywhere(name, extra_h, extra_w, channels, classes):
    torch.manual_seed(0)
    shape = (channels, SMALLEST[name] + extra_h, SMALLEST[name] + extra_w)
    model = architectures.build(name, shape, classes)
    logits = model(torch.randn(2, *shape))
    assert logits.shape == (2, classes)
    assert not list(model.buffers())
    functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_cnn_is_the_papers(depth, residual):
    model = architectures.build("cnn", (3, 8, 8), 10, channels=4, depth=depth, residual=residual)
    weights = dict(model.named_parameters())
    assert len(weights) == 2 * depth + 4
    x = torch.rand(5, 3, 8, 8)
    hidden = x
    for i in range(depth):
        hidden = functional.conv2d(hidden, *(weights[f"convolutions.{i}.{name}"] for name in KINDS), padding=1)
        if residual and i == depth - 1:
            hidden = hidden + functional.conv2d(x, *(weights[f"shortcut.{name}"] for name in KINDS))
        hidden = hidden.relu()
    hidden = functional.max_pool2d(hidden, 2).flatten(1)
    for i in range(1 if residual else 2):
        hidden = functional.linear(hidden, *(weights[f"linear.{i}.{name}"] for name in KINDS))
    assert residual or weights["linear.0.weight"].shape == (20, 4 * 4 * 4)
    torch.testing.assert_close(model(x), hidden)


RESNET20 = 27 * 16 + 6 * 2304 + (16 + 5 * 32) * 32 * 9 + 16 * 32 + (32 + 5 * 64) * 64 * 9 + 32 * 64  # convolutions


@pytest.mark.parametrize(
    ("name", "shape", "tensors", "parameters"),
    [
        ("lenet", (1, 28, 28), 10, 61_706),
        ("gong_cnn", (3, 32, 32), 8, 448 + 2320 + 57_700 + 1010),
        ("resnet20_frn", (3, 32, 32), 65, RESNET20 + 2 * (7 * 16 + 7 * 32 + 7 * 64) + 650),
    ],
)
def test_networks_have_their_published_sizes(name, shape, tensors, parameters):
    weights = list(architectures.build(name, shape, 10).parameters())
    assert (len(weights), sum(p.numel() for p in weights)) == (tensors, parameters)


@pytest.mark.parametrize(("depth", "tensors"), [(20, 65), (32, 101), (56, 173)])
def test_a_deeper_resnet_has_more_blocks_and_the_shallowest_is_resnet20_frn(depth, tensors):
    torch.manual_seed(0)
    model = architectures.build("resnet", (3, 16, 16), 10, depth=depth, width=4)
    convolutions = [p for p in model.parameters() if p.ndim == 4 and p.shape[-1] == 3]
    assert (len(convolutions) + 1, len(list(model.parameters()))) == (depth, tensors)
    torch.manual_seed(0)
    resnet20 = architectures.build("resnet20_frn", (3, 16, 16), 10, width=4)
    same = [*model.state_dict()] == [*resnet20.state_dict()]
    assert same == (depth == 20)
    torch.manual_seed(0)
    stages = architectures.build("resnet_frn", (3, 16, 16), 10, width=4, blocks=((depth - 2) // 6,) * 3)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(model(x), stages(x))
    assert torch.equal(model(x), resnet20(x)) == same


def test_the_activation_of_a_resnet_is_the_one_asked_for():
    model = architectures.build("resnet", (3, 8, 8), 10, activation="relu", width=4)
    assert "SiLU" not in {type(module).__name__ for module in model.modules()}
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))  # one image does not see the others
    assert type(batched_network_for("resnet", (3, 8, 8), 10, width=4)) is BatchedResidual
    assert type(batched_network_for("resnet", (3, 8, 8), 10, width=4, activation="relu")) is BatchedModule


def test_filter_response_norm_ignores_the_scale_of_each_channel():
    norm = FilterResponseNorm(3)
    x = torch.randn(4, 3, 6, 5)
    torch.testing.assert_close(norm(x).square().mean((-2, -1)), torch.ones(4, 3), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm(x * torch.tensor([1.0, 10.0, 100.0])[:, None, None]), norm(x), rtol=1e-4, atol=1e-4)
    # One image does not see the others, unlike batch normalisation.
    torch.testing.assert_close(norm(x)[:1], norm(x[:1]))


def test_mlp_layers_and_activation():
    torch.manual_seed(0)
    model = architectures.build("mlp", (1, 4, 4), 3, hidden=(7, 5), activation="tanh")
    assert [tuple(p.shape) for p in model.parameters()] == [(7, 16), (7,), (5, 7), (5,), (3, 5), (3,)]
    x = torch.randn(2, 1, 4, 4)
    hidden = x.flatten(1)
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    for layer in layers[:-1]:
        hidden = layer(hidden).tanh()
    torch.testing.assert_close(model(x), layers[-1](hidden))
    assert len(list(architectures.build("mlp", (1, 4, 4), 3, hidden=()).parameters())) == 2
