"""Regression networks with a noise each on several splits of a set, trained side by side and kept apart."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from experiments.function_space.networks import SeparateGroups, StackedMLP
from experiments.function_space.particles import Networks, Step, hmc, stepper
from experiments.harness.options import at_least
from experiments.harness.uci_data import Standardised
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.particles import RBF, FittedPrior, measurement_set, regression_loss
from meta_tasks.progress import progress

LOG_NOISE_AT_START = math.log(0.5)
EXTRA, NOISE = 20, 0.1  # f-SVGD's draws of ν at each step: training inputs plus N(0, NOISE²), standardised
STATES = 5  # of each SGHMC chain that predict, evenly spaced over the second half of its run
#: Of HMC: Adam steps before it, trajectories of adaptation at most, and trajectories from one kept state to the next.
HMC_WARMUP, HMC_BURN_IN, HMC_THINNING = 500, 100, 5


@dataclass(frozen=True)
class Training:
    """Training of every method on a split."""

    # "cpu": 2,000 steps in minibatches of 100. "paper": 500 epochs of minibatches of 100 below 1,000 training rows,
    # 3,000 of minibatches of 1,000 above.
    preset: Literal["cpu", "paper"] = "cpu"
    steps: int | None = None  # Minibatch steps instead of the preset's.
    particles: int = 20  # Networks of each method (chains of SGHMC).
    hidden: int = 50  # Units of the hidden layer.
    hmc_chains: int = 4  # Chains of HMC.
    # Trajectories of each HMC chain after its adaptation, which is as long but at most 100.
    hmc_trajectories: int = 100
    leapfrog_steps: int = 30  # Leapfrog steps of a trajectory.

    def __post_init__(self) -> None:
        at_least(1, self, "steps", "particles", "hidden", "hmc_chains", "leapfrog_steps")
        at_least(HMC_THINNING, self, "hmc_trajectories")  # else no state is kept

    def budget(self, num_data: int) -> tuple[int, int]:
        """Minibatch and steps of a set with so many training rows."""
        large = num_data >= 1000
        batch = min(num_data, 1000 if large and self.preset == "paper" else 100)
        epochs = (3000 if large else 500) * math.ceil(num_data / batch)
        return batch, self.steps or (2000 if self.preset == "cpu" else epochs)


@dataclass
class Fit:
    """Predictions of K networks on the test rows: means (G, K, T), log σ (G, K), standardised; and their cost."""

    outputs: Tensor
    log_noise: Tensor
    seconds: float = 0.0
    acceptance_rate: float | None = None


class SplitNetworks(Networks):
    """``count`` networks with a noise each on each of G splits."""

    def __init__(self, data: Standardised, count: int, hidden: int) -> None:
        self.data, self.count, self.num_data = data, count, data.num_data
        self.mlp = StackedMLP((data.train_x.shape[2], hidden, 1))
        self.weights = [layer.requires_grad_() for layer in self.mlp.draw(data.groups * count)]
        self.log_noise = torch.full((data.groups * count,), LOG_NOISE_AT_START).requires_grad_()
        self.params = [*self.weights, self.log_noise]
        self.kernel, self.prior = SeparateGroups(RBF(), data.groups), FittedPrior(self._draws)

    def outputs(self, x: Tensor) -> Tensor:
        """(P, n) for inputs (n, G, d)."""
        return self.mlp(self.weights, x.transpose(0, 1))[..., 0]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(P,), of outputs (P, B) for targets (B, G)."""
        groups = self.data.groups
        by_group = outputs.view(groups, self.count, -1), y.T, self.log_noise.view(groups, self.count)
        return torch.vmap(regression_loss)(*by_group).flatten()

    def groups(self) -> Any:
        return [{"params": self.weights}, {"params": [self.log_noise], "likelihood": True}]

    def measured(self, x: Tensor) -> Tensor:
        return measurement_set(x, self.data.train_x, EXTRA, scale=NOISE)

    def density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return prior_by_group(self.prior, inputs, outputs)

    def _draws(self, inputs: Tensor, count: int) -> Tensor:
        return self.mlp(self.mlp.draw(count), inputs.flatten(0, 1)).view(count, len(inputs), self.data.groups)

    @torch.no_grad()
    def state(self) -> tuple[Tensor, Tensor]:
        groups = self.data.groups
        outputs = self.outputs(self.data.test_x).view(groups, self.count, -1)
        return outputs.clone(), self.log_noise.detach().view(groups, self.count).clone()

    def train(self, step: Step, batch: int, steps: int, kept: set[int]) -> list[tuple[Tensor, Tensor]]:
        """Steps on minibatches; the states after those that are ``kept``."""
        states = []
        for count in progress(range(1, steps + 1), unit="step", leave=False):
            index = torch.randint(self.num_data, (batch,))
            step(self.data.train_x[index], self.data.train_y[index])
            if count in kept:
                states.append(self.state())
        return states


def prior_by_group(prior: FittedPrior, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Density of all splits' particles, (P,), whose gradient by the outputs (P, n) is that of each split's own prior.

    The splits, inputs (n, G, d), stand where a network has several outputs, which the prior takes as independent. The
    density of the particles at the same place in every split comes back G times, and is divided by G.
    """
    groups = inputs.shape[1]
    stacked = outputs.view(groups, -1, len(inputs)).permute(1, 2, 0)
    return prior.log_density(inputs, stacked).repeat(groups) / groups


def fit(method: str, data: Standardised, lr: float, options: Training, seed: int) -> Fit:
    """Train one method on all splits of ``data`` at once; they do not see each other."""
    torch.manual_seed(seed)
    start, (batch, steps), acceptance_rate = time.perf_counter(), options.budget(data.num_data), None
    networks = SplitNetworks(data, options.hmc_chains if method == "HMC" else options.particles, options.hidden)
    if method == "HMC":
        # Near a mode to start from: from the prior the first trajectories would only fall.
        networks.train(stepper("DeepEnsemble", networks, 1e-2)[1], batch, HMC_WARMUP, set())
        trajectories = (min(HMC_BURN_IN, options.hmc_trajectories), options.hmc_trajectories, HMC_THINNING)
        rows = (data.train_x, data.train_y, networks.state)
        states, acceptance_rate = hmc(networks, lr, *rows, trajectories, leapfrog_steps=options.leapfrog_steps)
    else:
        count = STATES if method == "SGHMC" else 1
        kept = {steps - k * (steps // 2) // count for k in range(count)}
        states = networks.train(stepper(method, networks, lr)[1], batch, steps, kept)
    outputs, log_noise = (torch.cat(parts, dim=1) for parts in zip(*states, strict=True))
    if not (outputs.isfinite().all() and log_noise.isfinite().all()):
        raise FloatingPointError("the predictions are not finite")
    return Fit(outputs, log_noise, time.perf_counter() - start, acceptance_rate)


def scores(fit: Fit, data: Standardised) -> tuple[Tensor, Tensor]:
    """RMSE of the mean prediction and mean log-density of the equally weighted mixture, (G,), in original units."""
    outputs, targets = fit.outputs.double(), data.test_y.T.double()
    rmse = (outputs.mean(1) - targets).square().mean(1).sqrt() * data.deviation
    variance = (2 * fit.log_noise.double()).exp()[:, :, None]
    mixture = mixture_log_density(outputs.transpose(0, 1), variance.transpose(0, 1), targets)
    return rmse, mixture.mean(1) - data.deviation.log()
