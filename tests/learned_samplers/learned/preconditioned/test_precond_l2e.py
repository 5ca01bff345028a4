"""Precond-L2E: SGHMC when untrained, and its law with and without the correction."""

from __future__ import annotations

import math

import pytest
import torch

from learned_samplers import SGHMC
from learned_samplers.base.segments import Segments
from learned_samplers.learned.network import build_network
from learned_samplers.learned.preconditioned import PreconditionedSettings, l2e_precond_rule
from tests.learned_samplers.learned.cases import chain, phi_of
from tests.learned_samplers.learned.flat_keywords import PrecondL2E, keywords

l2e_precond_rule = keywords(l2e_precond_rule, PreconditionedSettings)


def looks_at(columns, seed, scale):
    """A network that sees only some of the paper's features (1: θ, 2: r), with smooth enough outputs."""
    generator = torch.Generator().manual_seed(seed)
    module = build_network("paper", (16, 16), zero_last=False, generator=generator)
    hidden = [i for i in range(9) if i not in columns]
    with torch.no_grad():
        module[0].weight[:, hidden] = 0
        module[0].bias.normal_(generator=generator)
        module[-1].weight.mul_(scale)
    return module


def absolute_value(column, curl, friction):
    """A network with q = curl·|x| and d = friction·|x| of one feature x."""
    module = build_network("paper", (2,))
    with torch.no_grad():
        module[0].weight.zero_()
        module[0].weight[:, column] = torch.tensor([1.0, -1.0])
        module[-1].weight.copy_(torch.tensor([[curl, curl], [friction, friction]]))
    return module


@pytest.mark.parametrize("correction", ["none", "network"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0, "prior_precision": 2.0, "momentum_decay": 1.0}])
def test_untrained_it_is_sghmc_to_rounding(correction, options):
    ours, _ = chain(lambda p: PrecondL2E(p, 0.2, 100, correction=correction, **options))
    theirs, _ = chain(lambda p: SGHMC(p, 0.2, 100, **options))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    trained, _ = chain(lambda p: PrecondL2E(p, 0.2, 100, network=looks_at({0, 1, 2}, 0, 1.0)))
    assert not torch.allclose(trained, theirs)


def test_the_correction_is_the_divergence_of_q_and_d_by_finite_differences():
    """With the gradient zero and no noise drawn, r moves by −aDr and Γ alone."""
    module = looks_at({1, 2}, 0, 1.0).double()
    phi = phi_of(module)
    lr, n, a, heat = 0.3, 50.0, 0.2, 0.6
    eps, count = math.sqrt(lr / n), 400
    generator = torch.Generator().manual_seed(3)
    theta, r = (torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(2))
    settings = dict(
        phi=phi, segments=Segments((count,)), lr=lr, num_data=n, prior_precision=0.0, momentum_decay=a, temperature=heat
    )
    zeros, averages = torch.zeros(count).double(), torch.zeros(6, count).double()

    def move(correction):
        return l2e_precond_rule(theta, zeros, zeros, r, averages, correction=correction, **settings)

    # An independent D, Q: the network on hand-made features, with the tensors' scales fixed at the state's own.
    scale = [1e-5 + x.square().mean() for x in (theta, r)]

    def outputs(theta, r, scales=None):
        s = scales or scale
        x = torch.zeros(count, 9).double()
        x[:, 1], x[:, 2] = theta / s[0].sqrt(), r / s[1].sqrt()
        q, d = module(x).T
        return q.exp().clamp(1 / 5, 5), d.exp().clamp(1 / 100, 100).clamp(max=1 / a)

    h = 1e-6
    with torch.no_grad():
        q_theta = (outputs(theta + h, r)[0] - outputs(theta - h, r)[0]) / (2 * h)
        d_r = (outputs(theta, r + h)[1] - outputs(theta, r - h)[1]) / (2 * h)
        plain = r - a * outputs(theta, r)[1] * r
        expected = plain + heat * (eps * q_theta + a * d_r)
        torch.testing.assert_close(move("none")[1], plain, rtol=1e-9, atol=1e-12)
        r_new = move("network")[1]
        torch.testing.assert_close(r_new, expected, rtol=1e-6, atol=1e-7)
        s = [scale[0], 1e-5 + r_new.square().mean()]
        q_r = (outputs(theta, r_new + h, s)[0] - outputs(theta, r_new - h, s)[0]) / (2 * h)
        velocity = outputs(theta, r_new, s)[0] * r_new - heat * q_r
    torch.testing.assert_close(move("network")[0], theta + eps * velocity, rtol=1e-6, atol=1e-8)


def stationary(correction, module, lr=0.0025, a=0.025, k=100.0, chains=1000, steps=400):
    """k·Var θ and Var r on a Gaussian, T = 1, from the quantiles of the target."""
    n = 100.0
    phi = phi_of(module)
    generator = torch.Generator().manual_seed(1)
    quantiles = torch.special.ndtri((torch.arange(chains) + 0.5) / chains)
    theta, r = (quantiles[torch.randperm(chains, generator=generator)] for _ in range(2))
    theta, averages = theta / math.sqrt(k), torch.zeros(6, chains)
    at = dict(phi=phi, segments=Segments((chains,)), lr=lr, num_data=n, momentum_decay=a, correction=correction)
    at |= dict(temperature=1.0, prior_precision=0.0)
    moments = torch.zeros(2, dtype=torch.float64)
    for i in range(steps):
        noise = torch.randn(chains, generator=generator)
        theta, r, averages = l2e_precond_rule(theta, theta * (k / n), noise, r, averages, **at)
        if i >= steps // 4:
            moments += torch.stack([k * theta.square().mean(), r.square().mean()]).double()
    return (moments / (steps - steps // 4)).tolist()


@pytest.mark.parametrize(("column", "curl", "friction"), [(1, 0.3, 0.0), (1, 0.3, -0.3), (2, 0.0, -0.5), (2, 0.3, 0.3)])
def test_without_the_correction_the_law_moves_and_with_it_it_does_not(column, curl, friction):
    """Mutation test: a Q and D of θ (or of r) alone, for which the correction is all of Γ."""
    module = absolute_value(column, curl, friction)
    right, wrong = (max(abs(x - 1) for x in stationary(c, module)) for c in ("network", "none"))
    assert right < 0.05
    assert wrong > 0.15
