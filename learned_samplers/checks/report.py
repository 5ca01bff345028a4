"""Results of `check_sampler`, and the verdict on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from learned_samplers.checks.moments import JointMoment

# Standard errors within which a measurement agrees.
_ERRORS = 4.0
# And a kurtosis, whose error is itself uncertain: it comes from eighth powers.
_OF_KURTOSES = 6.0
# Bias below which a simulation may confirm that a Metropolis sampler is exact.
_SMALL = 0.03
# Relative bias at the smaller lr, of a step that is not linear, above which its size says nothing of how it scales.
_TOO_LARGE = 0.25
# Tolerances above which what a simulation resolves is too coarse to pass on.
_COARSE = 5.0
# Share of the variance that a simulation begins with which may be left in what it measures: by so much a bias would be
# understated. A correlation that decays to a tenth from the first state to the last leaves 4 % on average.
_REMEMBERED = 0.05


@dataclass(frozen=True)
class CurvatureResult:
    """Measurements on one Gaussian: variances in units of θ², temperatures in units of the target's T."""

    curvature: float
    target_variance: float
    measured_variance: float
    standard_error: float
    measured_mean: float
    kinetic_temperature: float
    configurational_temperature: float
    #: Relative error of the variance at this lr, and at a lr ``refinement`` times smaller.
    bias: float
    refined_bias: float
    #: Stationary variance of the real step from the discrete Lyapunov equation; nan if the step is not linear.
    expected_variance: float = float("nan")
    #: Of the variance at the smaller lr; nan where linear algebra has it.
    refined_error: float = float("nan")
    #: E[x⁴]/E[x²]² of the simulated coordinates, 3 where they are normal, and its standard error.
    kurtosis: float = float("nan")
    kurtosis_error: float = float("nan")
    #: The same at the smaller lr; nan where the step is linear.
    refined_kurtosis: float = float("nan")
    refined_kurtosis_error: float = float("nan")
    #: Share of the variance of a simulation's exact first draws that is left in what it measured, of the two step sizes
    #: the larger; 0 where the step is linear, since the simulation then begins with the step's own law.
    remembered: float = 0.0


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
    if (left := max(r.remembered for r in results)) > _REMEMBERED:
        told = f"the chain has not forgotten where it began: of its first draws' variance {left:.0%} is left"
        return "unresolved", False, f"{told}; give more steps=, or see whether it moves as far as its lr says"
    # Linear algebra resolves the bias to rounding, a simulation to its tolerance or to four standard errors.
    resolved = max(tolerance, *(_ERRORS * r.standard_error / r.target_variance for r in results))
    resolution = finer = 1e-6
    if not linear:
        resolution = resolved
        finer = max(tolerance, *(_ERRORS * r.refined_error / r.target_variance for r in results))
    coarse, fine = max(abs(r.bias) for r in results), max(abs(r.refined_bias) for r in results)
    limits = (resolution, max(coarse, fine)), (finer, fine)
    sizes = f"{coarse:.2%} at lr, {fine:.2%} at lr/{refine:g}"
    if not linear and any(_stays(r, tolerance, refine) for r in results):  # whatever the others resolve
        return "biased", False, f"the bias does not vanish with lr: {sizes}"
    unseen = [x for x, bias in limits if x > _COARSE * tolerance and x >= bias]
    if unseen:  # a bias that a chain as noisy as this cannot see need not be there, nor vanish with lr
        biases = f"found biases of {coarse:.0%} at lr and {fine:.0%} at lr/{refine:g}"
        return "unresolved", False, f"the simulation resolves {unseen[0]:.0%} only, and {biases}: give more steps="
    if max(coarse, fine) <= resolution:
        verdict = "exact" if linear or (metropolis and resolution <= _SMALL) else "no bias seen"
    elif not all(abs(r.refined_bias) <= max(finer, 2 * abs(r.bias) / refine) for r in results):
        return "biased", False, f"the bias does not vanish with lr: {sizes}"
    elif not linear and fine > max(finer, _TOO_LARGE):
        return "biased", False, f"bias {sizes}: too large to say whether it vanishes with lr; take a smaller lr"
    else:
        verdict = "O(h)"
    fourth, lasting = _fourth_moment(results, tolerance, refine)
    if fourth:
        if linear or lasting:  # a linear step whose noise is normal has no other law than the one that was computed
            return "biased", False, f"the law is not Gaussian: {fourth}"
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
    reason = f"bias {sizes}"
    if resolved > tolerance or verdict == "no bias seen":
        reason += f"; the simulation resolves {resolved:.1%}"
    return verdict, True, f"{reason}; {fourth}" if fourth else reason


def _fourth_moment(results: list[CurvatureResult], tolerance: float, refine: float) -> tuple[str, bool]:
    """Remark on the kurtosis, "" where it is 3, and True if it stays off as lr goes down, as a bias may not."""

    def off(kurtosis: float, error: float) -> bool:
        return abs(kurtosis / 3 - 1) > max(tolerance, _OF_KURTOSES * error / 3)

    def lasts(r: CurvatureResult) -> bool:
        bound = 2 * abs(r.kurtosis - 3) / refine
        return off(r.refined_kurtosis, r.refined_kurtosis_error) and abs(r.refined_kurtosis - 3) > bound

    lasting = [r for r in results if lasts(r)]
    off_results = lasting or [r for r in results if off(r.kurtosis, r.kurtosis_error)]
    if not off_results:
        return "", False
    r = max(off_results, key=lambda r: abs(r.kurtosis - 3))
    finer = "" if math.isnan(r.refined_kurtosis) else f" at lr, {r.refined_kurtosis:.2f} at lr/{refine:g}"
    return f"kurtosis {r.kurtosis:.2f}{finer}, of a Gaussian 3", bool(lasting)


def _stays(result: CurvatureResult, tolerance: float, refine: float) -> bool:
    """Whether the bias at the smaller lr is more than an O(h) bias can be, by more than the errors of both."""
    error, refined_error = (_ERRORS * e / result.target_variance for e in (result.standard_error, result.refined_error))
    return abs(result.refined_bias) - refined_error > max(tolerance, 2 * (abs(result.bias) + error) / refine)
