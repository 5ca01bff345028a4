"""Kernels of other libraries: the real ones where they are installed, and a stand-in of the form of posteriors."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from learned_samplers.checks.adapters import jax_kernel, numpyro_kernel, posteriors_transform
from learned_samplers.checks.law import Law

FEW = dict(chains=2000, steps=300, tolerance=0.03)


class State(NamedTuple):
    params: torch.Tensor


def langevin(log_posterior, lr, heat=1.0):
    """A transform in the form of `posteriors`, whose update is SGLD's."""

    def update(state, batch):
        gradient, _ = torch.func.grad(log_posterior, has_aux=True)(state.params, batch)
        noise = math.sqrt(2 * lr * heat) * torch.randn_like(state.params)
        return State(state.params + lr * gradient + noise), None

    return SimpleNamespace(init=State, update=update)


def test_a_transform_of_the_form_of_posteriors():
    report = Law().holds(posteriors_transform(langevin, "langevin"), lr=0.05, **FEW)
    assert report.sampler == "langevin"
    assert report.rows[2].bias == pytest.approx(1 / (1 - 0.05 * 10 / 2) - 1, abs=0.05)
    with pytest.raises(AssertionError, match="biased"):
        Law().holds(posteriors_transform(lambda u, lr: langevin(u, lr, heat=1.2)), lr=0.05, **FEW)


def test_posteriors():
    posteriors = pytest.importorskip("posteriors")
    assert Law().holds(posteriors_transform(posteriors.sgmcmc.sgld.build), lr=0.05, **FEW)


def test_blackjax():
    blackjax, jax = pytest.importorskip("blackjax"), pytest.importorskip("jax")
    hmc = jax_kernel(lambda logdensity, lr: blackjax.hmc(logdensity, lr, jax.numpy.ones(3), 10))
    assert Law().holds(hmc, "exact", lr=0.1, **FEW)

    def sgld(temperature):
        def build(logdensity, lr):
            algorithm = blackjax.sgld(lambda x, batch: jax.grad(logdensity)(x))
            return SimpleNamespace(
                init=algorithm.init, step=lambda key, x: algorithm.step(key, x, None, lr, temperature)
            )

        return jax_kernel(build)

    assert Law().holds(sgld(1.0), lr=0.05, **FEW)
    with pytest.raises(AssertionError, match="biased"):
        Law().holds(sgld(1.2), lr=0.05, **FEW)


def test_numpyro():
    infer = pytest.importorskip("numpyro.infer")
    fixed = dict(trajectory_length=0.5, adapt_step_size=False, adapt_mass_matrix=False)
    kernel = numpyro_kernel(lambda potential, lr: infer.HMC(potential_fn=potential, step_size=lr, **fixed))
    assert Law().holds(kernel, "exact", lr=0.1, **FEW)
