"""`check_sampler`: does a sampler leave the law that it should leave?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _validation as check
from ._linear import LinearStep, read_linear_step
from .sampler import _as_number

Factory = Callable[[list[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class CurvatureResult:
    """What was found on one Gaussian: variances in units of θ², temperatures in units of the target's T."""

    curvature: float
    target_variance: float
    #: Stationary variance of the real step from the discrete Lyapunov equation; nan if the step is not linear.
    expected_variance: float
    measured_variance: float
    standard_error: float
    measured_mean: float
    kinetic_temperature: float
    configurational_temperature: float
    #: Relative error of the variance at this lr, and at a lr ``refinement`` times smaller.
    bias: float
    refined_bias: float


@dataclass(frozen=True)
class SamplerReport:
    """The answer of `check_sampler`; ``print`` it, or read its fields. ``bool(report)`` is `passed`."""

    sampler: str
    lr: float
    temperature: float
    linear: bool
    refinement: float
    tolerance: float
    results: tuple[CurvatureResult, ...]
    #: "exact", "O(h)", "biased" or "unstable".
    verdict: str
    passed: bool
    reason: str

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        how = "linear step, Lyapunov equation" if self.linear else "nonlinear step, simulated"
        head = f"{'curvature':>10} {'target':>10} {'expected':>10} {'measured':>10} {'± se':>8} {'bias':>8} "
        head += f"{f'at lr/{self.refinement:g}':>9} {'kinetic':>8} {'config.':>8}"
        lines = [
            f"{self.sampler} at lr {self.lr:g}, temperature {self.temperature:g} ({how})",
            f"verdict: {self.verdict} — {'passed' if self.passed else 'FAILED'}: {self.reason}",
            "variances of θ on Gaussians; temperatures in units of T",
            head,
        ]
        for r in self.results:
            lines.append(
                f"{r.curvature:10.4g} {r.target_variance:10.4g} {r.expected_variance:10.4g} {r.measured_variance:10.4g} "
                f"{r.standard_error:8.1e} {r.bias:+8.2%} {r.refined_bias:+9.2%} {r.kinetic_temperature:8.4f} "
                f"{r.configurational_temperature:8.4f}"
            )
        return "\n".join(lines)


