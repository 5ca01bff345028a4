"""Function-space Stein variational gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import as_number
from learned_samplers.base.settings import choice, data_count, setting
from learned_samplers.particles.base import ParticleSampler, Role
from learned_samplers.particles.directions import repulsion, svgd_direction
from learned_samplers.particles.gradients import (
    checked_gradient,
    flat_buffers,
    gradients_of,
    validate_losses,
    validate_outputs,
)
from learned_samplers.particles.kernels import RBF, check_kernel

#: Relative difference of two gradients that is more than rounding, in single precision and under autocast.
BYPASS = 1e-2


class FSVGD(ParticleSampler):
    """SVGD that spreads M networks by their outputs, not by their weights.

    Function-space particle optimisation by SVGD (Wang, Ren, Zhu and Zhang, ICLR 2019).

    With f the outputs of particle i on a measurement set (the minibatch and further inputs, see
    `function_space.measurement_set`), loss the mean negative log-likelihood of the minibatch and log p(f) the
    function-space prior:

        sⱼ = −N·∂lossⱼ/∂fⱼ + ∂log p(fⱼ)/∂fⱼ
        vᵢ = (1/M) Σⱼ [k(fⱼ, fᵢ) sⱼ + T ∂k(fⱼ, fᵢ)/∂fⱼ],    θᵢ ← θᵢ + (lr/N)·(∂fᵢ/∂θᵢ)ᵀ vᵢ

    One vector-Jacobian product a particle. With f(θ) = θ it is `SVGD`; one particle is the function-space MAP; a linear
    model with the kernel `Linear` has the mean and covariance of Bayesian linear regression.

    Parameters of the likelihood, such as the noise of a regression (one a particle), go in a group with ``"likelihood":
    True`` and move by −N·∂loss/∂θ: each particle's own maximum likelihood.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `FSVGD.step`.
    """

    num_data: float = data_count(kw_only=False, doc="N, the number of training points: the losses are mean losses.")
    kernel: Any = setting(
        default=None,
        check=check_kernel,
        optional=True,
        of_sampler=True,
        doc="on the flattened outputs; `RBF` with the full-matrix median by default, which is the published code's.",
    )
    likelihood: bool = choice(
        True, False, default=False, structural=True, doc="True in a group that holds the likelihood's parameters."
    )
    not_taken = (*ParticleSampler.not_taken, "prior_precision", "task")
    structural = ()  # and what is declared here
    several_targets = False

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        values["kernel"] = RBF() if values["kernel"] is None else values["kernel"]
        return super().prepare(params, values)

    def check_together(self, group: dict[str, Any]) -> None:
        super().check_together(group)
        if group["prior_precision"] != 0:
            raise ValueError(
                "FSVGD's prior is on functions, from the closure; prior_precision must be 0, got "
                f"{group['prior_precision']}"
            )

    def step(self, closure: Any = None) -> Any:
        """Move all particles by one step.

        Args:
            closure: returns (losses, outputs) or (losses, outputs, log_prior), with their graph: the losses (M,), each
                particle's mean negative log-likelihood on the minibatch, computed from the outputs; the outputs
                (M, n, ...) on the measurement set; and log p(f), (M,), computed from the outputs. Without the third
                the prior is flat.

        Returns:
            What the closure returned, detached.

        Raises:
            TypeError, ValueError: as for `ParticleSampler.step`, or the outputs or the prior have another shape, or a
                part of the losses or the prior is not computed from the outputs (looked at in the first step).
            FloatingPointError: a loss, the prior, a gradient or a direction is not finite. Nothing has changed after
                any of these.
        """
        return super().step(closure)

    def _roles(self, result: Any) -> list[Role]:
        losses, outputs, log_prior = self._unpack(result)
        num_data = as_number(self.param_groups[0]["num_data"])
        temperature = as_number(self.param_groups[0]["temperature"])
        likelihood, network = self._named("likelihood", True), self._named("likelihood", False)
        if not network:
            raise ValueError("every parameter belongs to the likelihood or is frozen; FSVGD needs the network's")
        wanted = [outputs, *(p for _, p in likelihood)]
        by_output, *by_likelihood = gradients_of(losses.sum(), wanted)
        if by_output is None:
            raise ValueError("the losses must be computed from the outputs that the closure returns beside them")
        if not self.step_count:
            total = losses.sum() if log_prior is None else losses.sum() - log_prior.sum()
            _refuse_bypass(total, outputs, network)
        score = -num_data * by_output
        if log_prior is not None:
            score += _prior_score(log_prior, outputs)
        # Outputs that the closure computed under autocast are in half precision.
        wide = torch.promote_types(outputs.dtype, network[0][1].dtype)
        flat = outputs.detach().flatten(1).to(wide)
        matrix = self.kernel(flat)
        push = svgd_direction(score.flatten(1).to(wide), repulsion(flat, matrix), matrix, temperature)
        push = push.view_as(outputs).to(outputs.dtype)
        moved = torch.autograd.grad(outputs, [p for _, p in network], push, allow_unused=True)
        roles = []
        parts = ((network, "outputs", moved, -1 / num_data), (likelihood, "losses", by_likelihood, 1.0))
        for named, of, grads, sign in parts:
            checked = [checked_gradient(name, g, f"the {of}") for (name, _), g in zip(named, grads, strict=True)]
            if params := [p for _, p in named]:
                buffers = flat_buffers(params, [sign * g[None] for g in checked], num_data, [])
                roles.append(Role(*buffers, losses.detach()[None], num_data, temperature, None, None, params))
        return roles

    def _unpack(self, result: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise TypeError("the closure must return (losses, outputs) or (losses, outputs, log_prior)")
        count = self.num_particles
        losses = validate_losses(result[0], count, several=False)[0]
        outputs = validate_outputs("outputs", result[1], count, least_dimensions=2)
        log_prior = result[2] if len(result) == 3 else None
        if log_prior is not None:
            if not isinstance(log_prior, Tensor) or log_prior.shape != (count,):
                shape = tuple(log_prior.shape) if isinstance(log_prior, Tensor) else type(log_prior).__name__
                raise ValueError(f"log_prior must have shape ({count},), got {shape}")
            if not log_prior.isfinite().all():
                raise FloatingPointError(f"the closure returned a log_prior that is not finite: {log_prior.detach()}")
        return losses, outputs, log_prior

    def _trunk(self, role: Role) -> Tensor:
        # The gradients are the directions already, pulled back to the parameters.
        return -role.gradients[0]


def _prior_score(log_prior: Tensor, outputs: Tensor) -> Tensor:
    score = None
    if log_prior.requires_grad:
        score = torch.autograd.grad(log_prior.sum(), outputs, retain_graph=True, allow_unused=True)[0]
    if score is None:
        raise ValueError("log_prior must be computed from the outputs that the closure returns beside it")
    return score


def _refuse_bypass(total: Tensor, outputs: Tensor, network: Sequence[tuple[str, Tensor]]) -> None:
    """ValueError where a part of the losses or of the prior does not pass through the outputs: it would be lost."""
    params = [p for _, p in network]
    grad = partial(torch.autograd.grad, retain_graph=True, allow_unused=True, materialize_grads=True)
    directly, through = grad(total, params), grad(outputs, params, grad(total, outputs)[0])
    for (name, _), gradient, by_outputs in zip(network, directly, through, strict=True):
        # What is not finite compares as false, and is told as such later.
        if (gradient - by_outputs).norm() > BYPASS * (gradient.norm() + by_outputs.norm()):
            raise ValueError(
                f"the losses or log_prior depend on parameter {name} other than through the outputs: FSVGD's prior is "
                "on functions, and a penalty on weights has no part in it"
            )
