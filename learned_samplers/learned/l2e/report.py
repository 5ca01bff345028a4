"""The arguments of `learned_samplers.learned.l2e.measures` for a running optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean
from learned_samplers.base.guards.precision import MASTER
from learned_samplers.base.segments import Segments
from learned_samplers.learned.flat_buffers import gather, together
from learned_samplers.learned.l2e.optimizer import L2E


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
            state = {name: [sampler.state[p][name] for p in chosen] for name in sampler.state_names}
            theta = gather(_as_updated(sampler, group, chosen))
            states.append(
                {
                    "parameter": theta,
                    "gradient": gather([grads[i] for i in members]).to(theta.dtype),
                    **{name: sampler._flat_state(name, tensors) for name, tensors in state.items()},
                    "phi": [(weight.detach(), bias.detach()) for weight, bias in sampler._phi(theta)],
                    "segments": Segments.of(chosen),
                    **sampler.hyper(group),
                }
            )
    return states


@torch.no_grad()
def _as_updated(sampler: L2E, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
    """θ − μ of parameters, of the float32 copies where there are any: what the rule is given."""
    weights = [sampler.state[p].get(MASTER, p).detach() for p in params]
    means = prior_mean.of_params(group, params)
    return weights if means is None else [w - mean.to(w.dtype) for w, mean in zip(weights, means, strict=True)]
