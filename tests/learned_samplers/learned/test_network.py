"""The network on every coordinate, its weights as a vector, and modules that are no such network."""

import pytest
import torch

from learned_samplers.learned.network import apply_network, build_network, flatten, layers_of, shapes_of, unflatten


def test_apply_network_is_the_module_on_each_coordinate():
    module = build_network("paper", zero_last=False, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert sum(p.numel() for p in module.parameters()) == 1442  # Appendix I: 9 → 32 → 32 → 2
    x = torch.randn(9, 68, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alpha, beta = apply_network(layers_of(module), x)
    expected = module(x.T).T
    torch.testing.assert_close(torch.stack([alpha, beta]), expected, rtol=1e-12, atol=1e-14)


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
