"""The measures of `learned_samplers.learned.l2e.measures` for an optimizer, and those that stand in a weight card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.checks.check import check_sampler
from learned_samplers.learned.l2e.measures import assumption_violation, term_contributions, term_effects
from learned_samplers.learned.l2e.optimizer import L2E
from learned_samplers.learned.sampler import gather, together

#: Steps after which `measure` looks at the terms.
STEPS = 200
_OF_THE_CHAIN = ("parameter", "gradient", "momentum", "averages", "step")


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
    for group, inputs in zip(sampler.param_groups, sampler.collect_gradients(), strict=True):
        params, grads = inputs.params, inputs.gradients
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
                    **sampler.hyper(group),
                }
            )
    return states


def gaussian_law(
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    *,
    coordinates: int = 2000,
    stiffness: Sequence[float] = (0.05, 0.2),
    seed: int = 0,
) -> dict[str, Any]:
    """What stands in a card of the law of any sampler: `check_sampler` on Gaussians, at lr and at a quarter of it.

    Args:
        make: makes the sampler from a list of parameters, as for `check_sampler`.
        coordinates: independent coordinates of each Gaussian.
        stiffness: lr·k/N of each.
        seed: of everything.

    Returns:
        Numbers and strings that JSON can hold: "verdict", "reason"; "bias", "bias_at_a_quarter_of_lr",
        "kinetic_temperature" and "configurational_temperature" for each "stiffness".
    """
    report = check_sampler(
        make, stiffness=stiffness, coordinates=coordinates, refinement=4.0, tolerance=0.05, seed=seed
    )  # fmt: skip
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "stiffness": list(stiffness),
        "bias": [r.bias for r in report.results],
        "bias_at_a_quarter_of_lr": [r.refined_bias for r in report.results],
        "kinetic_temperature": [r.kinetic_temperature for r in report.results],
        "configurational_temperature": [r.configurational_temperature for r in report.results],
    }


def measure(
    make: Callable[[list[Tensor]], L2E],
    *,
    coordinates: int = 2000,
    stiffness: Sequence[float] = (0.05, 0.2),
    seed: int = 0,
) -> dict[str, Any]:
    """What stands in a card of the law of an `L2E`, of either form: `gaussian_law`, and what its terms do there.

    Args:
        make, coordinates, stiffness, seed: as for `gaussian_law`.

    Returns:
        What `gaussian_law` returns, and after `STEPS` steps from exact draws of the same Gaussians
        "assumption_violation" (the relative one), "terms" (`term_contributions`) and "term_effects" (how far each of
        α, the learned friction and the noise has moved the chain).
    """
    law = gaussian_law(make, coordinates=coordinates, stiffness=stiffness, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = make([torch.zeros(1, requires_grad=True)])
        group = probe.param_groups[0]
        curvatures = [s * group["num_data"] / group["lr"] for s in stiffness]
        spread = [(group["temperature"] / (k + group["prior_precision"])) ** 0.5 for k in curvatures]
        params = [(torch.randn(coordinates) * s).requires_grad_() for s in spread]
        start = gather(params).detach()
        slope = torch.tensor(curvatures).repeat_interleave(coordinates) / group["num_data"]
        sampler = make(params)
        for _ in range(STEPS + 1):
            for p, k in zip(params, curvatures, strict=True):
                p.grad = p.detach() * (k / group["num_data"])
            if sampler.step_count == STEPS:
                break
            sampler.step()
        (state,) = flat_states(sampler)
    settings = {key: value for key, value in state.items() if key not in _OF_THE_CHAIN}
    return {
        **law,
        "assumption_violation": float(assumption_violation(**state).relative),
        "terms": {name: float(value) for name, value in term_contributions(**state).items()},
        "term_effects": term_effects(lambda theta: theta * slope, start, STEPS, seed=seed, **settings),
    }
