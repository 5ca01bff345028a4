"""`Law`: the referee of a test suite, behind the pytest fixture ``law``: it says what it measured and its power."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.checks import targets
from learned_samplers.checks.check import check_sampler
from learned_samplers.checks.protocol import Factory, made_by, refuse
from learned_samplers.checks.report import CurvatureResult, judge
from learned_samplers.checks.simulation import Simulation
from learned_samplers.checks.targets import Kernel, Target
from learned_samplers.classical.hmc import HMC

#: What a sampler may claim: no bias at any step size, or one that vanishes with it so fast.
ORDERS = ("exact", "O(h)", "O(h^2)")
# Slope of bias against step size, on logarithmic axes, from which it is quadratic.
_QUADRATIC = 1.5
_COORDINATES, _FEW, _CHAINS = 20_000, 1000, 4000
_STEPS, _FEWEST, _MOST = 500, 50, 20_000
# Steps that are timed first.
_TRIAL = 20
# A simulation runs at lr and at a quarter of it.
_REFINEMENT = 4.0
# Errors of all variances, between which the smallest one that fails the claim is looked for.
_PLANTED = (1e-6, 4.0)


@dataclass(frozen=True)
class Row:
    """Result for a variance or moment: relative biases at lr and lr/``refinement``, temperatures of a Gaussian."""

    name: str
    bias: float
    refined_bias: float
    standard_error: float
    #: Of |bias| against lr on logarithmic axes; nan where either is not resolved.
    slope: float
    kinetic_temperature: float
    configurational_temperature: float


@dataclass(frozen=True)
class LawReport:
    """The result of `Law.holds`; ``print`` it, or read its fields."""

    sampler: str
    order: str
    held: bool
    verdict: str
    reason: str
    lr: float
    refinement: float
    rows: tuple[Row, ...]
    #: The smallest relative error of all variances, at all step sizes, that would fail the claim: tried on this run.
    power: float
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.sampler}: {self.order} {'holds' if self.held else 'does NOT hold'} — {self.verdict}: {self.reason}",
            f"{'':34}{f'bias at {self.lr:g}':>16}{f'at lr/{self.refinement:g}':>11}{'± se':>9}{'slope':>7}"
            f"{'kinetic':>9}{'config.':>9}",
        ]
        for row in self.rows:
            heat = f"{row.kinetic_temperature:9.3f}{row.configurational_temperature:9.3f}"
            biases = f"{row.bias:>+16.2%}{row.refined_bias:>+11.2%}{row.standard_error:9.1%}{row.slope:7.2f}"
            lines.append(f"{row.name:34}{biases}{heat}")
        if math.isnan(self.power):
            told = "planted faults were not tried, for the claim fails as it is"
        else:
            told = f"planted faults: the claim fails once every variance is off by {100 * self.power:.2g} %"
        return "\n".join([*lines, f"{told}; {self.seconds:.0f} s"])


class Law:
    """Tests of stationary laws.

    Args:
        record: is called with every report.
    """

    def __init__(self, record: Callable[[LawReport], Any] = lambda report: None):
        self._record = record

    def holds(
        self,
        sampler: type[torch.optim.Optimizer] | Factory | Kernel,
        order: str = "O(h)",
        *,
        target: Target | None = None,
        lr: float | None = None,
        seconds: float = 20.0,
        tolerance: float = 0.02,
        seed: int = 0,
        **settings: Any,
    ) -> LawReport:
        """Measure a sampler's stationary law and fail the test if it is not what is claimed.

        On Gaussians `check_sampler` does it, from the real step: variances at two step sizes, temperatures,
        independence, kurtosis. On a target of your own, and for kernels of other libraries, many chains are run at lr
        and lr/4, and the averages of the target's moments compared with their expectations.

        The report states the power: the smallest error of all variances at which this very run would have failed.

        Args:
            sampler: a class of optimizers, which is made as ``cls(params, lr=0.1, num_data=100)``; a function that
                makes one from a list of parameters; or a `learned_samplers.checks.Kernel`, as
                `learned_samplers.checks.adapters` makes of others' kernels.
            order: the claim: "exact" (no bias), "O(h)" (one that vanishes with the step size, in proportion at least)
                or "O(h^2)" (with its square at least).
            target: an energy and its moments; by default Gaussians.
            lr: the step size of a kernel, in its own units; an optimizer has its own.
            seconds: what the measurement may take, about: numbers of coordinates and steps are chosen so. It says less
                the less it is given, and the report how much.
            tolerance: relative error of a variance that a simulation may leave open.
            seed: of everything random.
            settings: of an optimizer without ``target``, as for `check_sampler`; beside a ``target``, ``num_data``
                where the groups have none, and ``chains`` and ``steps`` in place of those that fit into ``seconds``.

        Raises:
            AssertionError: the claim does not hold, with the report.
            TypeError, ValueError: an argument is out of range, or the sampler cannot be measured.
        """
        validation.one_of("order", order, ORDERS)
        validation.positive("seconds", seconds)
        validation.positive("tolerance", tolerance)
        begun = time.perf_counter()
        seed = validation.seed("seed", seed)
        if target is not None and not isinstance(target, Target):
            raise TypeError(f"target must be a Target, got {type(target).__name__}")
        if isinstance(sampler, Kernel) or target is not None:
            run = _on_target(sampler, target or targets.gaussian(), lr, seconds, tolerance, seed, **settings)
        else:
            run = _on_gaussians(_factory(sampler), lr, seconds, tolerance, seed, settings)
        held = run.claim(order)
        report = LawReport(
            run.sampler,
            order,
            held,
            run.judged[0],
            run.judged[2],
            run.lr,
            run.refinement,
            run.rows(),
            run.power(order) if held else math.nan,
            time.perf_counter() - begun,
        )
        self._record(report)
        if not held:
            raise AssertionError(f"the law does not hold\n{report}")
        return report


@dataclass(frozen=True)
class _Run:
    """Measurements and their verdict, which is asked again with faults planted into the same numbers."""

    sampler: str
    lr: float
    names: Sequence[str]
    results: list[CurvatureResult]
    judged: tuple[str, bool, str]
    linear: bool
    refinement: float
    tolerance: float
    metropolis: bool

    def slope(self, result: CurvatureResult) -> float:
        error = 1e-6 if self.linear else 4 * max(result.refined_error, result.standard_error) / result.target_variance
        coarse, fine = abs(result.bias), abs(result.refined_bias)
        if not (error < coarse < math.inf and error < fine < math.inf):
            return math.nan
        return math.log(coarse / fine) / math.log(self.refinement)

    def rows(self) -> tuple[Row, ...]:
        return tuple(
            Row(
                name,
                r.bias,
                r.refined_bias,
                r.standard_error / r.target_variance,
                self.slope(r),
                r.kinetic_temperature,
                r.configurational_temperature,
            )
            for name, r in zip(self.names, self.results, strict=True)
        )

    def claim(self, order: str) -> bool:
        """True if the verdict supports the claim."""
        verdict, passed, _ = self.judged
        if order == "exact":
            return passed and verdict in ("exact", "no bias seen")
        return passed and (order == "O(h)" or not any(self.slope(r) < _QUADRATIC for r in self.results))

    def power(self, order: str) -> float:
        """The smallest planted error of all variances, of either sign, from which on the claim fails; inf for none."""
        limits = []
        for sign in (1.0, -1.0):
            low, high = _PLANTED[0], _PLANTED[1] if sign > 0 else 0.99
            if self._planted(sign * high).claim(order):
                return math.inf
            for _ in range(24):
                middle = math.sqrt(low * high)
                low, high = (middle, high) if self._planted(sign * middle).claim(order) else (low, middle)
            limits.append(high)
        return max(limits)

    def _planted(self, error: float) -> _Run:
        """The same run of a sampler whose variances are (1 + error) times as large at every step size."""
        factor = 1 + error
        results = [
            dataclasses.replace(
                r,
                bias=factor * (1 + r.bias) - 1,
                refined_bias=factor * (1 + r.refined_bias) - 1,
                measured_variance=factor * r.measured_variance,
                expected_variance=factor * r.expected_variance,
                standard_error=factor * r.standard_error,
                refined_error=factor * r.refined_error,
            )
            for r in self.results
        ]
        judged = judge(results, self.linear, False, self.tolerance, self.refinement, self.metropolis)
        return dataclasses.replace(self, results=results, judged=judged)


def _factory(sampler: type[torch.optim.Optimizer] | Factory) -> Factory:
    if not (isinstance(sampler, type) and issubclass(sampler, torch.optim.Optimizer)):
        return cast(Factory, sampler)

    def factory(params: list[torch.Tensor]) -> torch.optim.Optimizer:
        try:
            return sampler(params, lr=0.1, num_data=100)  # type: ignore[call-arg]
        except TypeError as error:
            example = f"lambda params: {sampler.__name__}(params, ...)"
            raise TypeError(f"sampler must be a function that makes one, as {example}: {error}") from error

    return factory


def _sizes(factory: Any, seconds: float) -> dict[str, int]:
    """Coordinates and steps of `check_sampler` whose simulation, of a step that is not linear, takes so long."""
    coordinates, steps = _COORDINATES, _STEPS
    if 2 * (1 + _REFINEMENT) * steps * _seconds_a_step(factory, coordinates) > seconds:
        coordinates = _FEW
        most = seconds / (2 * (1 + _REFINEMENT) * _seconds_a_step(factory, coordinates))
        steps = max(_FEWEST, min(steps, int(most)))
    return {"coordinates": coordinates, "steps": steps}


def _on_gaussians(
    factory: Any, lr: float | None, seconds: float, tolerance: float, seed: int, settings: dict[str, Any]
) -> _Run:
    if lr is not None:
        raise ValueError(f"lr is for kernels of other libraries, got {lr}: an optimizer has its own")
    sizes = {} if "steps" in settings else _sizes(factory, seconds)
    report = check_sampler(factory, **{**sizes, **settings}, tolerance=tolerance, seed=seed)
    names = [f"variance at curvature {r.curvature:g}" for r in report.results]
    judged = report.verdict, report.passed, report.reason
    metropolis = report.verdict == "exact" and not report.linear
    return _Run(
        report.sampler,
        report.lr,
        names,
        list(report.results),
        judged,
        report.linear,
        report.refinement,
        tolerance,
        metropolis,
    )


@torch.random.fork_rng(devices=[])
def _seconds_a_step(factory: Any, coordinates: int) -> float:
    """Time of one step of `check_sampler`'s simulation of three Gaussians, with all that it measures."""
    probe = made_by(factory, "sampler")
    refuse(probe, "law.holds")
    curvature = 0.05 * targets.data_of(probe, None) / float(as_number(probe.param_groups[0]["lr"]))
    trial = Simulation(
        factory, [curvature] * 3, [1.0] * 3, 1.0, 1.0, 0.0, (coordinates,), isinstance(probe, HMC), torch.float32, 0
    )
    return _seconds(lambda: trial(_TRIAL, 1.0, None)) / (2 * _TRIAL)


