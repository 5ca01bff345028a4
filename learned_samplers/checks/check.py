"""`check_sampler`: is a sampler's stationary distribution the one that it should be?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.checks.linear import read_linear_step
from learned_samplers.checks.moments import correlated
from learned_samplers.checks.protocol import Factory, made_by, refuse
from learned_samplers.checks.report import CurvatureResult, SamplerReport, judge
from learned_samplers.checks.simulation import Simulation
from learned_samplers.classical.hmc import HMC

# Steps that are run without being asked for.
_MOST_STEPS = 200_000


@torch.random.fork_rng(devices=[])
def check_sampler(
    factory: Factory,
    *,
    stiffness: Sequence[float] = (0.05, 0.2, 0.5),
    curvature: Sequence[float] | None = None,
    gradient_noise: float = 0.0,
    without_replacement: int | None = None,
    coordinates: int | Sequence[int] = 20_000,
    steps: int | None = None,
    tolerance: float = 0.02,
    refinement: float = 16.0,
    per_chain: bool | None = None,
    num_data: float | None = None,
    temperature: float | None = None,
    prior_precision: float | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> SamplerReport:
    """Measure how far a sampler's stationary distribution is from the right one, on Gaussians where that is known.

    The potential is U(θ) = ½kθ² for every coordinate, so that the target variance is T/(k + λ). It asks:

    1. *What is the step's stationary law?* If the step is linear in (θ, state), its matrices A and B are measured on
       the real ``step``, and the stationary covariance solves Σ = AΣAᵀ + BBᵀ; else it is simulated from exact draws.
    2. *Does the bias vanish with the step size?* The same at a lr ``refinement`` times smaller (4 times at most where
       it has to be simulated). An error in the noise, the friction or N does not vanish; discretisation does.

    Then ``coordinates`` independent coordinates are run. Each bound is ``tolerance``, or so many standard errors where
    that is more; a variance that is resolved worse than five tolerances is called neither right nor wrong.

    - *Variance* (4 errors): the expected one.
    - *Independence*: correlations at all distances within a tensor and between two (6), and the variances of sums over
      4, 16, 64, … neighbours and over all (10). Coordinates that share noise in no regular order are not seen.
    - *Kurtosis* (6): 3, or near it as lr goes down, for variances do not say that a law is Gaussian.
    - *Memory*: a simulation begins with exact draws, and a chain that hardly moves has their variance, whatever its
      law; at most 5 % of it may be left in what is measured.

    Of a sampler that adapts or explores only the steps count in which it samples (``is_sampling``), and it is
    simulated. Everything random follows from ``seed``; torch's global generator is left as it was.

    The sampler may be any ``torch.optim.Optimizer`` whose ``step(closure)`` calls the closure, once or more. The
    closure sets ``p.grad`` of every parameter to the gradient of the mean loss U/N and returns that loss as a number
    without a graph: the step must not call ``backward()`` on it. A chain whose memory is not in ``self.state[p]`` is
    simulated. `IVON`, which is no chain, and `MCLMC`, whose coordinates are not independent, are refused.

    Verdict: "exact" (a linear step whose stationary law is the target to rounding, or a Metropolis sampler in which no
    bias is seen), "no bias seen" (by a simulation), "O(h)" (a bias that vanishes with lr), "biased" (one that does not,
    or coordinates that are correlated), "unresolved" (a simulation too short to say), "unstable".

    Args:
        factory: makes the sampler from a list of parameters, as ``lambda params: SGHMC(params, lr=0.1, num_data=100)``.
            Schedules must not change it between steps.
        stiffness, curvature: dimensionless lr·k/N of the Gaussians to try, or the k themselves; a tensor each.
        gradient_noise: V ≥ 0, variance of Gaussian noise added to ∇U, in units of (∇U)²: minibatch noise.
        without_replacement: M ≥ 2, the minibatches of an epoch, for gradient noise as ``DataLoader(shuffle=True)``
            makes it: the noises of an epoch add up to zero. Variances are then means over the epoch. None draws every
            minibatch independently, with replacement.
        coordinates: independent coordinates in each tensor, or its shape: of samplers that treat whole matrices, such
            as (100, 200), for on a vector they do something else. Such a step is simulated, not read.
        steps: measured steps of the simulation; as many again for burn-in. The default is 10 relaxation times of the
            softest coordinate under plain Langevin dynamics, at least 500; where that is more than 200,000 they must be
            given.
        tolerance: relative, of variances and biases.
        refinement: factor by which lr is lowered for the second question.
        per_chain: give ``step`` a closure that returns losses of shape (coordinates,), each coordinate one chain;
            the default is what `HMC` needs, and no other.
        num_data, temperature, prior_precision: N, T, λ of the target, where the groups of the sampler do not have them.
        dtype: of the simulation.
        seed: of the simulation.

    Returns:
        A `SamplerReport`.

    Raises:
        TypeError, ValueError: an argument is out of range, the sampler has no N or T and none was given, or it cannot
            be checked.
        RuntimeError: its step calls ``backward()`` on the closure's loss.
    """
    shape = _shape(coordinates)
    seed = validation.seed("seed", seed)
    validation.one_of("per_chain", per_chain, (None, True, False))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a real floating-point dtype of torch, got {dtype!r}")
    validation.positive("tolerance", tolerance)
    validation.non_negative("gradient_noise", gradient_noise)
    if validation.number("refinement", refinement) <= 1:
        raise ValueError(f"refinement must be greater than 1, got {refinement}")
    for name, values in (("stiffness", stiffness), ("curvature", curvature)):
        if values is not None and not isinstance(values, list | tuple):
            raise TypeError(f"{name} must be a tuple or a list of numbers, got {type(values).__name__}")
        for i, value in enumerate(values or ()):
            validation.positive(f"{name}[{i}]", value)
    if not (stiffness if curvature is None else curvature):
        raise ValueError("stiffness or curvature must have at least one value")
    if without_replacement is not None:
        validation.integer("without_replacement", without_replacement, least=2)
    if steps is not None:
        validation.integer("steps", steps, least=2)
    probe = made_by(factory, "factory")
    refuse(probe, "check_sampler")
    if any(group.get("prior_mean") is not None for group in probe.param_groups):
        raise ValueError("prior_mean must be left out: the target's prior is around zero, and the law is of one shape")
    if per_chain is None:
        per_chain = isinstance(probe, HMC)
    if per_chain and len(shape) > 1:
        raise ValueError(f"coordinates must be a number where each is a chain of its own, got {shape}")
    group = probe.param_groups[0]

    def of_target(name: str, argument: float | None, default: float | None) -> float:
        value = as_number(group.get(name, default)) if argument is None else argument
        if value is None:
            raise ValueError(f"{name} must be given: the sampler's parameter group has none")
        return validation.number(name, value)

    n = of_target("num_data", num_data, None)
    t = of_target("temperature", temperature, 1.0)
    prior = of_target("prior_precision", prior_precision, 0.0)
    lr = validation.number("lr", group["lr"])
    validation.positive("lr", lr)
    validation.positive("num_data", n)
    validation.positive("temperature", t)
    validation.non_negative("prior_precision", prior)
    curvatures = [s * n / lr for s in stiffness] if curvature is None else list(curvature)
    targets = [t / (k + prior) for k in curvatures]

    refine = refinement
    push = math.sqrt(gradient_noise) / n
    vector = len(shape) == 1
    maps = [
        [read_linear_step(factory, k / n, push, 1 / r) if vector and not per_chain else None for k in curvatures]
        for r in (1.0, refinement)
    ]
    linear = all(m is not None for row in maps for m in row)
    if not linear:
        refine = min(refinement, 4.0)
    softest = min(k * lr / n for k in curvatures)
    if steps is None:
        steps = _default_steps(softest, 1.0 if linear else 1 + refine, math.prod(shape) * len(curvatures))
    if without_replacement:  # whole epochs, for the law depends on the position within one
        steps = math.ceil(steps / without_replacement) * without_replacement
    run = Simulation(factory, curvatures, targets, n, t, push, shape, per_chain, dtype, seed, without_replacement)
    measured = run(steps, 1.0, maps[0] if linear else None)
    joint, share = run.joint, run.sampling_share
    refined = None if linear else run(math.ceil(steps * refine), 1 / refine, None)

    results, unstable = [], not all(math.isfinite(m["measured_variance"]) for m in measured)
    for i, (k, target, m) in enumerate(zip(curvatures, targets, measured, strict=True)):
        row = {"curvature": k, "target_variance": target, **m}
        if refined is None:
            expected, fine = (float(steps_of[i].stationary_covariance(without_replacement)[0, 0]) for steps_of in maps)  # type: ignore
            unstable |= not math.isfinite(expected)
            row |= {"expected_variance": expected, "remembered": 0.0}
        else:
            expected, finer = m["measured_variance"], refined[i]
            fine = finer["measured_variance"]
            row |= {
                "refined_error": finer["standard_error"],
                "refined_kurtosis": finer["kurtosis"],
                "refined_kurtosis_error": finer["kurtosis_error"],
                "remembered": max(m["remembered"], finer["remembered"]),
            }
        results.append(CurvatureResult(**row, bias=expected / target - 1, refined_bias=fine / target - 1))
    metropolis = getattr(probe, "badge", "") == "exact"
    shared = correlated(joint, None if linear else run.joint, tolerance, refine)
    verdict, passed, reason = judge(results, linear, unstable, tolerance, refine, metropolis, shared)
    if share < 1:
        reason += f"; it samples (is_sampling) in {share:.0%} of its steps, and only these count"
    name = type(probe).__name__
    return SamplerReport(name, float(lr), float(t), linear, refine, tolerance, tuple(results), verdict, passed, reason)


def _shape(coordinates: Any) -> tuple[int, ...]:
    if not isinstance(coordinates, Sequence) or isinstance(coordinates, str):
        validation.integer("coordinates", coordinates, least=2)
        return (int(coordinates),)
    for length in coordinates:
        validation.integer("coordinates", length)
    if math.prod(coordinates) < 2:
        raise ValueError(f"coordinates must be the shape of at least two, got {coordinates!r}")
    return tuple(coordinates)


def _default_steps(softest: float, shares: float, numbers: int) -> int:
    """10 relaxation times; ValueError with the cost where they are too many to begin without being asked."""
    steps = max(500, math.ceil(10 / softest))
    if steps > _MOST_STEPS:
        hours = 2 * steps * shares * (2e-4 + 1e-8 * numbers) / 3600
        raise ValueError(
            f"stiffness {softest:g} asks for {steps:,} steps (10 relaxation times, as many again for burn-in where the "
            f"step is not linear: some {hours:.1g} hours for {numbers:,} numbers); give steps=, or a larger stiffness"
        )
    return steps
