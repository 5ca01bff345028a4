"""A step inside ``torch.autocast`` is that outside: the closure alone is computed as the user says."""

import pytest
import torch
from torch import nn

from learned_samplers.particles import (
    FSVGD,
    SVGD,
    FittedPrior,
    GaussianProcessPrior,
    network_draws,
    squared_exponential,
)
from tests.learned_samplers.particles.particle_problems import EVERY, SEVERAL, TwoHeads, energies, parameter

HALF = [torch.bfloat16, torch.float16]


def autocast(dtype):
    return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def precisely(closure):
    def compute():
        with autocast(None):
            return closure()

    return compute


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [*EVERY, "FSVGD", "features"])
def test_its_matrix_products_are_not_rounded(name, dtype):
    after = []
    for inside in (None, dtype):
        net, x = TwoHeads(4), parameter(4, 30)
        tensors = [x]
        if name == "FSVGD":
            sampler = FSVGD([x], 0.1, 10)
            w = torch.randn(30, 7, generator=torch.Generator().manual_seed(1))

            def closure(x=x, w=w):
                outputs = x @ w
                return (outputs - 1).square().mean(1), outputs, -outputs.square().sum(1)

        elif name in SEVERAL:
            sampler, closure = SEVERAL[name](net.groups(), 0.1, num_data=8), net.losses
            tensors = [*net.trunk, *(p for head in net.heads for p in head)]
        else:
            sampler = SVGD([x], 0.1, num_data=8, kernel_on="features" if name == "features" else "parameters")

            def closure(x=x, name=name):
                losses = x.square().sum(1)
                return (losses, x.tanh() @ torch.ones(30, 5)) if name == "features" else losses

        with autocast(inside):
            for _ in range(3):
                sampler.step(precisely(closure))
        after.append([p.detach().clone() for p in tensors])
    for ours, theirs in zip(*after, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("cls", [SVGD, FSVGD])
def test_what_the_closure_computed_in_half_precision_is_not_rounded_further(cls):
    after = []
    for wide in (False, True):
        x = parameter(6, 8)
        w = torch.randn(8, 9, generator=torch.Generator().manual_seed(1))

        def closure(x=x, w=w, wide=wide):
            outputs = x @ w
            assert outputs.dtype == torch.bfloat16
            outputs = outputs.float() if wide else outputs
            # The gradient of the first by the outputs is the same number in either precision.
            losses = outputs.sum(1) / 128 if cls is FSVGD else energies("MTSGD", x[:, :2])[0]
            return losses, outputs

        sampler = cls([x], 0.1, 8, **({"kernel_on": "features"} if cls is SVGD else {}))
        with autocast(torch.bfloat16):
            sampler.step(closure)
        after.append(x.detach().clone())
    assert torch.equal(*after)


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).to(dtype)


def fitted(seed):
    g, h = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    return FittedPrior(network_draws(network(), 1.0, generator=g), generator=h)


PRIORS = {
    "gp": lambda seed: GaussianProcessPrior(squared_exponential(0.5)),
    "gp of products": lambda seed: GaussianProcessPrior(lambda x, y: x @ y.mT + (x**2) @ (y**2).mT),
    "fitted": fitted,
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_in_the_closure_is_that_outside_autocast(name, dtype):
    """A covariance of 8 bits has lost its jitter: log p(f) was 12.8 for 21.5, and the score had nothing of it."""
    x = torch.linspace(-2, 2, 20)[:, None]
    for seed in range(10):
        with autocast(dtype):
            outputs = torch.stack([network()(x * (m + 1))[:, 0] for m in range(4)]).detach()
        assert outputs.dtype == dtype
        results = []
        for inside, values in ((dtype, outputs), (None, outputs.float()), (dtype, outputs.float())):
            leaf = values.clone().requires_grad_()
            with autocast(inside):
                log_density = PRIORS[name](seed).log_density(x, leaf)
            results.append((log_density.detach(), torch.autograd.grad(log_density.sum(), leaf)[0]))
        half, (density, score), wide = results
        assert density.dtype == half[0].dtype == torch.float32
        assert torch.equal(half[0], density)
        assert torch.equal(half[1], score.to(dtype))  # the outputs' own precision
        assert torch.equal(wide[0], density)
        assert torch.equal(wide[1], score)
    if name != "gp of products":  # which is singular then: inputs may be in half precision too
        with autocast(dtype):
            results = PRIORS[name](1).log_density(x.to(dtype), outputs.float())
        torch.testing.assert_close(results, PRIORS[name](1).log_density(x.to(dtype).float(), outputs.float()))


def test_draws_of_a_network_in_half_precision_take_wider_inputs():
    network = nn.Linear(3, 2).to(torch.bfloat16)
    draws = network_draws(network, 1.0)
    with autocast(torch.bfloat16):
        assert draws(torch.randn(5, 3), 4).shape == (4, 5, 2)
    assert network_draws(nn.Linear(3, 2), 1.0)(torch.randn(5, 3, dtype=torch.float64), 4).dtype == torch.float32
