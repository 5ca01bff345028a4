"""Posteriors of a network that predicts what every arm pays, for Thompson sampling.

All members (particles, bootstrap replicates, chains) are one network with a leading axis, run by batched products.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from experiments.harness.options import at_least, positive
from learned_samplers import FSVGD, SGHMC
from learned_samplers.particles import FittedPrior, measurement_set

BATCH = 128  # rounds in a minibatch
INITIAL_PULLS = 3  # how often every arm is tried at the beginning
#: f-SVGD's measurement points beside the minibatch, and the standard deviation of their noise; contexts are about 1.
MEASUREMENT_POINTS, MEASUREMENT_NOISE = 32, 0.1
MOMENTUM_DECAY = 0.1  # of SGHMC


@dataclass(frozen=True)
class Budget:
    """Rounds, network and training, the same for every method."""

    contexts: int = 5_000  # Rounds of each bandit.
    members: int = 10  # Particles of f-SVGD, bootstrap replicates, chains of SGHMC.
    hidden: tuple[int, ...] = (50, 50)  # Widths of the network's hidden layers (ReLU).
    interval: int = 20  # Rounds between two updates of the posterior.
    steps: int = 20  # Minibatch gradients of an update.
    fsvgd_lr: float = 5e-3  # f-SVGD: Adam's learning rate.
    bootstrap_lr: float = 3e-3  # Bootstrap: Adam's learning rate.
    # SGHMC: learning rate in units of the noise's variance (the loss is a squared error over it).
    sghmc_lr: float = 2e-2

    def __post_init__(self) -> None:
        at_least(1, self, "contexts", "members", "interval", "steps")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must hold positive widths, got {self.hidden}")
        positive(self, "fsvgd_lr", "bootstrap_lr", "sghmc_lr")


class History:
    """Rounds that were seen: contexts (t, d), arms (t,) and scaled rewards (t,)."""

    def __init__(self, contexts: Tensor):
        self.contexts = contexts
        self.arms = torch.zeros(len(contexts), dtype=torch.long)
        self.rewards = torch.zeros(len(contexts))
        self.count = 0

    def add(self, arms: Tensor, rewards: Tensor) -> None:
        end = self.count + len(arms)
        self.arms[self.count : end], self.rewards[self.count : end] = arms, rewards
        self.count = end

    def minibatch(self, size: int, generator: torch.Generator) -> Tensor:
        """Indices of rounds that were seen, with replacement."""
        return torch.randint(self.count, (size,), generator=generator)


def prior_draw(sizes: tuple[int, ...], members: int, generator: torch.Generator) -> list[Tensor]:
    """Weights (M, in, out) and biases (M, 1, out) of every layer, all N(0, 2/in)."""
    tensors = []
    for into, out in pairwise(sizes):
        for rows in (into, 1):
            tensors.append(torch.randn(members, rows, out, generator=generator) * (2 / into) ** 0.5)
    return tensors


def forward(tensors: list[Tensor], x: Tensor) -> Tensor:
    """Predictions of every member, (M, n, A), at contexts (n, d)."""
    for layer, (weight, bias) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        x = (x.relu() if layer else x) @ weight + bias
    return x


class Posterior:
    """Members that start as draws of the prior, and a way to train them."""

    def __init__(self, contexts: Tensor, arms: int, noise: float, budget: Budget, generator: torch.Generator):
        self.sizes = (contexts.shape[1], *budget.hidden, arms)
        self.noise, self.budget, self.generator = noise, budget, generator
        self.tensors = [t.requires_grad_() for t in prior_draw(self.sizes, budget.members, generator)]

    @torch.no_grad()
    def choose(self, contexts: Tensor) -> Tensor:
        """Thompson sampling: the best arm of each context, (n,), according to a member drawn for it."""
        member = torch.randint(self.budget.members, (len(contexts),), generator=self.generator)
        values = forward(self.tensors, contexts)
        return values[member, torch.arange(len(contexts))].argmax(1)

    def losses(self, predictions: Tensor, history: History, batch: Tensor) -> Tensor:
        """−log N(reward; prediction, noise²) of the arms that were chosen, without its constant, (M, B)."""
        chosen = predictions[:, torch.arange(len(batch)), history.arms[batch]]
        return (chosen - history.rewards[batch]).square() / (2 * self.noise**2)

    def update(self, history: History) -> None:
        for _ in range(self.budget.steps):
            self.step(history, history.minibatch(BATCH, self.generator))

    def step(self, history: History, batch: Tensor) -> None:
        raise NotImplementedError


class FunctionSpace(Posterior):
    """f-SVGD, with Adam; the prior on functions is fitted to draws of the weights' prior."""

    def __init__(self, contexts: Tensor, arms: int, noise: float, budget: Budget, generator: torch.Generator) -> None:
        super().__init__(contexts, arms, noise, budget, generator)
        self.sampler = FSVGD(self.tensors, budget.fsvgd_lr, 1.0, base_optimizer=torch.optim.Adam)
        draws = lambda x, count: forward(prior_draw(self.sizes, count, generator), x)  # noqa: E731
        self.prior = FittedPrior(draws, generator=generator)

    def step(self, history: History, batch: Tensor) -> None:
        seen = history.contexts[: history.count]
        noise: Any = {"scale": MEASUREMENT_NOISE, "generator": self.generator}
        inputs = measurement_set(seen[batch], seen, MEASUREMENT_POINTS, **noise)

        def closure() -> tuple[Tensor, Tensor, Tensor]:
            f = forward(self.tensors, inputs)
            return self.losses(f, history, batch).mean(1), f, self.prior.log_density(inputs, f)

        self.sampler.param_groups[0]["num_data"] = float(history.count)
        self.sampler.step(closure)


class Bootstrap(Posterior):
    """Members with Adam, each of which counts every round Poisson(1) times."""

    def __init__(self, contexts: Tensor, arms: int, noise: float, budget: Budget, generator: torch.Generator) -> None:
        super().__init__(contexts, arms, noise, budget, generator)
        self.counts = torch.poisson(torch.ones(budget.members, len(contexts)), generator=generator)
        self.optimizer = torch.optim.Adam(self.tensors, budget.bootstrap_lr)

    def step(self, history: History, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        losses = self.losses(forward(self.tensors, history.contexts[batch]), history, batch)
        (self.counts[:, batch] * losses).mean(1).sum().backward()
        self.optimizer.step()


class Chains(Posterior):
    """SGHMC chains side by side, each at its present state."""

    def __init__(self, contexts: Tensor, arms: int, noise: float, budget: Budget, generator: torch.Generator) -> None:
        super().__init__(contexts, arms, noise, budget, generator)
        # The prior that the members are drawn from: precision in/2.
        groups = [
            {"params": self.tensors[2 * layer : 2 * layer + 2], "prior_precision": into / 2}
            for layer, into in enumerate(self.sizes[:-1])
        ]
        lr = budget.sghmc_lr * noise**2
        self.sampler = SGHMC(groups, lr, 1.0, momentum_decay=MOMENTUM_DECAY, generator=generator)

    def step(self, history: History, batch: Tensor) -> None:
        self.sampler.zero_grad()
        self.losses(forward(self.tensors, history.contexts[batch]), history, batch).mean(1).sum().backward()
        for group in self.sampler.param_groups:
            group["num_data"] = float(history.count)
        self.sampler.step()


#: (contexts, arms, noise, budget, generator) → posterior; each has its learning rate in `Budget`.
METHODS: dict[str, type[Posterior]] = {"FSVGD": FunctionSpace, "Bootstrap": Bootstrap, "SGHMC": Chains}
