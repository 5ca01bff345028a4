"""The batched networks that are written out by hand against autograd, in every way of cutting the work into pieces."""

import pytest
import torch

from meta_tasks.networks import BatchedConvolution, BatchedModule, batched_network_for

NETWORKS = [
    ("cnn", (1, 14, 14), {"channels": 4, "depth": 1}),
    ("cnn", (3, 9, 9), {"channels": 8, "depth": 3}),
    ("cnn", (1, 12, 12), {"channels": 16, "depth": 2, "residual": True}),
    ("cnn", (3, 8, 8), {"channels": 4, "depth": 1, "residual": True}),
    *(("mlp", (1, 6, 6), {"hidden": (7, 5), "activation": a}) for a in ("relu", "tanh", "sigmoid", "silu", "gelu")),
    ("mlp", (1, 6, 6), {"hidden": ()}),
]
RESIDUAL = [
    ("resnet_frn", (1, 9, 9), {"width": 4, "blocks": (1, 2)}),
    ("resnet_frn", (3, 8, 8), {"width": 8, "blocks": (2,)}),
    ("resnet20_frn", (3, 8, 8), {"width": 2}),
    ("resnet", (3, 8, 8), {"width": 2, "depth": 32}),
]


def members(network, count):
    return torch.stack([network.initial(seed) for seed in range(count)])


def batch(shape, groups, n=5, classes=4):
    return torch.rand(groups, n, *shape), torch.randint(classes, (groups, n))


@pytest.mark.parametrize(("name", "shape", "options"), [*NETWORKS, *RESIDUAL])
@pytest.mark.parametrize(("count", "groups"), [(4, 2), (1, 1), (6, 3)])
def test_loss_gradient_and_logits_equal_autograd(name, shape, options, count, groups):
    network = batched_network_for(name, shape, 4, **options)
    reference = BatchedModule(network.build)
    weights, (x, y) = members(network, count), batch(shape, groups)
    if name.startswith("resnet"):
        weights += 0.1 * torch.randn(weights.shape)  # the scales and shifts of a fresh normalisation are all equal
        weights, x = weights.double(), x.double()  # many normalised layers make much of rounding
    loss, gradient = network.loss_and_gradient(weights, x, y)
    expected_loss, expected_gradient = reference.loss_and_gradient(weights, x, y)
    # single precision, sums over at most a few thousand products
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(network.logits(weights, x), reference.logits(weights, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("members_per_call", [1, 2, 4, 100])
@pytest.mark.parametrize("images_per_call", [1, 2, 7])
@pytest.mark.parametrize("residual", [False, True])
def test_the_pieces_add_up_however_the_work_is_cut(members_per_call, images_per_call, residual):
    uncut = batched_network_for("cnn", (1, 8, 8), 4, channels=4, depth=2, residual=residual)
    cut = BatchedConvolution(uncut.build)
    cut.members_per_call, cut.images_per_call = members_per_call, images_per_call
    weights, (x, y) = members(uncut, 6), batch((1, 8, 8), 3)
    for ours, theirs in zip(cut.loss_and_gradient(weights, x, y), uncut.loss_and_gradient(weights, x, y)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(cut.logits(weights, x), uncut.logits(weights, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_activations_are_channels_last_whatever_the_number_of_channels(channels):
    # With one channel torch takes them for the other format, which is half as fast.
    network = batched_network_for("cnn", (channels, 8, 8), 4, channels=4, depth=2)
    weights, (x, _) = members(network, 2), batch((channels, 8, 8), 1)
    _, activations, indices, _ = network._forward(network.views(weights), x)
    assert all(activation.stride(1) == 1 for activation in (*activations, indices))
    outputs = []
    network.module.convolutions[-1].register_forward_hook(lambda _, inputs, output: outputs.append(output))
    network.module(x[0])
    assert outputs[0].stride(1) == (1 if channels == 1 else 64)  # a plain network of more channels is left as it is


def test_ties_in_a_pooling_window_go_where_autograd_sends_them():
    # A blank image makes every window a tie; the first pixel of a window must get the gradient, as in torch.
    network = batched_network_for("cnn", (1, 8, 8), 4, channels=4, depth=2)
    weights, y = members(network, 2), torch.randint(4, (1, 5))
    weights += 0.1  # so that some units are active on a blank image
    x = torch.zeros(1, 5, 1, 8, 8)
    ours, theirs = (k.loss_and_gradient(weights, x, y)[1] for k in (network, BatchedModule(network.build)))
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "shape", "options"), [*NETWORKS[:5], *RESIDUAL])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_member_that_is_not_finite_leaves_the_others_bit_for_bit(name, shape, options, bad):
    network = batched_network_for(name, shape, 4, **options)
    weights, (x, y) = members(network, 4), batch(shape, 2)
    loss, gradient = network.loss_and_gradient(weights, x, y)
    broken = weights.clone()
    broken[1] = bad
    others = [0, 2, 3]
    new_loss, new_gradient = network.loss_and_gradient(broken, x, y)
    assert torch.equal(new_loss[others], loss[others])
    assert torch.equal(new_gradient[others], gradient[others])


def test_initial_weights_are_those_of_the_constructor_and_leave_the_global_stream_alone():
    network = batched_network_for("cnn", (1, 8, 8), 4, channels=4, depth=1)
    before = torch.get_rng_state()
    drawn = network.initial(7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    module = network.build()
    assert torch.equal(drawn, torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert not torch.equal(drawn, network.initial(8))
    views = network.views(drawn[None])  # in the order of the parameters, which share the buffer
    assert all(torch.equal(views[name][0], p) for name, p in module.named_parameters())
    views["linear.1.bias"].fill_(3.0)
    assert (drawn[-4:] == 3.0).all()


def test_other_networks_go_through_autograd():
    network = batched_network_for("lenet", (1, 12, 12), 4)
    assert type(network) is BatchedModule
    weights, (x, y) = members(network, 2), batch((1, 12, 12), 1)
    loss, gradient = network.loss_and_gradient(weights, x, y)
    for member in range(2):
        module = network.build()
        torch.nn.utils.vector_to_parameters(weights[member], module.parameters())
        expected = torch.nn.functional.cross_entropy(module(x[0]), y[0])
        torch.testing.assert_close(loss[member], expected)
        slopes = torch.cat([g.flatten() for g in torch.autograd.grad(expected, list(module.parameters()))])
        torch.testing.assert_close(gradient[member], slopes)
