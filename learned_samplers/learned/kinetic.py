"""Kinetic-L2E: a learned mean of the momentum, with the posterior as its invariant law in continuous time.

H(θ, r) = U(θ) + g(θ, r) with the kinetic energy g = ½‖r − f(θ)‖², so that p(r|θ) = N(f(θ), T) for any f: its normaliser
does not depend on θ, and the law of θ is the posterior with no assumption on the network. From g,

    ∂g/∂r = r − f(θ),        ∂g/∂θ = −Jᵀ(r − f(θ)),    J = ∂f/∂θ

(the paper, Appendix D, leaves out the ½ and prints ∂g/∂θ = f·∂f, which is not the gradient of its energy). The network
sees θ and ∇Ũ(θ), so J runs through the gradient: Jᵀv = (∂f/∂θ)ᵀv + ∇²Ũ·(∂f/∂∇Ũ)ᵀv, a Hessian-vector product.

With v = r − f, dv = −∇U − (J − Jᵀ)·v − C·v + noise: with a symmetric Jacobian (any f of each θᵢ alone) the path of θ
has the law of SGHMC's. All that this form can learn is the rotation J − Jᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation as check
from learned_samplers.base.guards.precision import without_autocast
from learned_samplers.base.operations import FUNCTIONAL, as_number, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.base.settings import choice, setting
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.classical.full_data import OneLoss
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.network import Phi, RuleArguments, value_and_slopes
from learned_samplers.learned.sampler import LearnedSampler, gather, scatter
from learned_samplers.learned.settings import LearnedSettings

#: The network's inputs: θ and ∇Ũ, each over its root mean square over the tensor.
KINETIC_FEATURES = ("parameter", "energy_gradient")


@dataclass(frozen=True, kw_only=True)
class KineticSettings(LearnedSettings):
    """The settings of `KineticL2E`."""

    sampler: ClassVar[str] = "KineticL2E"
    retired: ClassVar[dict[str, Any]] = {"hessian": "finite_difference"}

    feature_set: str = choice("kinetic", default="kinetic", doc="what the network sees: θ and ∇Ũ.")
    mean_scale: float = setting(
        default=1.0,
        check=check.non_negative,
        doc="s, the factor on the learned mean of the momentum, in its units.",
    )
    probe_size: float = setting(
        default=1e-3,
        check=check.positive,
        in_card=False,
        doc="δ of the finite difference, as root mean square displacement of θ.",
    )

    @property
    def features(self) -> tuple[str, ...]:
        return KINETIC_FEATURES

    @property
    def outputs(self) -> int:
        return 1


def kinetic_mean(
    parameter: Tensor,
    gradient: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    num_data: Any,
    prior_precision: Any,
    settings: KineticSettings,
) -> Tensor:
    """f(θ) = s·network(θ̂, ∇Ũ^), the mean of the momentum, (..., d).

    Args:
        parameter, gradient: (..., d), the gradient of the mean minibatch loss.
        phi: the network's layers, two inputs and one output, with the leading axes of ``parameter`` or none.
        segments: where the tensors lie in the flat axis.
        settings: ``mean_scale`` is s, in units of the momentum.
    """
    rows = [scaled for scaled, _ in _inputs(parameter, gradient, segments, prior_precision / num_data)]
    (mean,) = value_and_slopes(phi, rows, ())
    return mean * settings.mean_scale


def _inputs(parameter: Tensor, gradient: Tensor, segments: Segments, share: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the inputs c·z, c = rsqrt(mean z² + 10⁻⁵) over the tensor, for z = θ and z = ∇Ũ/N = g + share·θ; and c."""
    pairs = []
    for z in (parameter, gradient + parameter * share):
        factor = segments.expand(torch.rsqrt(segments.mean_square(z) + 1e-5))
        pairs.append((z * factor, factor))
    return pairs


