"""Preconditioned stochastic gradient Langevin dynamics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import saved_state as _saved_state
from learned_samplers.base import validation as check
from learned_samplers.base.operations import FUNCTIONAL, Operations, is_finite, scalar_sqrt
from learned_samplers.base.sampler import Sampler, arguments


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
    """V ← dV + (1−d)ĝ²;  G = 1/(eps + √V);  θ ← θ − lr·G·ĝ + (lr·T/N)·Γ + √(2·lr·T/N·G)·ξ.

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
    """Preconditioned SGLD (Li, Chen, Carlson and Carin, AAAI 2016), with RMSprop's preconditioner.

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

    Args:
        params, lr, num_data, temperature, prior_precision, foreach, generator: as for `SGLD`; lr is RMSprop's.
        decay: d in [0, 1), the memory of the mean square.
        eps: added to √V, in units of the mean loss's gradient.
        correction: "none" or "probe".
        probe_size: δ > 0, in units of θ.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; "probe" without a closure at a step.
    """

    badge = "heuristic"
    state_names = ("second_moment",)
    hyperparameters = ("lr", "num_data", "temperature", "prior_precision", "decay", "eps")
    rule = staticmethod(psgld_rule)

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float,
        *,
        decay: float = 0.99,
        eps: float = 1e-8,
        correction: str = "none",
        probe_size: float = 1e-3,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        check.fraction("decay", group["decay"], open_right=True)
        check.positive("eps", group["eps"])
        check.positive("probe_size", group["probe_size"])
        check.one_of("correction", group["correction"], ("none", "probe"))

    @property
    def needs_closure(self) -> bool:  # type: ignore[override]
        return any(group["correction"] == "probe" for group in self.param_groups)

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        if not self.needs_closure:
            return super()._evaluate(closure)
        before = _saved_state.global_rng_state(self)
        loss = super()._evaluate(closure)
        assert closure is not None
        self._probe(closure, before)
        return loss

    def _probe(self, closure: Callable[[], Any], replay: dict[str, Tensor]) -> None:
        """Estimate ∂gᵢ/∂θᵢ by one more evaluation beside θ, with the random numbers of the first (dropout, batches).

        Parameters, gradients and the generators end as they were, whatever happens.
        """
        groups = [(group, *self._gradients(group)) for group in self.param_groups]
        self._check_finite([(params, grads) for _, params, grads in groups])
        moved = [
            (p, g.clone(), p.clone(), group["probe_size"])
            for group, ps, gs in groups
            for p, g in zip(ps, gs, strict=True)
        ]
        signs = [self._noise(p).sign_() for p, *_ in moved]
        after = _saved_state.global_rng_state(self)
        try:
            for (p, *_, size), sign in zip(moved, signs, strict=True):
                p.add_(sign, alpha=size)
            _saved_state.set_rng_state(self, replay)
            with torch.enable_grad():
                loss = closure()
            if not is_finite(loss):
                raise FloatingPointError(f"the closure returned a loss that is not finite at the probe: {loss}")
            probed = [self._gradients(group) for group in self.param_groups]
            self._check_finite(probed)
            slopes = [
                sign * (shifted - gradient) / size
                for (_, gradient, _, size), sign, shifted in zip(
                    moved, signs, [g for _, grads in probed for g in grads], strict=True
                )
            ]
        finally:
            _saved_state.set_rng_state(self, after)
            for p, gradient, start, _ in moved:
                p.copy_(start)
                p.grad = gradient
        self._curvature = {p: slope for (p, *_), slope in zip(moved, slopes, strict=True)}

    def _inputs(self, group: dict[str, Any]) -> dict[str, dict[Tensor, Tensor]]:
        return {"curvature": self._curvature} if group["correction"] == "probe" else {}
