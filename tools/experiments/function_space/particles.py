"""A step of each method on networks side by side: f-SVGD, SVGD, ensembles, SGHMC; and HMC over all data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learned_samplers import FSVGD, HMC, SGHMC, SVGD, Sampler
from learned_samplers.particles import LinearScalarisation
from learned_samplers.particles.kernels import Kernel
from meta_tasks.progress import progress

Step = Callable[[Tensor, Tensor], object]


class Networks:
    """P networks side by side, as the methods see them; an experiment says their outputs and losses.

    Attributes:
        params: tensors whose first axis is P.
        num_data: N of the posterior.
        prior_precision: of the normal prior on every weight.
        kernel: between particles; None is that of the sampler.
    """

    params: list[Tensor]
    num_data: int
    prior_precision: float = 1.0
    kernel: Kernel | None = None

    def outputs(self, x: Tensor) -> Tensor:
        """(P, n, ...)."""
        raise NotImplementedError

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood of each network, (P,)."""
        raise NotImplementedError

    def groups(self) -> Any:
        """Parameters of f-SVGD, whose prior is on functions."""
        return self.params

    def measured(self, x: Tensor) -> Tensor:
        """Inputs at which f-SVGD compares functions; the first are ``x``."""
        raise NotImplementedError

    def density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """f-SVGD's log-prior of the functions, (P,)."""
        raise NotImplementedError

    def energies(self, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(self.outputs(x), y)


def stepper(method: str, networks: Networks, lr: float) -> tuple[Sampler, Step]:
    """The sampler of a method, and its step on a minibatch. PlainEnsemble is the deep ensemble without prior."""
    params, count = networks.params, networks.num_data
    prior: dict[str, Any] = {"prior_precision": 0.0 if method == "PlainEnsemble" else networks.prior_precision}
    adam: dict[str, Any] = {"base_optimizer": torch.optim.Adam}
    sampler: Sampler
    if method.startswith("FSVGD"):
        sampler = FSVGD(networks.groups(), lr, count, kernel=networks.kernel, **adam)

        def closure(x: Tensor, y: Tensor) -> Any:
            inputs = networks.measured(x)
            outputs = networks.outputs(inputs)
            return networks.losses(outputs[:, : len(x)], y), outputs, networks.density(inputs, outputs)
    elif method == "SVGD":
        sampler, closure = SVGD(params, lr, count, kernel=networks.kernel, **prior, **adam), networks.energies
    elif method == "SGHMC":
        sampler = SGHMC(params, lr, count, **prior)

        def step(x: Tensor, y: Tensor) -> None:
            sampler.zero_grad()
            networks.energies(x, y).sum().backward()
            sampler.step()

        return sampler, step
    else:
        sampler = LinearScalarisation(params, lr, count, **prior, **adam)

        def closure(x: Tensor, y: Tensor) -> Any:
            return networks.energies(x, y)[None]

    return sampler, lambda x, y: sampler.step(lambda: closure(x, y))


def hmc(
    networks: Networks,
    lr: float,
    x: Tensor,
    y: Tensor,
    state: Callable[[], Any],
    trajectories: tuple[int, int, int],
    **how: Any,
) -> tuple[list[Any], float]:
    """States of chains of HMC, and their acceptance rate; trajectories: of adaptation, after it, and between states."""
    burn_in, count, thinning = trajectories
    how |= {"adapt_steps": burn_in, "prior_precision": networks.prior_precision}
    sampler = HMC(networks.params, lr, networks.num_data, **how)

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = networks.energies(x, y)
        losses.sum().backward()
        return losses.detach()

    states = []
    for number in progress(range(1, burn_in + count + 1), desc="HMC", unit="trajectory", leave=False):
        sampler.step(closure)
        if number > burn_in and (number - burn_in) % thinning == 0:
            states.append(state())
    return states, sampler.acceptance_rate
