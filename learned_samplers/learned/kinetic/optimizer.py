"""Kinetic-L2E: a learned mean of the momentum, with the posterior as its invariant law in continuous time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.guards.precision import without_autocast
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import arguments
from learned_samplers.base.segments import Segments
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.learned.flat_buffers import gather, scatter, together
from learned_samplers.learned.kinetic.rule import KineticSettings, kinetic_finish, kinetic_mean
from learned_samplers.learned.native.kinetic import half_step
from learned_samplers.learned.sampler import LearnedSampler


class KineticL2E(LearnedSampler):
    """A learned sampler that keeps the posterior: SGHMC whose momentum has a learned mean f(θ).

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024, Appendix D.

    L2E with the kinetic energy g(θ, r) = ½‖r − f(θ)‖².

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), f(θ) = s·network(θ, ∇Ũ(θ)) and J = ∂f/∂θ:

        r ← (1−a)·r + a·f(θ) − ε·∇Ũ + √(2aT)·ξ
        v = r − f(θ)
        θ ← θ + ε·v,    r ← r + ε·Jᵀv,    Jᵀv = (∂f/∂θ)ᵀv + ∇²Ũ·(∂f/∂∇Ũ)ᵀv

    ∂g/∂r = r − f and ∂g/∂θ = −Jᵀ(r − f) are derived in `learned_samplers.learned.kinetic.rule`; the paper's printed
    ∂g/∂θ is not the gradient of its energy. The untrained sampler (last layer zero) is `SGHMC`, bit for bit.

    Invariant law: exp(−U/T − g/T) in continuous time for any network, so that θ follows the posterior; a step adds a
    bias that vanishes with the step size, as `SGHMC`'s does. The badge is "O(h)" where that was measured with the very
    weights and settings in use, as their card says; for other networks it is "heuristic".
    Noise in the gradient heats it about as much as it heats `SGHMC`. Without the Hessian (``hessian="none"``) variances
    on Gaussians are wrong by 8 to 40 % at any step size (badge heuristic).

    ``hessian=`` says where the Hessian-vector product ∇²Ũ·w comes from. It needs a closure:

    - "finite_difference": (∇L(θ + δw) − ∇L(θ))/δ. One more call of the usual closure at each step, on the same
      minibatch (dropout and augmentation must not change between the calls). Its error is O(δ).
    - "double_backward": the closure returns the loss and does *not* call ``backward``; the product is exact. One more
      backward pass through a graph twice as long, and the memory for it.
    - "none": the product is left out. No closure is needed, and the invariant law is no longer claimed: an ablation.

    Measured without compiled code on one CPU core with a small convolutional network of 32,000 weights, milliseconds a
    step: `SGHMC` 5.4, "none" 12, "finite_difference" 21, "double_backward" 31; f and its derivative cost about 6 of
    them. (With it they cost a fifth of that: docs/speed.md.)

    Args:
        params, lr, num_data, temperature, prior_precision, momentum_decay: as for `L2E`.
        momentum_init, foreach, generator, options: as for `L2E`, too.
        network: as for `L2E`; "default" is the shipped "kinetic-l2e". The network has two inputs and one output.
        mean_scale: s, in units of the momentum; by default the card's, else 1.
        output_bound: B > 0 holds the network's output to B·tanh(·/B).
        hessian: "finite_difference" (the default), "double_backward" or "none".
        probe_size: δ as root mean square displacement of θ; by default 10⁻³.
        settings: a `learned_samplers.learned.kinetic.rule.KineticSettings` in the place of the four before.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a step
            without a closure; a closure that called ``backward`` with ``hessian="double_backward"``.
    """

    settings_class = KineticSettings
    not_sharded = "it evaluates the loss beside the present weights"
    settings: KineticSettings
    claims_law = True
    state_names = ("momentum",)
    takes_prior_mean = False
    #: The first half of the step is done beside the evaluation of the loss.
    half_precision = False

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        num_data: float | None = None,
        *,
        network: str | os.PathLike[str] | nn.Module | None = "default",
        momentum_decay: float | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        mean_scale: float | None = None,
        output_bound: float | None = None,
        hessian: str | None = None,
        probe_size: float | None = None,
        settings: KineticSettings | None = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _shipped(self, own: dict[str, Any], num_data: float) -> str:
        return "kinetic-l2e"

    @property
    def hessian(self) -> str:
        """How the Hessian-vector product is computed: "finite_difference", "double_backward" or "none"."""
        return self.settings.hessian

    @property
    def probe_size(self) -> float:
        """Step δ of the finite difference."""
        return self.settings.probe_size

    @property
    def needs_closure(self) -> bool:  # type: ignore[override]
        return self.hessian != "none"

    # ---------------------------------------------------------------- the step

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute the gradients, the first half of the step, and the Hessian-vector product for the second half."""
        loss = self.run(closure)
        slopes = self._differentiable_gradients(loss) if self.hessian == "double_backward" else {}
        evaluation = Evaluation(loss, self.collect_gradients())
        with self.restored_on_error() as evaluation.restore:
            self._prepare(closure, evaluation, slopes)
        return evaluation

    def _prepare(self, closure: Callable[[], Any] | None, evaluation: Evaluation, slopes: dict[Tensor, Tensor]) -> None:
        """Draw the noise and compute the new values, which `advance` then writes into the parameters and the state."""
        halves: list[_HalfStep] = []
        for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
            with without_autocast(self.param_groups):  # the closure alone is the user's
                inputs.prepared = self._half_steps(group, inputs)
            halves += inputs.prepared
        if self.hessian == "none":
            return
        directions: dict[Tensor, Tensor] = {}
        for half in halves:
            pieces = half.direction.split(half.segments.lengths)
            directions.update({p: w.reshape(p.shape) for p, w in zip(half.params, pieces, strict=True)})
        if not any(w.any() for w in directions.values()):
            return
        if slopes:
            with torch.enable_grad():
                products = torch.autograd.grad(
                    [slopes[p] for p in directions], list(directions), list(directions.values()), materialize_grads=True
                )
            product = dict(zip(directions, products, strict=True))
        else:
            assert closure is not None
            product = self._probe(closure, directions)
        for half in halves:
            half.force = half.force + gather([product[p] for p in half.params])

    def _half_steps(self, group: dict[str, Any], inputs: GroupInputs) -> list[_HalfStep]:
        params, grads, hyper = inputs.params, inputs.gradients, self.hyper(group)
        momenta = [self.state_of(group, p, "momentum") for p in params]
        halves = []
        for members in together(params):
            chosen = [params[i] for i in members]
            noise = self.noise_for(chosen, hyper)
            segments, theta = Segments(tuple(p.numel() for p in chosen)), gather(chosen)
            parts = half_step(
                theta,
                gather([grads[i] for i in members]),
                None if noise is None else gather(noise),
                gather([momenta[i] for i in members]),
                phi=self._phi(theta),
                segments=segments,
                **hyper,
            )
            halves.append(_HalfStep(chosen, segments, theta, *parts))
        return halves

    def _differentiable_gradients(self, loss: Any) -> dict[Tensor, Tensor]:
        """∇L with its graph, and as ``p.grad`` without it."""
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        reason = 'with hessian="double_backward" the closure must return the loss and not call backward() itself'
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            raise ValueError(f"{reason}; it returned {loss!r}")
        try:
            with torch.enable_grad():
                slopes = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
        except RuntimeError as error:
            raise ValueError(f"{reason} ({error})") from error
        for p, slope in zip(params, slopes, strict=True):
            p.grad = None if slope is None else slope.detach()
        return {p: slope for p, slope in zip(params, slopes, strict=True) if slope is not None}

    def _probe(self, closure: Callable[[], Any], directions: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """(∇L(θ + δw) − ∇L(θ))/δ; parameters and gradients end as they were."""
        size = sum(w.numel() for w in directions.values())
        length = (sum(w.double().square().sum().item() for w in directions.values()) / size) ** 0.5
        delta = self.probe_size / length
        before = {p: (p.clone(), p.grad.clone()) for p in directions if p.grad is not None}
        try:
            for p, w in directions.items():
                p.add_(w, alpha=delta)
                p.grad = None  # a closure that leaves clearing to the loop would add to it
            self.run(closure, " at the probe")
            found = {p: p.grad for p in before}
            missing = [p for p, slope in found.items() if slope is None]
            if missing:
                raise ValueError(
                    f"{len(missing)} of {len(found)} parameters, the first of shape {tuple(missing[0].shape)}, have a "
                    "gradient at the weights and none at the probe, where the closure is evaluated again"
                )
            return {p: (slope - before[p][1]) / delta for p, slope in found.items() if slope is not None}
        finally:
            for p, (start, slope) in before.items():
                p.copy_(start)
                p.grad = slope

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        hyper = self.hyper(group)
        for half in inputs.prepared:
            theta, momentum = kinetic_finish(
                half.theta, half.mean, half.half, half.force, lr=hyper["lr"], num_data=hyper["num_data"]
            )
            scatter(theta, half.params, half.segments)
            scatter(momentum, [self.state[p]["momentum"] for p in half.params], half.segments)

    @torch.no_grad()
    def temperatures(self) -> list[dict[str, float]]:
        """As `Sampler.temperatures`; the kinetic temperature is the mean of (r − f(θ))², the law's own."""
        reports = super().temperatures()
        for report, group in zip(reports, self.param_groups, strict=True):
            moved = [p for p in group["params"] if p.grad is not None and "momentum" in self.state.get(p, {})]
            total = 0.0
            for members in together(moved):
                chosen = [moved[i] for i in members]
                theta = gather(chosen)
                hyper = {key: as_number(group[key]) for key in ("num_data", "prior_precision")}
                mean = kinetic_mean(
                    theta,
                    gather([p.grad for p in chosen if p.grad is not None]),
                    phi=self._phi(theta),
                    segments=Segments(tuple(p.numel() for p in chosen)),
                    settings=self.settings,
                    **hyper,
                )
                momentum = gather([self.state[p]["momentum"] for p in chosen])
                total += (momentum - mean).square().sum().item()
            size = sum(p.numel() for p in moved)
            report["kinetic"] = total / size if size else float("nan")
        return reports


@dataclass
class _HalfStep:
    """Between the two halves of a step: what `kinetic_half_step` gave for tensors that share a buffer."""

    params: list[Tensor]
    segments: Segments
    theta: Tensor
    mean: Tensor
    half: Tensor
    force: Tensor
    direction: Tensor
