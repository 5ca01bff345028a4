"""Steps of all chains at once that find their own length: `mclmc_rule` on all rows, `baoa_rule` on minibatches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.classical.baoa import baoa_rule
from learned_samplers.classical.mclmc import mclmc_rule, step_length

#: Wanted mean of ΔE²/d at the beginning and at the end of the search for a step size. On linear regressions with 13 to
#: 121 weights all come out 2 to 3 % too wide, the stiffest 3 to 5 %. At 0.1, which is MILE's (Sommer et al., 2025), all
#: are 6 % too wide, and the stiffest direction may double; below 0.02 networks mix more slowly.
ENERGY_VARIANCE = (0.1, 0.02)
#: Largest energy error that the search counts, in wanted ones. A network that gives its own noise has rare steps, where
#: the noise is narrow, with errors a million times as large: counted in full, each halves the steps of all that follow.
LARGEST_RATIO = 100.0
#: Weight of the past in the average of the search, at each step.
FORGET = 149 / 151
#: Largest heat that minibatch noise may add to the kinetic temperature.
HEAT = 0.05


class Microcanonical:
    """`MCLMC`'s steps, and the search for their length and that of the momentum.

    The step is set so that E[ΔE²]/d is `ENERGY_VARIANCE`, by E[ΔE²] ∝ σ⁶; the average over steps and chains forgets
    at a rate of 1/75, and weighs errors far from the wanted one less (blackjax's and MILE's rule). The momentum length
    L = σ/a is ‖φ‖, the distance of the chains from the prior's mean.
    """

    def __init__(self, flat: nn.Parameter, num_data: int, generator: torch.Generator, lr: float = 1e-3) -> None:
        self.flat, self.num_data, self.generator, self.lr = flat, num_data, generator, lr
        self.direction = self._noise()
        self.momentum_decay = 0.01
        self.error: Tensor | None = None
        self._ahead: tuple[Tensor, Tensor] | None = None
        self._last_lr = lr
        self._ratios = self._weights = 0.0

    def _noise(self) -> Tensor:
        return torch.randn(self.flat.shape, generator=self.generator)

    def energy_changed(self) -> None:
        """Leave the next energy error out: the energy is another one from here on."""
        self._ahead = None

    @torch.no_grad()
    def step(self, energy: Tensor) -> None:
        flat, size = self.flat, self.flat.shape[1]
        assert flat.grad is not None
        length = step_length(self.lr, self.num_data, 1.0, size)
        settings: dict[str, Any] = {"momentum_decay": self.momentum_decay, "size": size, "batch_axes": 1}
        settings |= {"num_data": self.num_data, "temperature": 1.0, "prior_precision": 0.0}
        moved, direction, growth = mclmc_rule(
            [flat], [flat.grad], [self._noise()], [self.direction], [length], **settings
        )
        self.direction, self.error = direction[0], None
        if self._ahead is not None:  # the energy error of the step that has led here
            self.error = energy - self._ahead[0] + self._ahead[1] + growth[0]
        self._ahead = energy, growth[1]
        flat.copy_(moved[0])

    def tune(self, progress: float) -> None:
        """Set the next step's length, by the energy error of the step before."""
        size = self.flat.shape[1]
        if self.error is not None:
            first, last = ENERGY_VARIANCE
            wanted = first + (last - first) * progress
            ratio = (self.error.square() / (size * wanted)).clamp(1e-8, LARGEST_RATIO)
            weight = (-0.5 * (ratio.log() / 9).square()).exp()
            self._ratios = FORGET * self._ratios + (weight * ratio).mean().item() / self._last_lr**3
            self._weights = FORGET * self._weights + weight.mean().item()
        self._last_lr = self.lr
        if self._ratios:
            self.lr = min((self._weights / self._ratios) ** (1 / 3), 1.5 * self.lr)
        distance = self.flat.detach().square().sum(1).mean().sqrt().item()
        length = step_length(self.lr, self.num_data, 1.0, size)
        self.momentum_decay = min(1.0, 1 - math.exp(-length / max(distance, 1e-6)))


class Thermal:
    """Steps of `baoa_rule` on minibatches, with the largest lr that their noise heats by at most `HEAT`."""

    def __init__(self, flat: nn.Parameter, num_data: int, generator: torch.Generator, lr: float = 1e-3) -> None:
        self.flat, self.num_data, self.generator, self.lr = flat, num_data, generator, lr
        self.momentum = torch.zeros_like(flat.data)
        self._heats = list[float]()

    def energy_changed(self) -> None:
        """Go on: nothing here depends on energies."""

    @torch.no_grad()
    def step(self, energy: Tensor) -> None:
        noise = torch.randn(self.flat.shape, generator=self.generator)
        settings: dict[str, Any] = {"lr": self.lr, "num_data": self.num_data, "momentum_decay": 0.05}
        settings |= {"temperature": 1.0, "prior_precision": 0.0}
        moved, self.momentum = baoa_rule(self.flat, self.flat.grad, noise, self.momentum, **settings)
        self.flat.copy_(moved)

    def tune(self, progress: float) -> None:
        """After every 50 steps raise lr where the mean of r² is below 1 + `HEAT`, and lower it above."""
        self._heats.append(self.momentum.square().mean().item())
        if len(self._heats) == 50:
            heat = sum(self._heats[25:]) / 25 - 1
            self.lr *= min(1.3, max(0.7, (HEAT / max(heat, 1e-3)) ** 0.5))
            self._heats.clear()
