"""MOO-SVGD against its definition."""

import pytest
import torch

from learned_samplers.particles import MOOSVGD, RBF
from learned_samplers.particles.directions import weighted
from learned_samplers.particles.target_weights import mgda_weights
from tests.learned_samplers.particles.particle_problems import energies, parameter

DOUBLE = torch.float64


@pytest.mark.parametrize("kernel_on", ["losses", "parameters"])
def test_moo_svgd_against_its_definition(kernel_on):
    """The repulsion of losses is the derivative of the kernel's sum, by autograd."""
    x = parameter(5, 2, dtype=DOUBLE)
    before = x.detach().clone().requires_grad_()
    losses = energies("MOOSVGD", before)
    z = losses.T if kernel_on == "losses" else before
    sigma = 0.7
    k = torch.exp(-(z[:, None] - z.detach()[None]).square().sum(-1) / (2 * sigma**2))
    push = -torch.autograd.grad(k.sum(), before, retain_graph=True)[0]
    gradients = torch.stack([torch.autograd.grad(v.sum(), before, retain_graph=True)[0] for v in losses])
    gradients = 10 * gradients + 3 * before.detach()
    sampler = MOOSVGD([x], 0.1, 10, kernel=RBF(sigma), kernel_on=kernel_on, prior_precision=3.0, temperature=0.8)
    sampler.step(lambda: energies("MOOSVGD", x))
    descended = weighted(gradients, mgda_weights(gradients))
    phi = (-k.detach() @ descended + 0.8 * push) / 5
    torch.testing.assert_close(x.detach(), before.detach() + 0.01 * phi)
