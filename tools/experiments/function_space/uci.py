"""UCI regression by f-SVGD and what stands beside it: networks, training, scores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.function_space.networks import SeparateGroups, StackedMLP
from experiments.harness.methods import Method, by_name
from experiments.harness.uci_data import Standardised
from learned_samplers import FSVGD, HMC, SGHMC, SVGD
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.particles import RBF, FittedPrior, LinearScalarisation, measurement_set, regression_loss
from meta_tasks.progress import progress

#: HMC takes gradients over all rows: for sets with fewer than this many in all.
HMC_LIMIT = 2000
LOG_NOISE_AT_START = math.log(0.5)
#: At each step of f-SVGD: draws of ν, training inputs plus N(0, NOISE²), standardised.
EXTRA, NOISE = 20, 0.1


@dataclass(frozen=True)
class Protocol:
    """How every method is trained on a split.

    Attributes:
        particles: networks; chains of SGHMC.
        hidden: units of the hidden layer.
        small, large: minibatch and, of the other two numbers, steps or (if that is 0) epochs, for fewer than 1,000
            training rows and for more.
        states: states of each SGHMC chain that predict, evenly spaced over the second half of its run.
        hmc_chains, hmc_warmup, hmc_burn_in, hmc_trajectories, hmc_thinning, leapfrog_steps: chains a split; Adam steps
            before the first trajectory; trajectories of adaptation; further ones; how many of these a kept state; steps
            of each.
    """

    particles: int = 20
    hidden: int = 50
    small: tuple[int, int, int] = (100, 0, 500)
    large: tuple[int, int, int] = (1000, 0, 3000)
    states: int = 5
    hmc_chains: int = 4
    hmc_warmup: int = 500
    hmc_burn_in: int = 100
    hmc_trajectories: int = 100
    hmc_thinning: int = 5
    leapfrog_steps: int = 30

    def __post_init__(self) -> None:
        if self.hmc_trajectories < self.hmc_thinning:
            least, given = self.hmc_thinning, self.hmc_trajectories
            raise ValueError(f"hmc_trajectories must be at least {least}, or no state is kept, got {given}")

    def budget(self, num_data: int) -> tuple[int, int]:
        """Minibatch and steps."""
        batch, steps, epochs = self.small if num_data < 1000 else self.large
        batch = min(batch, num_data)
        return batch, steps or epochs * math.ceil(num_data / batch)


@dataclass
class Fit:
    """Predictions of K networks on the test rows: means (G, K, T), log σ (G, K), standardised; and what they cost."""

    outputs: Tensor
    log_noise: Tensor
    seconds: float = 0.0
    steps: int = 0
    acceptance_rate: float | None = None


class Networks:
    """P networks with a noise each on G splits, and the losses of all."""

    def __init__(self, data: Standardised, count: int, hidden: int):
        self.data, self.count = data, count
        self.mlp = StackedMLP((data.train_x.shape[2], hidden, 1))
        self.params = [layer.requires_grad_() for layer in self.mlp.draw(data.groups * count)]
        self.log_noise = torch.full((data.groups * count,), LOG_NOISE_AT_START).requires_grad_()
        self.everything = [*self.params, self.log_noise]

    def outputs(self, x: Tensor) -> Tensor:
        """(P, n) for inputs (n, G, d)."""
        return self.mlp(self.params, x.transpose(0, 1))[..., 0]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood, (P,), of outputs (P, B) for targets (B, G)."""
        groups = self.data.groups
        by_group = outputs.view(groups, self.count, -1), y.T, self.log_noise.view(groups, self.count)
        return torch.vmap(regression_loss)(*by_group).flatten()

    def energies(self, x: Tensor, y: Tensor) -> Tensor:
        return self.losses(self.outputs(x), y)

    @torch.no_grad()
    def state(self) -> tuple[Tensor, Tensor]:
        groups = self.data.groups
        outputs = self.outputs(self.data.test_x).view(groups, self.count, -1)
        return outputs.clone(), self.log_noise.detach().view(groups, self.count).clone()


