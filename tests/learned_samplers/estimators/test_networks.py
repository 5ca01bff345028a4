"""Networks of the estimators: first weights as torch's, from a generator of their own."""

import torch
from torch import nn

from learned_samplers.estimators.networks import SharedNoise, perceptron


def test_the_first_weights_are_torchs_own_and_the_generators_alone():
    torch.manual_seed(3)
    expected = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = torch.get_rng_state()
    network = perceptron([4, 8, 2], "relu", torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    for p, q in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q)
    assert str(network) == str(expected)


def test_networks_do_not_share_their_last_layers():
    shared = (SharedNoise(2),)
    first, second = (perceptron([3, 2], "tanh", torch.Generator().manual_seed(0), shared) for _ in range(2))
    with torch.no_grad():
        first[-1].raw.fill_(1.0)
    outputs = second(torch.zeros(5, 3))
    assert outputs.shape == (5, 4)
    assert not outputs[:, 2:].any()