def check_sampler(
    factory: Factory,
    *,
    stiffness: Sequence[float] = (0.05, 0.2, 0.5),
    curvature: Sequence[float] | None = None,
    gradient_noise: float = 0.0,
    coordinates: int = 20_000,
    steps: int | None = None,
    tolerance: float = 0.02,
    refinement: float = 16.0,
    per_chain: bool = False,
    num_data: float | None = None,
    temperature: float | None = None,
    prior_precision: float | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> SamplerReport:
    """Run a sampler on Gaussians whose law is known, and report how far its stationary law is from theirs.

    The potential is U(θ) = ½kθ² for every coordinate, so that the target variance is T/(k + λ). Two questions are asked:

    1. *What law does the step leave?* If the step is linear in (θ, state), its matrices A and B are read off the real
       ``step`` and the stationary covariance solves Σ = AΣAᵀ + BBᵀ; otherwise it is simulated from exact draws.
    2. *Does the bias vanish with the step size?* The same at a lr ``refinement`` times smaller (4 times at most where
       it has to be simulated). An error in the noise, the friction or N does not vanish; discretisation does.

    Then ``coordinates`` independent coordinates are run, and their measured variance must equal the expected one
    within ``tolerance``. Everything random follows from ``seed``; torch's global generator is left as it was.

    Verdict: "exact" (no bias at either lr), "O(h)" (a bias that vanishes with lr), "biased", "unstable".

    Args:
        factory: makes the sampler from a list of parameters, as ``lambda params: SGHMC(params, lr=0.1, num_data=100)``.
            Schedules must not change it between steps.
        stiffness: dimensionless lr·k/N of the Gaussians to try, each its own parameter tensor.
        curvature: the k themselves, in place of ``stiffness``.
        gradient_noise: V ≥ 0, variance of Gaussian noise added to ∇U, in units of (∇U)²: minibatch noise.
        coordinates: independent coordinates in each tensor.
        steps: measured steps of the simulation; as many again for burn-in. The default is 10 relaxation times of the
            softest coordinate under plain Langevin dynamics, at least 500.
        tolerance: relative, for measured against expected variance and for bias that a simulation cannot resolve.
        refinement: factor by which lr is lowered for the second question.
        per_chain: give ``step`` a closure that returns losses of shape (coordinates,), each coordinate one chain (HMC).
        num_data, temperature, prior_precision: N, T, λ of the target, where the groups of the sampler do not have them.
        dtype: of the simulation.
        seed: of the simulation.

    Returns:
        A `SamplerReport`.

    Raises:
        TypeError, ValueError: an argument is out of range, or the sampler has no N or T and none was given.
    """
    _validate(coordinates, tolerance, refinement, gradient_noise)
    probe = factory([torch.zeros(1, requires_grad=True)])
    group = {"num_data": num_data, "temperature": temperature, "prior_precision": prior_precision}
    for key, default in (("num_data", None), ("temperature", 1.0), ("prior_precision", 0.0)):
        if group[key] is None:
            group[key] = _as_number(probe.param_groups[0].get(key, default))
        if group[key] is None:
            raise ValueError(f"{key} must be given: the sampler's parameter group has none")
    n, t, prior, lr = group["num_data"], group["temperature"], group["prior_precision"], probe.param_groups[0]["lr"]
    check.positive("temperature", t)
    curvatures = [s * n / lr for s in stiffness] if curvature is None else list(curvature)
    for k in curvatures:
        check.positive("curvature", k)
    targets = [t / (k + prior) for k in curvatures]

    refine = refinement
    push = math.sqrt(gradient_noise) / n
    maps = [
        [read_linear_step(factory, lambda x, k=k: k * x / n, push, 1 / r, per_chain) for k in curvatures]
        for r in (1.0, refinement)
    ]
    linear = all(m is not None for row in maps for m in row)
    if not linear:
        refine = min(refinement, 4.0)
    softest = min(k * lr / n for k in curvatures)
    run = _Simulation(factory, curvatures, targets, n, t, push, coordinates, per_chain, dtype, seed)
    default_steps = max(500, math.ceil(10 / softest))
    with torch.random.fork_rng(devices=[]):
        measured = run(steps or default_steps, 1.0, maps[0] if linear else None)
        refined = None if linear else run((steps or default_steps) * int(refine), 1 / refine, None)

    results, unstable = [], not all(math.isfinite(m["variance"]) for m in measured)
    for i, (k, target, m) in enumerate(zip(curvatures, targets, measured, strict=True)):
        expected, fine = float("nan"), float("nan")
        if linear:
            expected, fine = (float(row[i].stationary_covariance()[0, 0]) for row in maps)  # type: ignore[union-attr]
            unstable |= not math.isfinite(expected)
        elif refined is not None:
            fine = refined[i]["variance"]
        bias = (expected if linear else m["variance"]) / target - 1
        results.append(
            CurvatureResult(k, target, expected, m["variance"], m["error"], m["mean"], m["kinetic"],
                            m["configurational"], bias, fine / target - 1)
        )  # fmt: skip
    verdict, passed, reason = _judge(results, linear, unstable, tolerance, refine)
    name = type(probe).__name__
    return SamplerReport(name, float(lr), float(t), linear, refine, tolerance, tuple(results), verdict, passed, reason)


def _validate(coordinates: Any, tolerance: Any, refinement: Any, gradient_noise: Any) -> None:
    check.whole("coordinates", coordinates, least=2)
    check.positive("tolerance", tolerance)
    check.non_negative("gradient_noise", gradient_noise)
    if check.number("refinement", refinement) <= 1:
        raise ValueError(f"refinement must be greater than 1, got {refinement}")


def _judge(
    results: list[CurvatureResult], linear: bool, unstable: bool, tolerance: float, refine: float
) -> tuple[str, bool, str]:
    if unstable:
        return "unstable", False, "the chain grows without bound at this lr"
    # A simulation resolves the bias only to its tolerance, linear algebra to rounding.
    resolution = 1e-6 if linear else tolerance
    coarse, fine = max(abs(r.bias) for r in results), max(abs(r.refined_bias) for r in results)
    if max(coarse, fine) <= resolution:
        verdict = "exact"
    elif all(abs(r.refined_bias) <= max(resolution, 2 * abs(r.bias) / refine) for r in results):
        verdict = "O(h)"
    else:
        return "biased", False, f"the bias does not vanish with lr: {coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"
    if linear:
        worst = max(abs(r.measured_variance / r.expected_variance - 1) for r in results)
        if worst > tolerance:
            return verdict, False, f"measured variances are off the Lyapunov solution by {worst:.2%}"
    drift = max(abs(r.measured_mean) / math.sqrt(r.target_variance) for r in results)
    if drift > tolerance:
        return verdict, False, f"the mean is off by {drift:.2%} of a standard deviation"
    return verdict, True, f"bias {coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"


@dataclass
class _Simulation:
    factory: Factory
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
        """Measured moments for each curvature, averaged over ``steps`` steps after a burn-in of as many."""
        torch.manual_seed(self.seed)
        params = [
            (torch.randn(self.coordinates, dtype=self.dtype) * math.sqrt(target)).requires_grad_()
            for target in self.targets
        ]
        sampler = self.factory(params)
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
        for _ in range(steps):
            step()
            for i, p in enumerate(params):
                x = p.detach()
                momentum = sampler.state[p].get("momentum")
                heat = float("nan") if momentum is None else momentum.square().mean().item()
                totals[:, i] += torch.tensor([x.mean().item(), x.square().mean().item(), heat, 1.0])
            snapshots.append([p.detach().square().mean().item() for p in params])
        mean, second, heat, count = totals
        mean, second, heat = mean / count, second / count, heat / count
        error = self._standard_error(torch.tensor(snapshots, dtype=torch.float64))
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

    def _stepper(self, sampler: torch.optim.Optimizer, params: list[Tensor]) -> Callable[[], Any]:
        @torch.no_grad()
        def closure() -> Any:
            losses = []
            for p, k in zip(params, self.curvatures, strict=True):
                p.grad = p.detach() * (k / self.num_data)
                losses.append(0.5 * p * p.grad)
                if self.push:
                    p.grad.add_(torch.randn_like(p), alpha=self.push)
            return torch.stack(losses).sum(0) if self.per_chain else torch.stack(losses).sum()

        return lambda: sampler.step(closure)  # type: ignore[arg-type]

    def _start_stationary(self, sampler: Any, params: list[Tensor], maps: list[LinearStep | None]) -> None:
        """Draw (θ, state) from the stationary law, so that no burn-in has to be guessed."""
        for p, one in zip(params, maps, strict=True):
            assert one is not None
            covariance = one.stationary_covariance()
            if not math.isfinite(covariance[0, 0]):
                continue
            root = torch.linalg.cholesky(torch.from_numpy(covariance + 1e-14 * covariance.max() * np.eye(len(covariance))))
            z = (root @ torch.randn(len(one.names), p.numel(), dtype=torch.float64)).to(p.dtype)
            with torch.no_grad():
                p.copy_(z[0])
                for name, row in zip(one.names[1:], z[1:], strict=True):
                    sampler.state[p][name].copy_(row)

    def _standard_error(self, series: Tensor) -> Tensor:
        """Of the time average, from the scatter of ten block means."""
        blocks = torch.stack([block.mean(0) for block in series.chunk(10)])
        return blocks.std(0) / math.sqrt(len(blocks))
