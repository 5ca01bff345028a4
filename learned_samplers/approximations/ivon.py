"""IVON: trains a Gaussian approximation of the posterior, much as Adam trains a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.guards import replicas
from learned_samplers.base.norms import norms
from learned_samplers.base.operations import FUNCTIONAL, Operations, as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import learning_rate, setting
from learned_samplers.base.step import Evaluation, collect


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
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any, Any, Any]:
    """Update the mean and the Hessian, with any leading batch axes; nothing is drawn (``noise`` is unused).

    With δ = λ/N:  ḡ ← β₁ḡ + (1−β₁)g;  w ← β₁w + (1−β₁);  h ← h + (1−β₂)(ĥ−h) + ½(1−β₂)²(ĥ−h)²/(h+δ);
    m ← m − lr·(h₀+δ)·[ḡ/w + δm]/(h+δ). The weight w of all gradients in ḡ, 1−β₁ᵗ after t steps, has one number a
    parameter.
    """
    decay = prior_precision / num_data
    gradient_average = ops.add(ops.scale(gradient_average, betas[0]), gradient, 1 - betas[0])
    average_weight = ops.shift(ops.scale(average_weight, betas[0]), 1 - betas[0])
    forgotten = 1 - betas[1]
    change = ops.combine(hessian_estimate, hessian, -1.0)
    before = ops.affine(hessian, 1.0, decay)
    hessian = ops.add(hessian, change, forgotten)
    hessian = ops.add_ratio(hessian, ops.multiply(change, change), before, 0.5 * forgotten**2)
    precision = ops.affine(hessian, 1.0, decay)
    direction = ops.divide(ops.affine(gradient_average, 1.0, 0.0), average_weight)
    direction = ops.divide(ops.add(direction, parameter, decay), precision)
    return ops.add(parameter, direction, -lr * (hess_init + decay)), gradient_average, hessian, average_weight


@dataclass
class _Draws:
    """The draws since the last step: their number, the sum of their estimates ĥ, and their mean gradients."""

    count: int = 0
    hessians: dict[Tensor, Tensor] = field(default_factory=dict)
    #: Each ``p.grad`` as it was left, its version and its norm: what changes it afterwards would not have changed ĥ.
    gradients: dict[Tensor, tuple[Tensor, int, float]] = field(default_factory=dict)

    def finite(self) -> bool:
        """Return True if a step could use them."""
        sizes = [norm for _, _, norm in self.gradients.values()] + norms([*self.hessians.values()])
        return all(map(math.isfinite, sizes))


def _two_fractions(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, got {value!r}")
    for i, beta in enumerate(value):
        validation.fraction(f"{name}[{i}]", beta, open_right=True)


_OUTSIDE = (
    "gradients changed outside of `with sampler.sampled_params():`, where the curvature does not see it; clip, unscale "
    "or add to them inside the block"
)


class IVON(Sampler):
    """Trains a Gaussian over the weights, much as Adam trains the weights themselves.

    Improved variational online Newton: each weight gets a mean m (what the
    parameters hold) and a standard deviation σ. The gradient is taken at weights drawn from that Gaussian::

        sampler = IVON(model.parameters(), lr=0.2, num_data=len(train_set), prior_precision=10.0)
        for x, y in loader:
            with sampler.sampled_params():
                sampler.zero_grad()
                loss_function(model(x), y).backward()
            sampler.step()
        samples = SampleCollection.from_draws(model, sampler.sampled_params, 32)

    In several processes with copies of a chain, predict inside of ``torch.no_grad()``.

    Several blocks before a step are several draws, whose gradients and curvatures are averaged; several ``backward`` in
    one block are one draw on a larger minibatch (gradient accumulation: divide the losses by their number). With
    ``step(closure)`` the draws are made for you. `PosteriorSamples` attached to it keeps a fresh draw, not the mean.

    Update, with g the mean minibatch gradient at θ = m + σε, ε ~ N(0, I), δ = λ/N, and after t steps:

        ĥ = g·ε/σ,    ḡ ← β₁ḡ + (1−β₁)g,    h ← h + (1−β₂)(ĥ−h) + ½(1−β₂)²(ĥ−h)²/(h+δ)
        m ← m − lr·(h₀+δ)·[ḡ/(1−β₁ᵗ) + δm]/(h+δ),    σ² = T/(N(h+δ))

    The paper's effective sample size is ess = N/T and its weight decay δ = λ/N. Of all Gaussians with independent
    weights it seeks the one nearest to exp(−U/T) in KL(q‖p): on a quadratic of curvature k, m is the optimum and
    σ² = T/(k+λ). Correlations are ignored, and one mode is seen, so that the law is heuristic. A flat
    prior leaves the deviation of weights that the data do not reach to grow: give a proper one.

    Source: Shen et al., Variational Learning is Effective for Large Deep Networks, ICML 2024, arXiv 2402.17641.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
        RuntimeError: from `step`: no draw since the last one, or gradients changed outside the block (clip them inside
            of it, so that ĥ sees it too); from `state_dict`: draws that no step has used yet.
    """

    lr: float = learning_rate(kw_only=False, doc="learning rate, near that of SGD (0.1 to 0.5).")
    betas: tuple[float, float] = setting(
        default=(0.9, 0.99999),
        check=_two_fractions,
        doc="β₁ and β₂, the decay of the averages of the gradients and of the curvature; in short runs (below some "
        "10,000 steps) lower β₂ to 1 − 10/steps.",
    )
    hess_init: float = setting(
        default=0.5, check=validation.positive, doc="h₀ > 0, the first h, in units of the mean loss's curvature."
    )
    draws: int = setting(
        default=1,
        check=validation.integer,
        of_sampler=True,
        doc="draws a step in ``step(closure)``, the closure being called so often.",
    )
    temperature: float = setting(default=1.0, check=validation.positive, doc="T > 0.")

    badge = "heuristic"
    side_by_side = ("stacked", "separate")
    not_sharded = "its gradients are taken at weights that it draws"
    #: Why `check_sampler` has nothing to look at.
    not_checked = (
        "its parameters are the mean of a Gaussian and no chain; hold its precisions() against the curvatures of a "
        "loss that you know"
    )
    state_names = ("gradient_average", "hessian", "average_weight")
    rule = staticmethod(ivon_rule)
    #: The gradient is taken at a draw, which would be rounded.
    half_precision = False
    _pending = _Draws()
    _inside = False

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return (1,) * p.dim() if name == "average_weight" else super().state_shape(name, p)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "average_weight":
            return p.new_zeros((1,) * p.dim())
        return torch.full_like(p, as_number(group["hess_init"])) if name == "hessian" else torch.zeros_like(p)

    def is_possible_state(self, group: dict[str, Any], name: str, state: Tensor) -> bool:
        """Tell whether h + λ/N, the precision, is positive."""
        if name == "hessian":
            return bool((state + as_number(group["prior_precision"]) / as_number(group["num_data"]) > 0).all())
        return super().is_possible_state(group, name, state)

    def noise_for(self, params: Any, hyper: dict[str, Any]) -> None:
        """Return None: the update draws no noise, as the gradient was taken at weights that were drawn."""
        return None

    # ---------------------------------------------------------------- drawing weights

    def precisions(self, group: dict[str, Any], p: Tensor) -> Tensor:
        """1/σ² = (N/T)·(h + λ/N) of each coordinate of a parameter."""
        return self._precisions(group, [p])[0]

    def _precisions(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        if not params:
            return []
        num_data, prior = as_number(group["num_data"]), as_number(group["prior_precision"])
        temperature = as_number(group["temperature"])
        # Not kept: a state dict with half of the state of a parameter that never gets a gradient would not load.
        averages = [self.state.get(p, {}).get("hessian") for p in params]
        hessians = [self.initial_state(group, p, "hessian") if h is None else h for p, h in zip(params, averages)]
        precisions = list(torch._foreach_mul(hessians, num_data / temperature))
        torch._foreach_add_(precisions, prior / temperature)
        return precisions

    @contextmanager
    def sampled_params(self) -> Iterator[None]:
        """Inside the block the parameters are a draw from the Gaussian; afterwards they are the mean again.

        Gradients computed inside become a draw for the next `step`; the block begins without gradients, and after it
        ``p.grad`` is the mean over the draws. A block that computes none (a prediction) leaves everything as it was.
        """
        if self._inside:
            raise RuntimeError("sampled_params() inside of sampled_params(): the weights are a draw already")
        if torch.is_grad_enabled() and not self.agreed:
            replicas.keep_together(self)  # the first draw of a replicated chain comes before its first step
        # What one process alone predicts must not move the generator that all copies of a chain have in common.
        draw = self.noise_like if torch.is_grad_enabled() or not self.agreed else torch.randn_like
        groups = {p: group for group in self.param_groups for p in group["params"] if p.requires_grad}
        means = {p: p.detach().clone() for p in groups}
        kept = {p: p.grad for p in groups}
        self._inside = True
        try:
            with torch.no_grad():
                for group in self.param_groups:
                    if trained := [p for p in group["params"] if p.requires_grad]:
                        roots = self._precisions(group, trained)
                        torch._foreach_sqrt_(roots)
                        torch._foreach_addcdiv_(trained, [draw(p) for p in trained], roots)
                for p in groups:
                    p.grad = None
            yield
            if any(p.grad is not None for p in groups):
                kept = self._record(groups, means, kept)
            elif self.agreed and draw == self.noise_like:
                raise RuntimeError(
                    "a block of sampled_params() computed no gradients, in one of several processes with copies of a "
                    "chain: enter it inside of torch.no_grad(), so that the copies go on drawing the same weights"
                )
        finally:
            self.broken_off = True  # until the weights are back
            self._inside = False
            with torch.no_grad():
                if means:
                    torch._foreach_copy_([*means], [*means.values()])
                for p in means:
                    p.grad = kept[p]
            self.broken_off = False

    @torch.no_grad()
    def _record(self, groups: Any, means: Any, before: dict[Tensor, Tensor | None]) -> dict[Tensor, Tensor | None]:
        """Add a draw's ĥ = g·(θ−m)/σ² to the sum, and return the mean gradients; ``before`` are the earlier ones."""
        if all(gradient is None for gradient in before.values()) or not self._pending.finite():
            # The user has cleared the gradients, or no step will use them, as after one that a GradScaler has skipped.
            self._pending = _Draws()
        pending = self._pending
        self._require_untouched(before)
        gradients: dict[Tensor, Tensor | None] = {p: p.grad for p in groups}
        hessians = dict(pending.hessians)
        for p in groups:
            earlier = before[p] if pending.count else None
            if p.grad is None:  # as a gradient of zero in this draw
                if earlier is not None:
                    gradients[p] = earlier * (pending.count / (pending.count + 1))
            elif earlier is not None:
                gradients[p] = earlier + (p.grad - earlier) / (pending.count + 1)
            elif pending.count:
                gradients[p] = p.grad / (pending.count + 1)
        for group in self.param_groups:
            if reached := [p for p in group["params"] if p in groups and p.grad is not None]:
                estimates = self._precisions(group, reached)
                torch._foreach_mul_(estimates, torch._foreach_sub(reached, [means[p] for p in reached]))
                torch._foreach_mul_(estimates, [p.grad for p in reached])
                for p, estimate in zip(reached, estimates, strict=True):
                    hessians[p] = hessians[p] + estimate if p in hessians else estimate
        present = {p: gradient for p, gradient in gradients.items() if gradient is not None}
        sizes = norms([*present.values()])
        kept = {p: (g, g._version, norm) for (p, g), norm in zip(present.items(), sizes, strict=True)}
        self._pending = _Draws(pending.count + 1, hessians, kept)
        return gradients

    def _require_untouched(self, gradients: dict[Tensor, Any]) -> None:
        kept = self._pending.gradients
        now = norms([gradient for gradient, _, _ in kept.values()])  # torch.amp.GradScaler leaves the version as it was
        for (p, (gradient, version, norm)), after in zip(kept.items(), now, strict=True):
            same = math.isclose(norm, after, rel_tol=1e-5) or not (math.isfinite(norm) or math.isfinite(after))
            if gradients[p] is not gradient or gradient._version != version or not same:
                raise RuntimeError(_OUTSIDE)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; outside of a block it also forgets the draws since the last step."""
        super().zero_grad(set_to_none)
        if not self._inside:
            self._pending = _Draws()

    # ---------------------------------------------------------------- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As for `SGLD`. ``torch.compile`` leaves it as it is: it cannot follow the draws through the closure."""
        step = super().step
        return (torch.compiler.disable(step) if torch.compiler.is_compiling() else step)(closure)

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """The draws' mean gradient and mean ĥ; a closure is called for ``draws`` draws, and its mean loss returned."""
        if closure is not None:
            if self._pending.count:
                raise RuntimeError(
                    "step(closure) makes its own draws, but there are some from sampled_params() already"
                )
            losses: list[Any] = []
            try:
                with self.restored_on_error() as restore:
                    for _ in range(self.draws):
                        with self.sampled_params():
                            losses.append(self.run(closure))
                    evaluation = self._collect()
            finally:
                self._pending = _Draws()
            losses = [loss for loss in losses if loss is not None]  # torch's optimizers take a closure without one, too
            evaluation.loss = sum(losses) / len(losses) if losses else None
            evaluation.restore = restore
            return evaluation
        if self._inside:
            raise RuntimeError("step() inside of sampled_params(): call it after the block, which puts the mean back")
        if not self._pending.count:
            raise RuntimeError(
                "no draw since the last step: compute the gradients inside `with sampler.sampled_params():`, or give "
                "step a closure"
            )
        evaluation, pending = self._collect(), self._pending
        self._pending = _Draws()
        evaluation.restore = lambda: setattr(self, "_pending", pending)
        return evaluation

    def _collect(self) -> Evaluation:
        evaluation, pending = collect(self), self._pending
        self._require_untouched({p: p.grad for inputs in evaluation.groups for p in inputs.params})
        for inputs in evaluation.groups:
            if any(p not in pending.hessians for p in inputs.params):
                raise RuntimeError(_OUTSIDE)
            estimates = [pending.hessians[p] for p in inputs.params]
            if pending.count > 1:
                estimates = [estimate / pending.count for estimate in estimates]
            inputs.per_parameter["hessian_estimate"] = estimates
            if not all(map(math.isfinite, norms(estimates))) and not all(one.isfinite().all() for one in estimates):
                raise FloatingPointError("the curvature that the draws measured is not finite; nothing was changed")
        return evaluation

    def temperatures(self) -> list[dict[str, float]]:
        """Return nan for every group: the parameters are a mean, and no chain that would have a temperature."""
        return [{"kinetic": float("nan"), "configurational": float("nan")} for _ in self.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """As for `SGLD`. Call it right after a step, when no draw waits to be used."""
        if self._pending.count:
            raise RuntimeError("state_dict() between sampled_params() and step(): the draws would be lost; step first")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As for `SGLD`; draws that wait for a step are forgotten."""
        super().load_state_dict(state_dict)
        self._pending = _Draws()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "draws": self.draws}
