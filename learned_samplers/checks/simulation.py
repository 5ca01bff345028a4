"""Runs a sampler on independent Gaussian coordinates and measures their moments, for `check_sampler`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from learned_samplers.checks.linear import LinearStep
from learned_samplers.checks.moments import (
    COORDINATES,
    JointLaw,
    JointMoment,
    Kurtosis,
    error_over_chains,
    error_over_time,
    remembered,
)
from learned_samplers.checks.protocol import take_step, unwatched

# Steps that do not count for each one that does, of a sampler that does not sample in all of them.
_MOST_WAITS = 10
#: Of each curvature, by the names of `CurvatureResult`.
_MOMENTS = (
    *("measured_mean", "measured_variance", "standard_error", "kinetic_temperature", "configurational_temperature"),
    *("kurtosis", "kurtosis_error", "remembered"),
)


class ReshuffledNoise:
    """Noise of unit variance whose values within an epoch of M steps add up to zero, drawn one at a time.

    It is what reshuffling gives: the minibatches of an epoch partition the data, so that their deviations from the full
    gradient cancel. Given the sum S of the first t, the next one of M exchangeable normal numbers has the mean
    −S/(M−t) and the variance M/(M−1)·(M−t−1)/(M−t).
    """

    def __init__(self, like: Tensor, batches_per_epoch: int):
        self.length, self.position = batches_per_epoch, 0
        self.current, self.sum = torch.zeros_like(like), torch.zeros_like(like)

    def draw(self) -> None:
        left = self.length - self.position
        scale = math.sqrt(self.length / (self.length - 1) * (left - 1) / left)
        self.current = torch.randn_like(self.sum).mul_(scale).sub_(self.sum, alpha=1 / left)
        self.position = (self.position + 1) % self.length
        self.sum = self.sum + self.current if self.position else torch.zeros_like(self.sum)


@dataclass
class Simulation:
    """Chains of one sampler, with a parameter tensor of the shape ``shape`` for each curvature; see `check_sampler`."""

    factory: Callable[[list[Tensor]], torch.optim.Optimizer]
    curvatures: list[float]
    targets: list[float]
    num_data: float
    temperature: float
    push: float
    shape: tuple[int, ...]
    per_chain: bool
    dtype: torch.dtype
    seed: int
    #: Steps in an epoch of minibatches drawn without replacement; None draws every minibatch anew.
    batches_per_epoch: int | None = None
    #: Of the last run: moments of several coordinates, and the share of its steps in which the sampler sampled.
    joint: list[JointMoment] = field(default_factory=list, init=False)
    sampling_share: float = field(default=1.0, init=False)

    def __call__(self, steps: int, lr_factor: float, maps: list[LinearStep | None] | None) -> list[dict[str, float]]:
        """Measured moments for each curvature, averaged over ``steps`` steps after a burn-in of as many.

        Of a sampler that says when it samples (``is_sampling``) no other steps count, in either.

        All nan if the chain leaves the range of numbers, where the sampler refuses to go on.

        Raises:
            ValueError: it samples in less than one of ten steps.
        """
        self.joint, self.sampling_share = [], 1.0
        try:
            return self._run(steps, lr_factor, maps)
        except FloatingPointError:
            return [dict.fromkeys(_MOMENTS, math.nan) for _ in self.targets]

    def _run(self, steps: int, lr_factor: float, maps: list[LinearStep | None] | None) -> list[dict[str, float]]:
        torch.default_generator.manual_seed(self.seed)
        params = [
            (torch.randn(self.shape, dtype=self.dtype) * math.sqrt(target)).requires_grad_() for target in self.targets
        ]
        begun = [p.detach().flatten()[:COORDINATES].clone() for p in params]
        sampler = self.factory(params)
        unwatched(sampler)
        for group in sampler.param_groups:
            group["lr"] = group["lr"] * lr_factor
        step = self._stepper(sampler, params)
        step()
        self._waits = _MOST_WAITS * steps
        if maps is not None:
            self._start_stationary(sampler, params, maps)
        else:
            self._take(steps, step, sampler)
        self._waits = _MOST_WAITS * steps
        totals = torch.zeros(4, len(params), dtype=torch.float64)
        snapshots = []
        law = JointLaw(steps, self.curvatures)
        squares = [torch.zeros(p.shape, dtype=torch.float64) for p in params]
        kurtoses = [Kurtosis(p) for p in params]
        for _ in range(steps):
            self._take(1, step, sampler)
            for i, p in enumerate(params):
                x = p.detach().to(torch.promote_types(p.dtype, torch.float32))  # half precision rounds the means
                momentum = sampler.state[p].get("momentum")
                heat = float("nan") if momentum is None else momentum.square().mean().item()
                totals[:, i] += torch.tensor([x.mean().item(), x.square().mean().item(), heat, 1.0])
                squares[i] += x.square()
                kurtoses[i].see(x)
            law.see(params)
            snapshots.append([p.detach().square().mean().item() for p in params])
        self.joint = law.moments()
        self.sampling_share = steps / (steps + _MOST_WAITS * steps - self._waits)
        mean, second, heat, count = totals
        mean, second, heat = mean / count, second / count, heat / count
        # Coordinates are independent chains, whose time averages scatter as they do however slowly each one moves; a
        # state that they share (a thermostat) shows in the scatter over time alone. The larger of the two is believed.
        over_time = error_over_time(torch.tensor(snapshots, dtype=torch.float64))
        over_chains = torch.stack([error_over_chains(x / steps) for x in squares])
        error = torch.maximum(over_time, over_chains)
        prior = self.temperature / torch.tensor(self.targets) - torch.tensor(self.curvatures)
        slope = torch.tensor(self.curvatures) + prior
        rows = []
        for i in range(len(params)):
            moments = (mean[i].item(), (second[i] - mean[i] ** 2).item(), error[i].item())
            heats = (heat[i].item() / self.temperature, (second[i] * slope[i]).item() / self.temperature)
            left = remembered(begun[i], law.kept[i])
            rows.append(dict(zip(_MOMENTS, (*moments, *heats, *kurtoses[i].result(), left), strict=True)))
        return rows

    def _take(self, steps: int, step: Callable[[], Any], sampler: Optimizer) -> None:
        """Take ``steps`` steps in which the sampler samples, and those between: ``_waits`` at most in all."""
        while steps:
            step()
            sampling = bool(getattr(sampler, "is_sampling", True))
            steps, self._waits = steps - sampling, self._waits - (not sampling)
            if self._waits < 0:
                raise ValueError(
                    f"{type(sampler).__name__} does not sample (is_sampling) in one of {_MOST_WAITS} of its steps: "
                    "give more steps=, or a factory of a sampler that explores or adapts for less"
                )

    def _stepper(self, sampler: Optimizer, params: list[Tensor]) -> Callable[[], Any]:
        epochs = [ReshuffledNoise(p, self.batches_per_epoch) for p in params] if self.batches_per_epoch else None

        @torch.no_grad()
        def closure() -> Any:
            losses = []
            for i, (p, k) in enumerate(zip(params, self.curvatures, strict=True)):
                p.grad = p.detach() * (k / self.num_data)
                losses.append(0.5 * p * p.grad)
                if self.push:
                    noise = torch.randn_like(p) if epochs is None else epochs[i].current
                    p.grad.add_(noise, alpha=self.push)
            return torch.stack(losses).sum(0) if self.per_chain else torch.stack(losses).sum()

        def step() -> None:
            for epoch in epochs or ():  # one minibatch a step, however often the sampler evaluates it
                epoch.draw()
            take_step(sampler, closure)

        return step

    def _start_stationary(self, sampler: Optimizer, params: list[Tensor], maps: list[LinearStep | None]) -> None:
        """Draw (θ, state) from the stationary law, its mean included, so that no burn-in has to be guessed."""
        for p, one in zip(params, maps, strict=True):
            assert one is not None
            covariance = one.stationary_covariance(self.batches_per_epoch)
            if not math.isfinite(covariance[0, 0]):
                continue
            values, vectors = np.linalg.eigh(covariance)  # no noise at all gives zeros, which Cholesky refuses
            root = torch.from_numpy(vectors * np.sqrt(values.clip(min=0.0)))
            z = root @ torch.randn(len(one.names), p.numel(), dtype=torch.float64)
            z = (z + torch.from_numpy(one.stationary_mean())[:, None]).to(p.dtype)
            with torch.no_grad():
                p.copy_(z[0])
                for name, row in zip(one.names[1:], z[1:], strict=True):
                    sampler.state[p][name].copy_(row)
