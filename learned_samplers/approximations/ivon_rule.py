"""IVON's update as a pure function, and its saved states of before."""

from __future__ import annotations

from typing import Any

from learned_samplers.base.operations import FUNCTIONAL, Operations


def ivon_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    gradient_average: Any,
    hessian: Any,
    average_weight: Any,
    *,
    hessian_estimate: Any,
    lr: Any,
    num_data: Any,
    prior_precision: Any,
    betas: tuple[float, float],
    hess_init: float,
    clip_radius: float | None,
    rescale_lr: bool,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any, Any, Any]:
    """One update of the mean and of the Hessian, with any leading batch axes; nothing is drawn (``noise`` is unused).

    With δ = λ/N:  ḡ ← β₁ḡ + (1−β₁)g;  w ← β₁w + (1−β₁);  h ← h + (1−β₂)(ĥ−h) + ½(1−β₂)²(ĥ−h)²/(h+δ);
    m ← m − lr·[ḡ/w + δm]/(h+δ). The weight w of all gradients in ḡ, 1−β₁ᵗ after t steps, has one number a parameter.
    """
    decay = prior_precision / num_data
    gradient_average = ops.add(ops.scale(gradient_average, betas[0]), gradient, 1 - betas[0])
    average_weight = ops.shift(ops.scale(average_weight, betas[0]), 1 - betas[0])
    rate = 1 - betas[1]
    change = ops.combine(hessian_estimate, hessian, -1.0)
    before = ops.affine(hessian, 1.0, decay)
    hessian = ops.add(hessian, change, rate)
    hessian = ops.add_ratio(hessian, ops.multiply(change, change), before, 0.5 * rate**2)
    precision = ops.affine(hessian, 1.0, decay)
    direction = ops.divide(ops.affine(gradient_average, 1.0, 0.0), average_weight)
    direction = ops.divide(ops.add(direction, parameter, decay), precision)
    if clip_radius is not None:
        direction = ops.map(lambda one: one.clamp(-clip_radius, clip_radius), direction)
    scale = lr * (hess_init + decay) if rescale_lr else lr
    return ops.add(parameter, direction, -scale), gradient_average, hessian, average_weight


def with_weights(saved: Any) -> Any:
    """A saved state that has no ``average_weight``, as those of before, with the 1 − β₁ᵗ that it had."""
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        return saved  # to be refused
    state = {**saved["state"]}
    for group in saved.get("param_groups", ()):
        for number in group["params"]:
            own = state.get(number, {})
            if "gradient_average" in own and "average_weight" not in own:
                like = own["gradient_average"]
                weight = like.new_full((1,) * like.dim(), 1 - group["betas"][0] ** group["step"])
                state[number] = {**own, "average_weight": weight}
    return {**saved, "state": state}
