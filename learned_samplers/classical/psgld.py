"""Preconditioned stochastic gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.guards import precision
from learned_samplers.base.operations import FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import choice, setting
from learned_samplers.base.step import Evaluation
from learned_samplers.classical.full_data import OneLoss


def psgld_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    second_moment: Any,
    *,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    decay: Any,
    eps: Any,
    curvature: Any = None,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any]:
    """Update of `PSGLD` as a pure function, with any leading batch axes.

    V ← dV + (1−d)ĝ²;  G = 1/(eps + √V);  θ ← θ − lr·G·ĝ + (lr·T/N)·Γ + √(2·lr·T/N·G)·ξ.

    ĝ = g + λθ/N; Γᵢ = ∂Gᵢ/∂θᵢ is left out when ``curvature``, ∂gᵢ/∂θᵢ of the mean loss, is None. All tensors have one
    shape with any leading batch axes.
    """
    pull = prior_precision / num_data
    if isinstance(pull, Tensor) or pull != 0:
        gradient = ops.combine(gradient, parameter, pull)
    second_moment = ops.scale(second_moment, decay)
    second_moment = ops.add_product(second_moment, gradient, gradient, 1 - decay)
    root = ops.sqrt(second_moment)
    denominator = ops.affine(root, 1.0, eps)
    if noise is not None and curvature is not None:
        # Γ = −(1−d)·(ĝ/√V)·(∂ĝ/∂θ) / (eps + √V)²; ĝ/√V is bounded, and 0 where no gradient was ever seen.
        weight = ops.divide(ops.affine(gradient, 1.0, 0.0), ops.affine(root, 1.0, 1e-4 * eps))
        weight = ops.multiply(weight, ops.affine(curvature, 1.0, pull))
        square = ops.multiply(ops.affine(denominator, 1.0, 0.0), denominator)
        correction = -(1 - decay) * lr * temperature / num_data
        parameter = ops.add_ratio(parameter, weight, square, correction)
    parameter = ops.add_ratio(parameter, gradient, denominator, -lr)
    if noise is not None:
        spread = scalar_sqrt(2 * lr * temperature / num_data)
        parameter = ops.add_ratio(parameter, noise, ops.sqrt(denominator), spread)
    return parameter, second_moment


class PSGLD(Sampler):
    """RMSprop plus noise: approximate samples of the posterior, with a step size for each weight.

    Source: Li, Chen, Carlson and Carin, Preconditioned stochastic gradient Langevin dynamics for deep neural networks,
    AAAI 2016.

    Update, with ĝ = ∇Ũ/N = g + λθ/N, d = ``decay``, ξ ~ N(0, I):

        V ← d·V + (1−d)·ĝ²,    G = 1/(eps + √V)
        θ ← θ − lr·G·ĝ + (lr·T/N)·Γ + √(2·lr·T/N·G)·ξ,    Γᵢ = ∂Gᵢ/∂θᵢ

    At temperature 0 it is ``torch.optim.RMSprop(lr, alpha=decay, eps=eps)``.

    Invariant law: a preconditioner that changes with θ shifts the law unless Γ is added. The common practice, and the
    default here, is to leave Γ out (``correction="none"``): it is small while V moves slowly against θ (d close to 1),
    and the law is then only approximately the posterior, hence the badge. ``correction="probe"`` adds
    Γᵢ = −(1−d)·ĝᵢ·∂ᵢĝᵢ / ((eps + √Vᵢ)²·√Vᵢ), the paper's term: ∂ᵢĝᵢ is estimated with one random sign vector z as
    zᵢ·(ĝᵢ(θ + δz) − ĝᵢ(θ))/δ, exact for a diagonal Hessian and unbiased to O(δ) otherwise. It costs a second
    evaluation of the closure at each step, on the same minibatch; torch's random numbers are replayed for it. With
    d = 0 and the full gradient the corrected rule is O(h)-exact; at 0 < d < 1 the paper's term counts only the newest
    gradient in V, so it corrects a part (1−d).

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; "probe" without a closure at a step, or
            with one that took other minibatches at the two evaluations of the last twenty steps.
    """

    decay: float = setting(
        default=0.99,
        check=partial(validation.fraction, open_right=True),
        doc="d in [0, 1), the memory of the mean square.",
    )
    eps: float = setting(
        default=1e-5,
        check=validation.positive,
        doc="added to √V, in units of the mean loss's gradient. A weight that no gradient reaches takes steps of "
        "√(2·lr·T/(N·eps)).",
    )
    correction: str = choice("none", "probe", default="none", doc='"none" or "probe".')
    probe_size: float = setting(default=1e-3, check=validation.positive, doc="δ > 0, in units of θ.")

    badge = "heuristic"
    side_by_side = ("stacked", "separate")
    state_names = ("second_moment",)
    non_negative = ("second_moment",)
    rule = staticmethod(psgld_rule)

    def _begin(self) -> None:
        super()._begin()
        self.one_loss = OneLoss()
        self._joining: list[dict[str, Any]] = []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; a probe in it moves the weights of all groups, whose dtypes it may not suit."""
        self._joining = [{**self.defaults, **param_group}] if isinstance(param_group, dict) else []
        try:
            for group in self.param_groups:
                precision.validate(self, group, group["params"])
            super().add_param_group(param_group)
        finally:
            self._joining = []

    def join(self, param_group: dict[str, Any]) -> None:
        super().join(param_group)
        if self._probes() and (by_input := next((p for p in self.group_priors if p is not None and p.by_input), None)):
            raise ValueError(f"prior_precision must not be by input with correction='probe', got {by_input!r}")

    @property
    def needs_closure(self) -> bool:  # type: ignore[override]
        return any(group["correction"] == "probe" for group in getattr(self, "param_groups", ()))

    @property
    def not_sharded(self) -> str:  # type: ignore[override]
        """The probe writes beside the present weights."""
        return "correction='probe' evaluates the loss at moved weights" if self._probes() else ""

    @property
    def half_precision(self) -> bool:  # type: ignore[override]
        """The probe is a step of 10⁻³, which half precision rounds away."""
        return not self._probes()

    def _probes(self) -> bool:
        """Tell whether any group has the probe, or one that joins."""
        return any(group["correction"] == "probe" for group in (*self.param_groups, *self._joining))

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        if closure is None or not self.needs_closure:
            return super().evaluate(closure)
        before = self.global_rng_state()
        evaluation = super().evaluate(closure)
        with self.restored_on_error() as evaluation.restore:
            self._probe(closure, evaluation, before)
        return evaluation

    def _probe(self, closure: Callable[[], Any], evaluation: Evaluation, replay: dict[str, Tensor]) -> None:
        """Add ∂gᵢ/∂θᵢ to the inputs, from one more evaluation beside θ with the random numbers of the first.

        Parameters, gradients and generators are put back as they were, also if the closure fails.
        """
        groups = list(zip(self.param_groups, evaluation.groups, strict=True))
        params = [p for inputs in evaluation.groups for p in inputs.params]
        start = [p.clone() for p in params]
        for inputs in evaluation.groups:  # the second evaluation overwrites the first one's gradients
            inputs.gradients = [gradient.clone() for gradient in inputs.gradients]
        signs = [[self.noise_like(p).sign_() for p in inputs.params] for inputs in evaluation.groups]
        after = self.global_rng_state()
        self.broken_off = True  # until the weights are back
        try:
            for (group, inputs), members in zip(groups, signs, strict=True):
                for p, sign in zip(inputs.params, members, strict=True):
                    p.add_(sign, alpha=group["probe_size"])
            self.set_rng_state(replay)
            loss, along = self.run(closure, " at the probe"), 0.0
            # A parameter that the loss does not reach beside θ has no gradient there, or 0.
            there = {p: g for probed in self.collect_gradients() for p, g in zip(probed.params, probed.gradients)}
            for (group, inputs), members in zip(groups, signs, strict=True):
                moved = [there.get(p, torch.zeros_like(p)) for p in inputs.params]
                for sign, shifted, gradient in zip(members, moved, inputs.gradients, strict=True):
                    along += 0.5 * group["probe_size"] * (sign * (shifted + gradient)).sum().item()
                if group["correction"] == "probe":
                    inputs.per_parameter["curvature"] = [
                        sign * (shifted - gradient) / group["probe_size"]
                        for sign, shifted, gradient in zip(members, moved, inputs.gradients, strict=True)
                    ]
            self.one_loss.compare(self, evaluation.loss, loss, along)
        finally:
            with torch.no_grad():  # also where an interruption kept the closure's gradients on
                self.set_rng_state(after)
                for p, value in zip(params, start, strict=True):
                    p.copy_(value)
                for inputs in evaluation.groups:
                    for p, gradient in zip(inputs.params, inputs.gradients, strict=True):
                        p.grad = gradient
            self.broken_off = False
