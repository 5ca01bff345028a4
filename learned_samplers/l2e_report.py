"""The measures of `learned_samplers.l2e_measures` for an optimizer, and those that stand in a weight card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._learned import gather, together
from .check import check_sampler
from .l2e import L2E
from .l2e_features import Segments
from .l2e_measures import assumption_violation, term_contributions


def flat_states(sampler: L2E) -> list[dict[str, Any]]:
    """The arguments of `assumption_violation` and `term_contributions`, for each buffer of an optimizer's groups.

    Call it between ``backward`` and ``step``, after at least one step.

    Raises:
        TypeError: the sampler is no `L2E`.
        ValueError: a parameter has no gradient, or no step has been taken.
    """
    if not isinstance(sampler, L2E):
        raise TypeError(f"sampler must be an L2E, got {type(sampler).__name__}")
    if not sampler.step_count:
        raise ValueError("sampler must have taken a step, for the state to be there; it has taken 0")
    states = []
    for group in sampler.param_groups:
        params, grads = sampler._gradients(group)
        for members in together(params):
            chosen = [params[i] for i in members]
            state = [[sampler.state[p][name] for p in chosen] for name in ("momentum", "averages")]
            theta = gather(chosen).detach()
            states.append(
                {
                    "parameter": theta,
                    "gradient": gather([grads[i] for i in members]),
                    "momentum": sampler._flat_state("momentum", state[0]),
                    "averages": sampler._flat_state("averages", state[1]),
                    "phi": [(weight.detach(), bias.detach()) for weight, bias in sampler._phi(theta)],
                    "segments": Segments(tuple(p.numel() for p in chosen)),
                    "form": sampler.form,
                    "feature_set": sampler.feature_set,
                    **sampler._hyper(group),
                }
            )
    return states


def measure(
    make: Callable[[list[Tensor]], L2E],
    *,
    coordinates: int = 2000,
    stiffness: Sequence[float] = (0.05, 0.2),
    seed: int = 0,
) -> dict[str, Any]:
    """What stands in a card of the law of a sampler: `check_sampler` on Gaussians, and the two measures above there.

    Args:
        make: makes the sampler from a list of parameters, as for `check_sampler`.
        coordinates: independent coordinates of each Gaussian.
        stiffness: lr·k/N of each.
        seed: of everything.

    Returns:
        Numbers and strings that JSON can hold: "verdict", "reason"; "bias", "kinetic_temperature" and
        "configurational_temperature" for each stiffness; "assumption_violation" (the relative one) and "terms" after
        200 steps on the Gaussians.
    """
    report = check_sampler(
        make, stiffness=stiffness, coordinates=coordinates, refinement=4.0, tolerance=0.05, seed=seed
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = make([torch.zeros(1, requires_grad=True)])
        group = probe.param_groups[0]
        curvatures = [r.curvature for r in report.results]
        spread = [(group["temperature"] / (k + group["prior_precision"])) ** 0.5 for k in curvatures]
        params = [(torch.randn(coordinates) * s).requires_grad_() for s in spread]
        sampler = make(params)
        for _ in range(201):
            for p, k in zip(params, curvatures, strict=True):
                p.grad = p.detach() * (k / group["num_data"])
            if sampler.step_count == 200:
                break
            sampler.step()
        (state,) = flat_states(sampler)
    terms = {name: float(value) for name, value in term_contributions(**state).items()}
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "stiffness": list(stiffness),
        "bias": [r.bias for r in report.results],
        "bias_at_a_quarter_of_lr": [r.refined_bias for r in report.results],
        "kinetic_temperature": [r.kinetic_temperature for r in report.results],
        "configurational_temperature": [r.configurational_temperature for r in report.results],
        "assumption_violation": float(assumption_violation(**state).relative),
        "terms": terms,
    }