def fit(method: str, data: Standardised, lr: float, protocol: Protocol, seed: int) -> Fit:
    """Train one method on all splits of ``data`` at once; they do not see each other.

    Raises:
        FloatingPointError: it diverged.
    """
    torch.manual_seed(seed)
    start = time.perf_counter()
    if method == "HMC":
        result = _hmc(data, lr, protocol)
    else:
        networks = Networks(data, protocol.particles, protocol.hidden)
        batch, steps = protocol.budget(data.num_data)
        keep = {steps}
        if method == "SGHMC":
            keep = {steps - k * (steps // 2) // protocol.states for k in range(protocol.states)}
        states = _minibatches(networks, METHODS[method].build(networks, lr), batch, steps, keep)
        result = Fit(*joined(states), steps=steps)
    result.seconds = time.perf_counter() - start
    if not (result.outputs.isfinite().all() and result.log_noise.isfinite().all()):
        raise FloatingPointError("the predictions are not finite")
    return result


Step = Callable[[Tensor, Tensor], object]


def _minibatches(networks: Networks, step: Step, batch: int, steps: int, keep: set[int]) -> list[tuple[Tensor, Tensor]]:
    states, data = [], networks.data
    for count in progress(range(1, steps + 1), unit="step", leave=False):
        index = torch.randint(data.num_data, (batch,))
        step(data.train_x[index], data.train_y[index])
        if count in keep:
            states.append(networks.state())
    return states


def joined(states: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The networks of several states side by side."""
    outputs, log_noise = (torch.cat(parts, dim=1) for parts in zip(*states, strict=True))
    return outputs, log_noise


def prior_by_group(prior: FittedPrior, inputs: Tensor, outputs: Tensor) -> Tensor:
    """A density of all splits' particles, (P,), whose gradient by the outputs (P, n) is that of each split's own prior.

    The splits, inputs (n, G, d), stand where a network has several outputs, which the prior takes as independent. The
    density of the particles at the same place in every split comes back G times, and is divided by G.
    """
    groups = inputs.shape[1]
    stacked = outputs.view(groups, -1, len(inputs)).permute(1, 2, 0)
    return prior.log_density(inputs, stacked).repeat(groups) / groups


def _fsvgd(networks: Networks, lr: float) -> Step:
    data, mlp = networks.data, networks.mlp

    def draws(inputs: Tensor, count: int) -> Tensor:
        return mlp(mlp.draw(count), inputs.flatten(0, 1)).view(count, len(inputs), data.groups)

    prior = FittedPrior(draws)
    params = [{"params": networks.params}, {"params": [networks.log_noise], "likelihood": True}]
    kernel = SeparateGroups(RBF(), data.groups)
    sampler = FSVGD(params, lr, data.num_data, kernel=kernel, base_optimizer=torch.optim.Adam)

    def step(x: Tensor, y: Tensor) -> None:
        def closure() -> tuple[Tensor, Tensor, Tensor]:
            inputs = measurement_set(x, data.train_x, EXTRA, scale=NOISE)
            outputs = networks.outputs(inputs)
            return networks.losses(outputs[:, : len(x)], y), outputs, prior_by_group(prior, inputs, outputs)

        sampler.step(closure)

    return step


def _svgd(networks: Networks, lr: float) -> Step:
    kernel = SeparateGroups(RBF(), networks.data.groups)
    common: Any = {"kernel": kernel, "prior_precision": 1.0, "base_optimizer": torch.optim.Adam}
    sampler = SVGD(networks.everything, lr, networks.data.num_data, **common)
    return lambda x, y: sampler.step(lambda: networks.energies(x, y))


def _ensemble(networks: Networks, lr: float, prior_precision: float = 1.0) -> Step:
    own: Any = {"prior_precision": prior_precision, "base_optimizer": torch.optim.Adam}
    sampler = LinearScalarisation(networks.everything, lr, networks.data.num_data, **own)
    return lambda x, y: sampler.step(lambda: networks.energies(x, y)[None])


def _sghmc(networks: Networks, lr: float) -> Step:
    sampler = SGHMC(networks.everything, lr, networks.data.num_data, prior_precision=1.0)

    def step(x: Tensor, y: Tensor) -> None:
        sampler.zero_grad()
        networks.energies(x, y).sum().backward()
        sampler.step()

    return step


def _hmc(data: Standardised, lr: float, protocol: Protocol) -> Fit:
    networks = Networks(data, protocol.hmc_chains, protocol.hidden)
    batch, _ = protocol.budget(data.num_data)
    # Near a mode to start from: from the prior the first trajectories would only fall.
    _minibatches(networks, _ensemble(networks, 1e-2), batch, protocol.hmc_warmup, set())
    own: Any = {"leapfrog_steps": protocol.leapfrog_steps, "adapt_steps": protocol.hmc_burn_in}
    sampler = HMC(networks.everything, lr, data.num_data, prior_precision=1.0, **own)

    def closure() -> Tensor:
        sampler.zero_grad()
        losses = networks.energies(data.train_x, data.train_y)
        losses.sum().backward()
        return losses.detach()

    states, total = [], protocol.hmc_burn_in + protocol.hmc_trajectories
    for count in progress(range(1, total + 1), unit="trajectory", leave=False):
        sampler.step(closure)
        if count > protocol.hmc_burn_in and (count - protocol.hmc_burn_in) % protocol.hmc_thinning == 0:
            states.append(networks.state())
    return Fit(*joined(states), steps=total * (protocol.leapfrog_steps + 1), acceptance_rate=sampler.acceptance_rate)


@dataclass(frozen=True)
class RegressionMethod(Method):
    """One row; ``build`` is (networks, lr) → a minibatch's step. ``lr`` is that of a method without rates.

    Attributes:
        rates: learning rates that are tried on validation rows; those of Adam are around the paper's.
    """

    rates: tuple[float, ...] = ()


_ADAM = (4e-3, 1.6e-2, 6.4e-2)
#: In the order of the tables; PlainEnsemble is the deep ensemble without prior, and HMC's step size adapts.
METHODS: dict[str, RegressionMethod] = by_name(
    RegressionMethod("FSVGD", _fsvgd, 1.6e-2, _ADAM),
    RegressionMethod("SVGD", _svgd, 1.6e-2, _ADAM),
    RegressionMethod("DeepEnsemble", _ensemble, 1.6e-2, _ADAM),
    RegressionMethod("PlainEnsemble", partial(_ensemble, prior_precision=0.0), 1.6e-2, _ADAM),
    RegressionMethod("SGHMC", _sghmc, 3e-2, (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)),
    RegressionMethod("HMC", _hmc, 1e-3),
)


def scores(fit: Fit, data: Standardised) -> tuple[Tensor, Tensor]:
    """RMSE of the mean prediction and mean log-density of the equally weighted mixture, (G,), in original units."""
    outputs, targets = fit.outputs.double(), data.test_y.T.double()
    rmse = (outputs.mean(1) - targets).square().mean(1).sqrt() * data.deviation
    variance = (2 * fit.log_noise.double()).exp()[:, :, None]
    mixture = mixture_log_density(outputs.transpose(0, 1), variance.transpose(0, 1), targets)
    return rmse, mixture.mean(1) - data.deviation.log()