def _seconds(trial: Callable[[], Any]) -> float:
    """Time of a call, the lesser of wall clock (others may use the processor) and processor time (of many cores)."""
    clock, processor = time.perf_counter(), time.process_time()
    trial()
    return min(time.perf_counter() - clock, time.process_time() - processor)


@torch.random.fork_rng(devices=[])
def _on_target(
    sampler: type[torch.optim.Optimizer] | Factory | Kernel,
    target: Target,
    lr: float | None,
    seconds: float,
    tolerance: float,
    seed: int,
    *,
    num_data: float | None = None,
    chains: int = _CHAINS,
    steps: int | None = None,
) -> _Run:
    validation.integer("chains", chains, least=2)
    badge = ""
    if isinstance(sampler, Kernel):
        kernel = sampler
        if lr is None:
            raise ValueError(f"lr must be given for the kernel {kernel.name}, got None")
        validation.positive("lr", lr)
    else:
        factory = _factory(sampler)
        probe = made_by(factory, "sampler")
        refuse(probe, "law.holds")
        badge = getattr(probe, "badge", "")
        if lr is not None:
            raise ValueError(f"lr is for kernels of other libraries, got {lr}: an optimizer has its own")
        lr = float(as_number(probe.param_groups[0]["lr"]))
        kernel = targets.optimizer_kernel(factory, type(probe).__name__, targets.data_of(probe, num_data))
    if steps is None:
        targets.run(kernel, target, lr, _TRIAL, chains, seed)  # with what is compiled at first
        cost = _seconds(lambda: targets.run(kernel, target, lr, _TRIAL, chains, seed)) / (1.5 * _TRIAL)
        steps = min(_MOST, max(_FEWEST, int(seconds / (1.5 * (1 + _REFINEMENT) * cost))))
    validation.integer("steps", steps, least=20)
    coarse = targets.run(kernel, target, lr, steps, chains, seed)
    fine = targets.run(kernel, target, lr / _REFINEMENT, int(steps * _REFINEMENT), chains, seed + 1)
    results, drifts = targets.compare(target, coarse, fine)
    unstable = not all(math.isfinite(r.bias) and math.isfinite(r.refined_bias) for r in results)
    judged = judge(results, False, unstable, tolerance, _REFINEMENT, badge == "exact")
    if drifts and not unstable:
        judged = (
            "unresolved",
            False,
            "averages of the two halves of a run differ: give more steps= or seconds=",
        )
    return _Run(kernel.name, lr, list(target.moments), results, judged, False, _REFINEMENT, tolerance, badge == "exact")
