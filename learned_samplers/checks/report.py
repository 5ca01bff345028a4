"""What `check_sampler` found, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from learned_samplers.checks.joint import JointMoment

# Standard errors within which a measurement agrees.
_ERRORS = 4.0
# Bias below which a simulation may confirm that a Metropolis sampler is exact.
_SMALL = 0.03
# Relative bias at the smaller lr, of a step that is not linear, above which its size says nothing of how it scales.
_TOO_LARGE = 0.5
# Tolerances above which what a simulation resolves is too coarse to pass on.
_COARSE = 5.0


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
    #: Of the variance at the smaller lr; nan where linear algebra has it.
    refined_error: float = float("nan")


@dataclass(frozen=True)
class SamplerReport:
    """The result of `check_sampler`; ``print`` it, or read its fields. ``bool(report)`` is `passed`."""

    sampler: str
    lr: float
    temperature: float
    linear: bool
    refinement: float
    tolerance: float
    results: tuple[CurvatureResult, ...]
    #: "exact", "no bias seen", "O(h)", "biased", "unresolved" or "unstable".
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
            variances = f"{r.target_variance:10.4g} {r.expected_variance:10.4g} {r.measured_variance:10.4g}"
            biases = f"{r.bias:+8.2%} {r.refined_bias:+9.2%}"
            heat = f"{r.kinetic_temperature:8.4f} {r.configurational_temperature:8.4f}"
            lines.append(f"{r.curvature:10.4g} {variances} {r.standard_error:8.1e} {biases} {heat}")
        return "\n".join(lines)


def judge(
    results: list[CurvatureResult],
    linear: bool,
    unstable: bool,
    tolerance: float,
    refine: float,
    metropolis: bool,
    shared: JointMoment | None = None,
) -> tuple[str, bool, str]:
    """Verdict, whether it passes, and the reason; ``shared`` is a correlation of coordinates that is no accident."""
    if unstable:
        return "unstable", False, "the chain grows without bound at this lr"
    if shared is not None:
        return "biased", False, str(shared)
    # Linear algebra resolves the bias to rounding, a simulation to its tolerance or to four standard errors.
    resolved = max(tolerance, *(_ERRORS * r.standard_error / r.target_variance for r in results))
    resolution = finer = 1e-6
    if not linear:
        resolution = resolved
        finer = max(tolerance, *(_ERRORS * r.refined_error / r.target_variance for r in results))
    coarse, fine = max(abs(r.bias) for r in results), max(abs(r.refined_bias) for r in results)
    unseen = [x for x, biases in ((resolution, max(coarse, fine)), (finer, fine)) if biases <= x > _COARSE * tolerance]
    if unseen:  # a bias that a chain as noisy as this cannot see need not be there, nor vanish with lr
        found = f"found biases of {coarse:.0%} at lr and {fine:.0%} at lr/{refine:g}"
        return "unresolved", False, f"the simulation resolves {unseen[0]:.0%} only, and {found}: give more steps="
    if max(coarse, fine) <= resolution:
        verdict = "exact" if linear or (metropolis and resolution <= _SMALL) else "no bias seen"
    elif not all(abs(r.refined_bias) <= max(finer, 2 * abs(r.bias) / refine) for r in results):
        return "biased", False, f"the bias does not vanish with lr: {coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"
    elif not linear and fine > max(finer, _TOO_LARGE):
        sizes = f"{coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"
        return "biased", False, f"bias {sizes}: too large to say whether it vanishes with lr"
    else:
        verdict = "O(h)"
    if linear:
        for r in results:
            off = abs(r.measured_variance / r.expected_variance - 1)
            if off > max(tolerance, _ERRORS * r.standard_error / r.expected_variance):
                return verdict, False, f"measured variances are off the Lyapunov solution by {off:.2%}"
        confirmed = max(_ERRORS * r.standard_error / r.expected_variance for r in results)
        if confirmed > _COARSE * tolerance:
            told = f"the simulation that should confirm the expected variances resolves {confirmed:.0%} only"
            return verdict, False, f"{told}: give more coordinates= or steps="
    # The mean of many coordinates is known better than their variance, to about the same relative error.
    drift = max(abs(r.measured_mean) / math.sqrt(r.target_variance) for r in results)
    if drift > resolved:
        return verdict, False, f"the mean is off by {drift:.2%} of a standard deviation"
    reason = f"bias {coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"
    if resolved > tolerance or verdict == "no bias seen":
        reason += f"; the simulation resolves {resolved:.1%}"
    return verdict, True, reason
