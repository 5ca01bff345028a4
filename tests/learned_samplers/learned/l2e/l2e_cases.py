"""Networks and a short chain for the tests of L2E."""

from __future__ import annotations

import torch
from torch import nn

from learned_samplers.learned.network import build_network
from tests.harness import flat, small_data, small_network


def network(feature_set="paper", seed=0, outputs=2, **options):
    generator = torch.Generator().manual_seed(seed)
    return build_network(feature_set, (8, 8), outputs, zero_last=False, generator=generator, **options)


def chain(make, steps=15, seed=1, dtype=torch.float32):
    model = small_network().to(dtype)
    sampler = make(model.parameters())
    torch.manual_seed(seed)
    x, y = small_data()
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x.to(dtype)), y).backward()
        sampler.step()
    return flat(model), sampler
