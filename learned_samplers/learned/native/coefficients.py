"""Translates a sampler's settings and hyperparameters into the numbers that the compiled code takes (settings.h)."""

from __future__ import annotations

from learned_samplers.base.operations import scalar_sqrt
from learned_samplers.learned.l2e.rule import L2ESettings, decay_factor, velocity_scale
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings

__all__ = ["coefficients"]


def coefficients(
    settings: L2ESettings | PreconditionedSettings,
    *,
    lr: float,
    num_data: float,
    temperature: float,
    prior_precision: float,
    momentum_decay: float,
    step: float,
) -> dict[str, float]:
    """Fields of ``Settings`` in settings.h by name, without those that the feature set and the network decide."""
    step_size = scalar_sqrt(lr / num_data)
    common: dict[str, float] = dict(
        keep=1 - momentum_decay,
        kick=step_size * num_data,
        pull=step_size * prior_precision,
        heat=scalar_sqrt(2 * momentum_decay * temperature),
        step_size=step_size,
        output_bound=settings.output_bound or 0.0,
    )
    if isinstance(settings, PreconditionedSettings):
        own = dict(
            alpha=settings.friction_scale,
            velocity_beta=settings.curl_scale,
            output_factor=1.0,
            preconditioned=True,
            curl_clip=settings.curl_clip,
            friction_low=1 / settings.friction_clip,
            friction_high=min(settings.friction_clip, 1 / momentum_decay),
        )
    elif settings.form == "residual":
        beta_scale = velocity_scale(settings, num_data)
        own = dict(
            alpha=settings.alpha_scale,
            friction_beta=momentum_decay * beta_scale * settings.friction_scale,
            inertia=1.0,
            velocity_beta=beta_scale,
            output_factor=decay_factor(settings, step, num_data),
            normalise=settings.normalise_output,
        )
    else:
        assert settings.noise_multiplier is not None
        damping = momentum_decay if settings.friction == "equation6" else step_size * momentum_decay
        own = dict(
            keep=1.0,
            heat=scalar_sqrt(2 * momentum_decay * settings.noise_multiplier * temperature),
            alpha=step_size * settings.alpha_scale,
            friction_beta=damping * settings.beta_scale * settings.friction_scale,
            inertia=0.0,
            velocity_beta=settings.beta_scale,
            output_factor=1.0,
            normalise=settings.normalise_output,
        )
    return {**common, **own}
