"""Small chains of `AdaptedSGHMC` for the tests of its parts: what warms up, what is measured, what samples."""

import functools

import pytest
import torch

from learned_samplers import L2E, SGHMC, AdaptedSGHMC, WhitenedSGHMC

N = 100
#: Condition number 1e4.
CURVATURES = torch.logspace(0, 4, 5, dtype=torch.float64)
#: Four steps explore, two settle; cycles of nine.
PHASES, LENGTH = dict(warmup_steps=6, settling_share=0.34), 9
WARMUPS = {
    "none": None,
    "sghmc": functools.partial(SGHMC, lr=0.02),
    "whitened": WhitenedSGHMC,
    "l2e": L2E,
    "l2e, its own rate": functools.partial(L2E, network="l2e", lr=0.003),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.003, weight_decay=0.01),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
}
EVERY_WARMUP = pytest.mark.parametrize("warmup", WARMUPS)
THREE_WARMUPS = pytest.mark.parametrize("warmup", ["none", "whitened", "adam"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def adapted(params, warmup="none", **settings):
    """A chain at lr 0.02 with a diagonal mass."""
    settings = {**PHASES, "eps": 0.01, "mass": "diagonal", **settings}
    return AdaptedSGHMC(params, 0.02, N, warmup=WARMUPS[warmup], **settings)


def drawn(shape, seed, dtype=torch.float32):
    """A normal draw of its own generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gaussians(make, *, steps, skip, coordinates=4000, seed=0):
    """Variances over the curvatures' target, one tensor a curvature, from exact draws on; the sampler, too."""
    torch.manual_seed(seed)
    params = [(torch.randn(coordinates) / k.sqrt().float()).requires_grad_() for k in CURVATURES]
    sampler = make(params)
    total = torch.zeros(len(params))
    for step in range(steps):
        for p, k in zip(params, CURVATURES, strict=True):
            p.grad = k.float() * p.detach() / N
        sampler.step()
        if step >= skip:
            total += torch.stack([p.detach().square().mean() for p in params]) * CURVATURES.float()
    return total / (steps - skip), sampler
