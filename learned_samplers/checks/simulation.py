"""Runs a sampler on independent Gaussian coordinates and measures their moments, for `check_sampler`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.checks.linear import LinearStep


@dataclass
class Simulation:
    """One parameter tensor of ``coordinates`` coordinates for each curvature; see `check_sampler`."""

    factory: Callable[[list[Tensor]], torch.optim.Optimizer]
    curvatures: list[float]
    targets: list[float]
    num_data: float
    temperature: float
    push: float
    coordinates: int
    per_chain: bool
    dtype: torch.dtype
    seed: int

    def __call__(self, steps: int, lr_factor: float, maps: list[LinearStep | None] | None) -> list[dict[str, float]]:
        """Measured moments for each curvature, averaged over ``steps`` steps after a burn-in of as many.

        All nan if the chain leaves the range of numbers, where the sampler refuses to go on.
        """
        try:
            return self._run(steps, lr_factor, maps)
        except FloatingPointError:
            keys = ("mean", "variance", "error", "kinetic", "configurational")
            return [dict.fromkeys(keys, math.nan) for _ in self.targets]

    def _run(self, steps: int, lr_factor: float, maps: list[LinearStep | None] | None) -> list[dict[str, float]]:
        torch.default_generator.manual_seed(self.seed)
        params = [
            (torch.randn(self.coordinates, dtype=self.dtype) * math.sqrt(target)).requires_grad_()
            for target in self.targets
        ]
        sampler: Any = self.factory(params)
        for group in sampler.param_groups:
            group["lr"] = group["lr"] * lr_factor
        step = self._stepper(sampler, params)
        step()
        if maps is not None:
            self._start_stationary(sampler, params, maps)
        else:
            for _ in range(steps):
                step()
        totals = torch.zeros(4, len(params), dtype=torch.float64)
        snapshots = []
        squares = [torch.zeros(p.shape, dtype=torch.float64) for p in params]
        for _ in range(steps):
            step()
            for i, p in enumerate(params):
                x = p.detach().to(torch.promote_types(p.dtype, torch.float32))  # half precision rounds the means
                momentum = sampler.state[p].get("momentum")
                heat = float("nan") if momentum is None else momentum.square().mean().item()
                totals[:, i] += torch.tensor([x.mean().item(), x.square().mean().item(), heat, 1.0])
                squares[i] += x.square()
            snapshots.append([p.detach().square().mean().item() for p in params])
        mean, second, heat, count = totals
        mean, second, heat = mean / count, second / count, heat / count
        # Coordinates are independent chains, whose time averages scatter as they do however slowly each one moves; a
        # state that they share (a thermostat) shows in the scatter over time alone. The larger of the two is believed.
        over_time = self._standard_error(torch.tensor(snapshots, dtype=torch.float64))
        over_chains = torch.stack([(x / steps).std() / math.sqrt(x.numel()) for x in squares])
        error = torch.maximum(over_time, over_chains)
        prior = self.temperature / torch.tensor(self.targets) - torch.tensor(self.curvatures)
        slope = torch.tensor(self.curvatures) + prior
        return [
            {
                "mean": mean[i].item(),
                "variance": (second[i] - mean[i] ** 2).item(),
                "error": error[i].item(),
                "kinetic": heat[i].item() / self.temperature,
                "configurational": (second[i] * slope[i]).item() / self.temperature,
            }
            for i in range(len(params))
        ]

    def _stepper(self, sampler: Any, params: list[Tensor]) -> Callable[[], Any]:
        @torch.no_grad()
        def closure() -> Any:
            losses = []
            for p, k in zip(params, self.curvatures, strict=True):
                p.grad = p.detach() * (k / self.num_data)
                losses.append(0.5 * p * p.grad)
                if self.push:
                    p.grad.add_(torch.randn_like(p), alpha=self.push)
            return torch.stack(losses).sum(0) if self.per_chain else torch.stack(losses).sum()

        return lambda: sampler.step(closure)

    def _start_stationary(self, sampler: Any, params: list[Tensor], maps: list[LinearStep | None]) -> None:
        """Draw (θ, state) from the stationary law, so that no burn-in has to be guessed."""
        for p, one in zip(params, maps, strict=True):
            assert one is not None
            covariance = one.stationary_covariance()
            if not math.isfinite(covariance[0, 0]):
                continue
            values, vectors = np.linalg.eigh(covariance)  # no noise at all gives zeros, which Cholesky refuses
            root = torch.from_numpy(vectors * np.sqrt(values.clip(min=0.0)))
            z = (root @ torch.randn(len(one.names), p.numel(), dtype=torch.float64)).to(p.dtype)
            with torch.no_grad():
                p.copy_(z[0])
                for name, row in zip(one.names[1:], z[1:], strict=True):
                    sampler.state[p][name].copy_(row)

    def _standard_error(self, series: Tensor) -> Tensor:
        """Of the time average, from the scatter of ten block means."""
        blocks = torch.stack([block.mean(0) for block in series.chunk(10)])
        return blocks.std(0) / math.sqrt(len(blocks))
