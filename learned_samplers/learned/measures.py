"""Numbers that say what a trained L2E does: how far it is from its own theory, and which of its terms matter.

Pure functions of flat buffers with any leading batch axes, like the rules; `flat_states` gives their arguments for an
optimizer in mid-run: ``for state in flat_states(sampler): term_contributions(**state)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from learned_samplers.base import prior_mean
from learned_samplers.base.guards.precision import MASTER
from learned_samplers.base.operations import scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.features import network_at
from learned_samplers.learned.l2e import L2E, L2ESettings, l2e_rule, velocity_scale
from learned_samplers.learned.network import Phi, RuleArguments
from learned_samplers.learned.sampler import gather


@dataclass(frozen=True)
class AssumptionViolation:
    """∂α/∂r and ∂β/∂θ of every coordinate, (..., d), per step: both times ε, hence dimensionless.

    Where Assumption 3.1 holds they are the mixed second derivative of one function g(θ, r), and equal.
    """

    alpha_by_momentum: Tensor
    beta_by_parameter: Tensor

    @property
    def violation(self) -> Tensor:
        """|∂α/∂r − ∂β/∂θ| of every coordinate, (..., d)."""
        return (self.alpha_by_momentum - self.beta_by_parameter).abs()

    @property
    def relative(self) -> Tensor:
        """‖∂α/∂r − ∂β/∂θ‖ / (‖∂α/∂r‖ + ‖∂β/∂θ‖) over the coordinates, (...): 0 holds, 1 fails as far as it can."""
        sizes = self.alpha_by_momentum.norm(dim=-1) + self.beta_by_parameter.norm(dim=-1)
        return torch.where(sizes > 0, self.violation.norm(dim=-1) / sizes.clamp(min=1e-300), 0.0)


def assumption_violation(
    parameter: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    averages: Tensor,
    covariances: Tensor | None = None,
    *,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    momentum_decay: Any = 0.0,
    step: Any = 0,
    settings: L2ESettings,
    prior_precision: Any = None,
    **_: Any,
) -> AssumptionViolation:
    """Measure by how much (α, β) fail to be the gradient of one kinetic energy g(θ, r), coordinate by coordinate.

    Assumption 3.1 of the paper needs ∂α/∂r = ∂β/∂θ, with α = ∂g/∂θ and β = ∂g/∂r in the units of Eq. 6. There
    ε·α = s_α·network and β = r + s_β·network in the residual form, α = s·network and β = s·network in the paper's;
    where the learned friction is scaled by f ≠ 1, −a·(1−f)·s_β·network is a part of ε·α. The derivatives are those
    through the network's inputs r and θ, with the gradient, its averages and the root mean squares of the tensors
    held fixed.

    Args:
        parameter, gradient, momentum, averages, covariances: the state before a step, see
            `learned_samplers.learned.l2e.l2e_rule`.
        phi, segments, lr, num_data, momentum_decay, step, settings, prior_precision: as for the rules; their further
            arguments are ignored.
    """
    run = dict(settings=settings, lr=lr, num_data=num_data, step=step, prior_precision=prior_precision)
    network, _kept = network_at(phi, parameter, gradient, averages, segments, covariances=covariances, **run)
    network(momentum)
    pull = torch.func.vjp(network.held, parameter, momentum)[1]
    ones, zeros = torch.ones_like(parameter), torch.zeros_like(parameter)
    (_, by_momentum), (by_parameter, beta_by_momentum) = pull((ones, zeros)), pull((zeros, ones))
    step_size = scalar_sqrt(lr / num_data)
    per_step = 1.0 if settings.form == "residual" else step_size
    beta_scale = velocity_scale(settings, num_data)
    unfelt = momentum_decay * (1 - settings.friction_scale) * beta_scale
    by_momentum = by_momentum * (settings.alpha_scale * per_step) - beta_by_momentum * unfelt
    return AssumptionViolation(by_momentum, by_parameter * (beta_scale * step_size))


def term_contributions(
    parameter: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    averages: Tensor,
    covariances: Tensor | None = None,
    *,
    settings: L2ESettings,
    step: Any = 0,
    **at: Unpack[RuleArguments],
) -> dict[str, Tensor]:
    """Root mean square over the coordinates, (...), of every term of one step, in units of the momentum.

    The terms that change r: "gradient" ε·N·g, "prior" ε·λθ, "friction" a·r (residual form), "alpha", "learned_friction"
    and "noise" (its standard deviation). Those that change θ, over ε: "momentum" r (residual form) and
    "learned_velocity", both at the new r without its noise.

    Arguments are those of `l2e_rule`, without the noise.
    """
    lr, num_data, momentum_decay = at["lr"], at["num_data"], at["momentum_decay"]
    before = parameter, gradient, None, momentum, averages, covariances
    _, moved, *_ = l2e_rule(*before, settings=settings, step=step, **at)
    run = dict(settings=settings, lr=lr, num_data=num_data, step=step, prior_precision=at["prior_precision"])
    network, _ = network_at(at["phi"], parameter, gradient, averages, at["segments"], covariances=covariances, **run)
    alpha, beta = network(momentum)
    beta_scale = velocity_scale(settings, num_data)
    step_size = scalar_sqrt(lr / num_data)
    residual = settings.form == "residual"
    damping = momentum_decay * settings.friction_scale
    terms = {
        "gradient": gradient * (step_size * num_data),
        "prior": parameter * (step_size * at["prior_precision"]),
        "alpha": alpha * (settings.alpha_scale if residual else step_size * settings.alpha_scale),
        "learned_friction": beta * (damping * beta_scale),
        "learned_velocity": network(moved)[1] * beta_scale,
    }
    if residual:
        terms |= {"friction": momentum * momentum_decay, "momentum": moved}
    report = {name: term.square().mean(-1).sqrt() for name, term in terms.items()}
    spread = scalar_sqrt(2 * momentum_decay * at["temperature"])
    report["noise"] = torch.ones_like(report["alpha"]) * spread
    return report


#: Where the rule calls a state by another name than the optimizer does.
_KEYWORD = {"whitening": "covariances"}


def flat_states(sampler: L2E) -> list[dict[str, Any]]:
    """The arguments of `assumption_violation` and `term_contributions`, for each buffer of an optimizer's groups.

    Call it between ``backward`` and ``step``, after at least one step.

    Raises:
        TypeError: the sampler is no `L2E`.
        ValueError: a parameter has no gradient, or no step has been taken.
    """
    if not (isinstance(sampler, L2E) and isinstance(sampler.settings, L2ESettings)):
        raise TypeError(f"sampler must be an L2E, got {type(sampler).__name__}")
    if not sampler.step_count:
        raise ValueError("sampler must have taken a step, which makes its state; it has taken 0")
    states = []
    for group, inputs in zip(sampler.param_groups, sampler.collect_gradients(), strict=True):
        params, grads = inputs.params, inputs.gradients
        for members in sampler.batches(params):
            chosen = [params[i] for i in members]
            state = {name: [sampler.state[p][name] for p in chosen] for name in sampler.state_names}
            theta = gather(_as_updated(sampler, group, chosen)).clone()
            states.append(
                {
                    "parameter": theta,
                    "gradient": gather([grads[i] for i in members]).to(theta.dtype),
                    **{_KEYWORD.get(name, name): sampler.flat_state(name, tensors) for name, tensors in state.items()},
                    "phi": [(weight.detach(), bias.detach()) for weight, bias in sampler._phi(theta)],
                    "segments": Segments.of(chosen),
                    "settings": sampler.settings,
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
