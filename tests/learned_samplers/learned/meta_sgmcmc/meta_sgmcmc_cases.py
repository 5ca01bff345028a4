"""Networks and a short chain for the tests of MetaSGMCMC."""

from __future__ import annotations

import torch
from torch import nn

from learned_samplers.learned.meta_fields import build_meta_network
from learned_samplers.learned.network import layers_of
from tests.harness import flat, small_data, small_network

N = 50.0


def network(seed=0, scale=1.0, dtype=torch.float64, hidden=(6,)):
    generator = torch.Generator().manual_seed(seed)
    module = build_meta_network(hidden, zero_last=False, generator=generator)
    with torch.no_grad():
        module[0].bias.normal_(generator=generator)
        module[-1].weight.mul_(scale)
    return module.to(dtype)


def run(make, steps=12, groups=False):
    model = small_network().double()
    params = list(model.parameters())
    sampler = make([{"params": params[:1]}, {"params": params[1:]}] if groups else params)
    torch.manual_seed(1)
    x, y = small_data()

    def closure():
        sampler.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        return loss

    for _ in range(steps):
        sampler.step(closure)
    return flat(model)


def random_phi(seed, hidden=(8,), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    network = build_meta_network(hidden, zero_last=False, generator=generator, dtype=torch.float32)
    with torch.no_grad():
        network[0].bias.normal_(generator=generator)
    return [(w.detach().to(dtype), b.detach().to(dtype)) for w, b in layers_of(network)]
