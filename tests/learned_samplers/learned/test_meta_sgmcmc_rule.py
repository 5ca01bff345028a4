"""The Meta-SGMCMC rule: its equations, and what its networks may be."""

import math

import pytest
import torch

from learned_samplers.learned.meta_fields import (
    split_meta_network,
)
from learned_samplers.learned.meta_sgmcmc import MetaSGMCMCSettings, meta_sgmcmc_rule
from tests.learned_samplers.learned.cases import meta_network, phi_of
from tests.learned_samplers.learned.flat_keywords import keywords

meta_sgmcmc_rule = keywords(meta_sgmcmc_rule, MetaSGMCMCSettings)


def state(chains=5, size=3, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x, g, xi, r = (torch.randn(chains, size, generator=generator, dtype=torch.float64) for _ in range(4))
    return x, g, xi, r, torch.rand(chains, generator=generator, dtype=torch.float64) * 4


SETTINGS = dict(lr=0.1, num_data=3.0, temperature=0.7, prior_precision=0.5, momentum_decay=0.2, gradient_scale=0.4)


def by_hand(phi, theta, r, theta_energy, slope, q_clip=5.0, a_clip=1.0):
    """Q and A of each coordinate from two separate networks, written out; slopes are those of the energy."""
    curl, friction = split_meta_network(phi)

    def through(layers, x):
        for i, (w, b) in enumerate(layers):
            x = torch.einsum("oi,i...->o...", w, x) + b.reshape(-1, *[1] * (x.dim() - 1))
            x = x.clamp(min=0) if i < len(layers) - 1 else x
        return x[0]

    n, a = SETTINGS["num_data"], SETTINGS["momentum_decay"]
    u = (theta_energy * 1.5 / n).unsqueeze(-1).expand(r.shape)
    f_q = through(curl, torch.stack([u, r]))
    f_d = through(friction, torch.stack([u, r, slope * 0.4 / n]))
    q = (1.0 + 0.8 * f_q).clamp(-q_clip, q_clip)
    return q, (a * (q**2 + 0.6 * f_d)).clamp(0, a_clip)


@pytest.mark.parametrize("hidden", [(8,), (6, 4)])
@pytest.mark.parametrize("clips", [(5.0, 1.0), (1.2, 0.25)])
def test_the_rule_is_its_equations(hidden, clips):
    """Q, A and Γ by central differences of a network written out, where U is known as a function of θ."""
    phi, (x, _, xi, r, _) = phi_of(meta_network(hidden=hidden)), state(40)
    mix = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    n, prior, heat = SETTINGS["num_data"], SETTINGS["prior_precision"], SETTINGS["temperature"]

    def mean_loss(theta):
        return torch.cos(theta @ mix).sum(-1) + 0.3 * theta.square().sum(-1)

    def energy(theta):
        return n * mean_loss(theta) + 0.5 * prior * theta.square().sum(-1)

    g = torch.func.grad(lambda t: mean_loss(t).sum())(x)
    slope = n * g + prior * x
    options = dict(zip(("q_clip", "a_clip"), clips, strict=True))
    scales = dict(curl_scale=0.8, friction_scale=0.6, energy_scale=1.5)
    scales |= dict(curl_clip=clips[0], friction_clip=clips[1])
    new = meta_sgmcmc_rule(x, g, xi, r, energy=energy(x), phi=phi, **scales, **SETTINGS)
    h = 1e-6

    def fields(theta, r):
        return by_hand(phi, theta, r, energy(theta), slope, **options)

    eps = math.sqrt(SETTINGS["lr"] / n)
    q, damping = fields(x, r)
    q_theta = torch.zeros_like(x)
    for i in range(3):  # the network sees ∂U as it was; only U moves with θ
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = h
        q_theta[:, i] = (fields(x + step, r)[0] - fields(x - step, r)[0])[:, i] / (2 * h)
    a_r = (fields(x, r + h)[1] - fields(x, r - h)[1]) / (2 * h)
    spread = (2 * damping * heat).sqrt()
    r_new = r - damping * r - eps * q * slope + heat * (eps * q_theta + a_r) + spread * xi
    q_new = fields(x, r_new)[0]
    q_r = (fields(x, r_new + h)[0] - fields(x, r_new - h)[0]) / (2 * h)
    torch.testing.assert_close(new[1], r_new, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(new[0], x + eps * (q_new * r_new - heat * q_r), rtol=1e-5, atol=1e-6)


def test_the_settings_of_the_published_code_are_those_of_the_paper():
    """η = √(.007/N), D = (.01/η)·Q² + 50·f_D: lr 0.007, a 0.01, s_D = 50·η/.01, and its clip of 1,000 is 1,000·η."""
    n, k, network = 60_000.0, 50.0, meta_network()
    eta = math.sqrt(0.007 / n)
    generator = torch.Generator().manual_seed(0)
    r, zero = torch.randn(9, generator=generator, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    *hidden, (weight, bias) = phi_of(network)  # its β is 0, and ours 1
    phi = [*hidden, (weight, bias - torch.tensor([1.0, 0.0], dtype=bias.dtype))]
    at = dict(lr=0.007, num_data=n, temperature=1e-300, prior_precision=0.0, momentum_decay=0.01, phi=phi)
    scales = dict(gradient_scale=70.0)
    scales |= dict(friction_scale=k * eta / 0.01, friction_clip=1000 * eta)
    energy = torch.tensor(n * 1.3, dtype=r.dtype)
    moved = meta_sgmcmc_rule(zero, zero, zero, r, energy=energy, **at, **scales)[1]
    f_q, f_d = network(torch.stack([torch.full_like(r, 1.3), r, zero], -1)).detach().unbind(-1)
    friction = (0.01 / eta * f_q.clamp(-5, 5) ** 2 + k * f_d).clamp(min=0).clamp(max=1000)
    torch.testing.assert_close(moved, r - eta * friction * r, rtol=1e-10, atol=1e-12)