def kinetic_half_step(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    settings: KineticSettings,
    phi: Phi,
    segments: Segments,
    **at: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Everything before the Hessian: (f, r_half, (∂f/∂θ)ᵀv, w) with v = r_half − f and w = (∂f/∂g)ᵀv, each (..., d).

    r_half = (1−a)·r + a·f − ε·(N·g + λθ) + √(2aT)·ξ.
    """
    share = at["prior_precision"] / at["num_data"]
    seen = _inputs(parameter, gradient, segments, share)
    mean, *slopes = value_and_slopes(phi, [x for x, _ in seen], (0, 1))
    mean = mean * settings.mean_scale
    _, half = sghmc_rule(parameter, gradient, noise, momentum, **at)
    half = FUNCTIONAL.add(half, mean, at["momentum_decay"])
    velocity = (half - mean) * settings.mean_scale
    # The transposed derivative of x = c·z takes y to c·(y − x·mean(x·y)).
    pulled = []
    for (x, factor), slope in zip(seen, slopes, strict=True):
        y = velocity * slope
        pulled.append(factor * (y - x * segments.expand(segments.mean(x * y))))
    direct, through_gradient = pulled
    return mean, half, direct + share * through_gradient, through_gradient


def kinetic_finish(
    parameter: Tensor, mean: Tensor, half: Tensor, force: Tensor, *, lr: Any, num_data: Any
) -> tuple[Tensor, Tensor]:
    """θ ← θ + ε·(r_half − f);  r ← r_half + ε·``force``, the product Jᵀ(r_half − f)."""
    step_size = scalar_sqrt(lr / num_data)
    return FUNCTIONAL.add(parameter, half - mean, step_size), FUNCTIONAL.add(half, force, step_size)


def l2e_kinetic_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    *,
    hessian_product: Callable[[Tensor], Tensor],
    settings: KineticSettings,
    **at: Unpack[RuleArguments],
) -> tuple[Tensor, Tensor]:
    """Step of Kinetic-L2E with ε = √(lr/N) and momentum decay a:

        r ← (1−a)·r + a·f(θ) − ε·(N·g + λθ) + √(2aT)·ξ
        v = r − f(θ)
        θ ← θ + ε·v,    r ← r + ε·Jᵀv

    The move is the flow of the kinetic energy to O(ε²): where J is symmetric, v stays what it is. (Eq. 13 of the paper
    takes Jᵀ at the old momentum, and moves θ by the momentum after the force: then εJ acts on θ as a step size that
    depends on θ, and the bias on Gaussians is several times larger.)

    Args:
        parameter, gradient, noise, momentum: (..., d); noise standard normal or None at temperature 0.
        hessian_product: w ↦ ∂²L/∂θ²·w, the Hessian of the *mean* minibatch loss L, (..., d) ↦ (..., d).
        settings, at: see `KineticSettings` and `RuleArguments`.

    Returns:
        The new (parameter, momentum). With a last layer of zeros it is `sghmc_rule`.
    """
    mean, half, force, direction = kinetic_half_step(parameter, gradient, noise, momentum, settings=settings, **at)
    force = force + hessian_product(direction)
    return kinetic_finish(parameter, mean, half, force, lr=at["lr"], num_data=at["num_data"])


class KineticL2E(LearnedSampler):
    """A learned sampler that keeps the posterior: SGHMC whose momentum has a learned mean f(θ).

    Source: Kim, Jung, Kim and Lee, Learning to explore for stochastic gradient MCMC, ICML 2024, Appendix D.

    L2E with the kinetic energy g(θ, r) = ½‖r − f(θ)‖².

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, ξ ~ N(0, I), f(θ) = s·network(θ, ∇Ũ(θ)) and J = ∂f/∂θ:

        r ← (1−a)·r + a·f(θ) − ε·∇Ũ + √(2aT)·ξ
        v = r − f(θ)
        θ ← θ + ε·v,    r ← r + ε·Jᵀv,    Jᵀv = (∂f/∂θ)ᵀv + ∇²Ũ·(∂f/∂∇Ũ)ᵀv

    ∂g/∂r = r − f and ∂g/∂θ = −Jᵀ(r − f) are derived at the head of this module; the paper's printed
    ∂g/∂θ is not the gradient of its energy. The untrained sampler (last layer zero) is `SGHMC`, bit for bit.

    Invariant law: exp(−U/T − g/T) in continuous time for any network, so that θ follows the posterior; a step adds a
    bias that vanishes with the step size, as `SGHMC`'s does. The badge is "O(h)" where that was measured with the very
    weights and settings in use, as their card says; for other networks it is "heuristic".
    Noise in the gradient heats it about as much as it heats `SGHMC`.

    The Hessian-vector product ∇²Ũ·w is a finite difference, (∇L(θ + δw) − ∇L(θ))/δ: one more call of the usual closure
    at each step, on the same minibatch. torch's random numbers are replayed for it, and a closure that takes the next
    minibatch from an iterator is refused after some twenty steps. Its error is O(δ).

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a step
            without a closure.
    """

    settings_class = KineticSettings
    not_sharded = "it evaluates the loss beside the present weights"
    needs_closure = True
    claims_law = True
    default_network = "kinetic-l2e"
    state_names = ("momentum",)
    takes_prior_mean = False
    #: The first half of the step is done beside the evaluation of the loss.
    half_precision = False

    def _begin(self) -> None:
        super()._begin()
        self.one_loss = OneLoss()

    # ---------------------------------------------------------------- the step

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute the gradients, the first half of the step, and the Hessian-vector product for the second half."""
        replay = self.global_rng_state()
        evaluation = super().evaluate(closure)
        with self.restored_on_error() as evaluation.restore:
            self._prepare(closure, evaluation, replay)
        return evaluation

    def _prepare(self, closure: Callable[[], Any] | None, evaluation: Evaluation, replay: dict[str, Tensor]) -> None:
        """Draw the noise and compute the new values, which `advance` then writes into the parameters and the state."""
        halves: list[_HalfStep] = []
        for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
            with without_autocast(self.param_groups):  # the closure alone is the user's
                inputs.prepared = self._half_steps(group, inputs)
            halves += inputs.prepared
        directions: dict[Tensor, Tensor] = {}
        for half in halves:
            pieces = half.direction.split(half.segments.lengths)
            directions.update({p: w.reshape(p.shape) for p, w in zip(half.params, pieces, strict=True)})
        if not any(w.any() for w in directions.values()):
            return
        assert closure is not None
        products = self._probe(closure, directions, evaluation.loss, replay)
        for half in halves:
            half.force = half.force + gather([products[p] for p in half.params])

    def _half_steps(self, group: dict[str, Any], inputs: GroupInputs) -> list[_HalfStep]:
        params, grads, hyper = inputs.params, inputs.gradients, self.hyper(group)
        momenta = [self.state_of(group, p, "momentum") for p in params]
        halves = []
        for members in self.batches(params):
            chosen = [params[i] for i in members]
            noise = self.noise_for(chosen, hyper)
            segments, theta = Segments(tuple(p.numel() for p in chosen)), gather(chosen)
            parts = kinetic_half_step(
                theta,
                gather([grads[i] for i in members]),
                None if noise is None else gather(noise),
                gather([momenta[i] for i in members]),
                phi=self._phi(theta),
                segments=segments,
                settings=self.settings,
                **hyper,
            )
            halves.append(_HalfStep(chosen, segments, theta, *parts))
        return halves

    def _probe(
        self, closure: Callable[[], Any], directions: dict[Tensor, Tensor], loss: Any, replay: dict[str, Tensor]
    ) -> dict[Tensor, Tensor]:
        """(∇L(θ + δw) − ∇L(θ))/δ, with the random numbers of the first evaluation; all else ends as it was."""
        size = sum(w.numel() for w in directions.values())
        length = (sum(w.double().square().sum().item() for w in directions.values()) / size) ** 0.5
        delta = self.settings.probe_size / length
        before = {p: (p.clone(), p.grad.clone()) for p in directions if p.grad is not None}
        after = self.global_rng_state()
        self.broken_off = True  # until the weights are back
        try:
            for p, w in directions.items():
                p.add_(w, alpha=delta)
            self.set_rng_state(replay)
            probed_loss = self.run(closure, " at the probe")
            probed = {p: p.grad for p in before}
            missing = [p for p, slope in probed.items() if slope is None]
            if missing:
                raise ValueError(
                    f"{len(missing)} of {len(probed)} parameters, the first of shape {tuple(missing[0].shape)}, have a "
                    "gradient at the weights and none at the probe, where the closure is evaluated again"
                )
            slopes = {p: slope for p, slope in probed.items() if slope is not None}
            pairs = [(directions[p], slope + before[p][1]) for p, slope in slopes.items()]
            self.one_loss.compare(self, loss, probed_loss, 0.5 * delta * sum((w * g).sum().item() for w, g in pairs))
            return {p: (slope - before[p][1]) / delta for p, slope in slopes.items()}
        finally:
            with torch.no_grad():  # also where an interruption kept the closure's gradients on
                self.set_rng_state(after)
                for p, (start, slope) in before.items():
                    p.copy_(start)
                    p.grad = slope
            self.broken_off = False

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:  # type: ignore[override]
        hyper = self.hyper(group)
        for half in inputs.prepared:
            theta, momentum = kinetic_finish(
                half.theta, half.mean, half.half, half.force, lr=hyper["lr"], num_data=hyper["num_data"]
            )
            scatter(theta, half.params)
            scatter(momentum, [self.state[p]["momentum"] for p in half.params])

    @torch.no_grad()
    def temperatures(self) -> list[dict[str, float]]:
        """As `Sampler.temperatures`; the kinetic temperature is the mean of (r − f(θ))², the law's own."""
        reports = super().temperatures()
        for report, group in zip(reports, self.param_groups, strict=True):
            moved = [p for p in group["params"] if p.grad is not None and "momentum" in self.state.get(p, {})]
            total = 0.0
            for members in self.batches(moved):
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
