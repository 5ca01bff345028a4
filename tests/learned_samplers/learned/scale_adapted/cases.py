"""Networks and states for the tests of ScaleAdaptedL2E."""

import torch

from learned_samplers.base.segments import Segments
from learned_samplers.learned.network import build_network, layers_of

N = 100
LENGTHS = (40, 3, 25)
SEGMENTS = Segments(LENGTHS)
HYPER = dict(lr=0.02, num_data=300.0, temperature=0.7, prior_precision=4.0, momentum_decay=0.1)


def network(scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    module = build_network("lean", (8, 8), 4, zero_last=False, generator=generator)
    with torch.no_grad():
        module[-1].weight.mul_(scale)
    return module


def phi_of(module):
    return [(w.detach().double(), b.detach().double()) for w, b in layers_of(module)]


def chain(steps_done=0, leading=()):
    generator = torch.Generator().manual_seed(1)

    def draw(*rows):
        return torch.randn(*leading, *rows, SEGMENTS.total, generator=generator, dtype=torch.float64)

    averages = 0.01 * draw(4) if steps_done else torch.zeros(*leading, 4, SEGMENTS.total, dtype=torch.float64)
    averages[..., 3, :] = averages[..., 3, :].abs()
    return [0.3 * draw(), 0.01 * draw(), draw(), draw(), averages, torch.zeros_like(draw())]
