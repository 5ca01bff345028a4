"""The network on every coordinate, its weights as a vector, and modules that are no such network."""

import pytest
import torch
from torch import nn

from learned_samplers.learned.network import (
    apply_network,
    build_network,
    flatten,
    layers_of,
    shapes_of,
    unflatten,
)


def test_apply_network_is_the_module_on_each_coordinate():
    module = build_network("paper", zero_last=False, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert sum(p.numel() for p in module.parameters()) == 1442  # Appendix I: 9 → 32 → 32 → 2
    x = torch.randn(9, 68, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alpha, beta = apply_network(layers_of(module), x)
    expected = module(x.T).T
    torch.testing.assert_close(torch.stack([alpha, beta]), expected, rtol=1e-12, atol=1e-14)
    bounded = apply_network(layers_of(module), x, output_bound=0.01)
    assert max(y.abs().max() for y in bounded) <= 0.01
    torch.testing.assert_close(bounded[0], 0.01 * torch.tanh(expected[0] / 0.01), rtol=1e-12, atol=1e-14)


def test_flatten_and_unflatten_are_inverse():
    stream = torch.Generator().manual_seed(0)
    shapes = ((32, 9), (32, 32), (2, 32))
    phi = [(torch.randn(3, *s, generator=stream), torch.randn(3, s[0], generator=stream)) for s in shapes]
    vector = flatten(phi)
    for (w, b), (w2, b2) in zip(phi, unflatten(vector, shapes_of(phi)), strict=True):
        assert torch.equal(w, w2)
        assert torch.equal(b, b2)
    with pytest.raises(ValueError, match="vector must have"):
        unflatten(vector[:, 1:], shapes_of(phi))


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (3, TypeError, "network must be an nn.Module, got int"),
        (nn.ReLU(), ValueError, "network must have nn.Linear layers"),
        (nn.Sequential(nn.Linear(9, 4), nn.Linear(5, 2)), ValueError, "layer 1 takes 5 values, layer 0 gives 4"),
        (nn.Sequential(nn.Linear(9, 2, bias=False)), ValueError, "layer 0 must have a bias"),
    ],
)
def test_modules_that_are_no_such_network(network, error, message):
    with pytest.raises(error, match=message):
        layers_of(network)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)], r"layer 1 is Tanh\(\)"),
        ([nn.Linear(3, 4), nn.Linear(4, 2)], "layer 1 is Linear"),
        ([nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU(), nn.Dropout()], "layer 4 is Dropout"),
    ],
)
def test_other_layers_than_the_rule_computes_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        layers_of(nn.Sequential(*layers))


def test_a_layer_that_stands_twice_is_refused():
    same = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="each there once"):
        layers_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), same, nn.ReLU(), same))
