"""Chains of a kernel on an energy with known moments: of a torch optimizer, or of another library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.checks.moments import error_over_chains, error_over_time, remembered
from learned_samplers.checks.protocol import Factory, take_step
from learned_samplers.checks.report import CurvatureResult
from learned_samplers.classical.hmc import HMC

#: (chains, d) → (chains,), by operations that torch and JAX both have.
Energy = Callable[[Any], Any]
# Positions of a run that are compared with its first ones.
_STATES = 50
# Standard errors by which the two halves of a run may differ.
_DRIFT = 5.0


@dataclass(frozen=True)
class Target:
    """The law exp(−U/T) of positions θ, (d,), with moments that are known.

    Args:
        energy: U of every chain, from positions (chains, d) to (chains,), differentiable.
        moments: name → (function of positions (chains, d) to (chains,), its expectation under the law).
        start: number of chains → their first positions, (chains, d): exact draws where there are any, which need no
            burn-in; from others the chains must reach the law within half a run.
    """

    energy: Energy
    moments: Mapping[str, tuple[Callable[[Tensor], Tensor], float]]
    start: Callable[[int], Tensor]

    def __post_init__(self) -> None:
        validation.function("energy", self.energy, "lambda x: (x**2).sum(-1) / 2")
        validation.function("start", self.start, "lambda chains: torch.randn(chains, 2)")
        if not isinstance(self.moments, Mapping) or not self.moments:
            raise ValueError(f"moments must map names to (function, expectation), got {self.moments!r:.60}")
        for name, (function, expectation) in self.moments.items():
            validation.function(f"moments[{name!r}][0]", function, "lambda x: x[:, 0] ** 2")
            validation.number(f"moments[{name!r}][1]", expectation)


def gaussian(precisions: tuple[float, ...] = (1.0, 4.0, 10.0)) -> Target:
    """Independent normal coordinates, with the variance of each as a moment."""
    scales = torch.tensor(precisions).rsqrt()
    return Target(
        energy=lambda x: sum(k * x[..., i] ** 2 for i, k in enumerate(precisions)) / 2,
        moments={
            f"variance at precision {k:g}": (lambda x, i=i: x[:, i] ** 2, 1 / k)  # type: ignore[misc]
            for i, k in enumerate(precisions)
        },
        start=lambda chains: torch.randn(chains, len(precisions)) * scales,
    )


@dataclass(frozen=True)
class Kernel:
    """A transition with a step size, of any library.

    Args:
        name: for the report.
        begin: ``begin(energy, start, lr, seed)`` starts chains at ``start``, a tensor (chains, d), and returns a
            function without arguments that takes one step of all of them and returns their positions, as an array or a
            tensor.
    """

    name: str
    begin: Callable[[Energy, Tensor, float, int], Callable[[], Any]]


def optimizer_kernel(factory: Factory, name: str, num_data: float) -> Kernel:
    """The kernel of a ``torch.optim.Optimizer``, whose parameter holds all chains along its leading axis."""

    def begin(energy: Energy, start: Tensor, lr: float, seed: int) -> Callable[[], Tensor]:
        theta = start.detach().clone().requires_grad_()
        sampler = factory([theta])
        for group in sampler.param_groups:
            group["lr"] = lr

        def closure() -> Tensor:
            position = theta.detach().requires_grad_()
            with torch.enable_grad():
                losses = energy(position) / num_data
                (theta.grad,) = torch.autograd.grad(losses.sum(), position)
            return losses.detach() if isinstance(sampler, HMC) else losses.detach().sum()

        def step() -> Tensor:
            take_step(sampler, closure)
            return theta.detach()

        return step

    return Kernel(name, begin)


def data_of(sampler: torch.optim.Optimizer, num_data: float | None) -> float:
    """N of an optimizer's parameter group, or the one that is given; 1 where there is neither."""
    value = as_number(sampler.param_groups[0].get("num_data", 1.0)) if num_data is None else num_data
    validation.positive("num_data", value)
    return float(value)


@dataclass(frozen=True)
class Averages:
    """Moments of one run: means over chains and steps, standard errors, and how far the run has forgotten its start."""

    means: dict[str, float]
    errors: dict[str, float]
    #: Difference of the two halves of the run, in standard errors of it; the largest of all moments.
    drift: float
    remembered: float


def run(kernel: Kernel, target: Target, lr: float, steps: int, chains: int, seed: int) -> Averages:
    """Average the moments over ``steps`` steps, after a burn-in of half as many."""
    torch.default_generator.manual_seed(seed)
    start = target.start(chains)
    step = kernel.begin(target.energy, start, lr, seed)
    for _ in range(steps // 2):
        step()
    #: For each moment the sums of every chain over the two halves, and the mean over chains of every step.
    sums = torch.zeros(len(target.moments), 2, chains, dtype=torch.float64)
    series = torch.zeros(len(target.moments), steps, dtype=torch.float64)
    half, states = steps // 2, []
    for t in range(2 * half):
        position = torch.as_tensor(step())
        for i, (function, _) in enumerate(target.moments.values()):
            values = torch.as_tensor(function(position)).double()
            sums[i, t // half] += values
            series[i, t] = values.mean()
        if t % max(1, steps // _STATES) == 0:
            states.append(position.flatten().float().clone())
    means, errors, drift = {}, {}, 0.0
    for i, name in enumerate(target.moments):
        error = max(float(error_over_chains(sums[i].mean(0) / half)), float(error_over_time(series[i, : 2 * half])))
        change = (sums[i, 1] - sums[i, 0]) / half
        means[name], errors[name] = float(sums[i].mean()) / half, error
        drift = max(drift, abs(float(change.mean())) / max(float(error_over_chains(change)), 1e-300))
    still = float(start.var()) == 0
    return Averages(means, errors, drift, 0.0 if still else remembered(start.flatten().float(), states))


def compare(target: Target, coarse: Averages, fine: Averages) -> tuple[list[CurvatureResult], bool]:
    """Biases of every moment at lr and at a smaller one, relative to its expectation, and True if a run still drifts.

    A moment whose expectation is zero is compared with one.
    """
    results = []
    for name, (_, expectation) in target.moments.items():
        scale = abs(expectation) or 1.0
        results.append(
            CurvatureResult(
                curvature=math.nan,
                target_variance=1.0,
                measured_variance=1 + (coarse.means[name] - expectation) / scale,
                standard_error=coarse.errors[name] / scale,
                measured_mean=0.0,
                kinetic_temperature=math.nan,
                configurational_temperature=math.nan,
                bias=(coarse.means[name] - expectation) / scale,
                refined_bias=(fine.means[name] - expectation) / scale,
                refined_error=fine.errors[name] / scale,
                remembered=max(coarse.remembered, fine.remembered),
            )
        )
    return results, max(coarse.drift, fine.drift) > _DRIFT
