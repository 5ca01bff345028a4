"""Microcanonical Langevin Monte Carlo: the update of all tensors of a chain at once, and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number, scalar_sqrt
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import choice, setting
from learned_samplers.base.step import Evaluation, GroupInputs, as_loss, chains_of
from learned_samplers.classical import mclmc_energy as energy_errors
from learned_samplers.classical import tally as tallies
from learned_samplers.classical.full_data import LIKELY
from learned_samplers.classical.layout import Layout

Tensors = Sequence[Tensor]

#: Rate of the running averages of ``preconditioner``, once 1/RATE steps are over.
RATE = 0.01


def mclmc_rule(
    params: Tensors,
    gradients: Tensors,
    noise: Tensors,
    direction: Tensors,
    step_size: Sequence[Any],
    *,
    momentum_decay: Any,
    size: int,
    batch_axes: int = 0,
    **energy: Any,
) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, Tensor]]:
    """A turn, half a move, refresh, half a move: one step of microcanonical Langevin dynamics with one gradient.

    The refresh within the move keeps stiff directions unbiased, as in `baoa_rule`.

    Every argument is a list over all tensors of a chain, each with ``batch_axes`` leading axes of chains; ``size`` is
    d, the coordinates of one chain. ``step_size`` is σ, a number or a tensor for each: the length of the step is that
    of σ·u, u a unit vector of all tensors together. ``energy`` is what `energy_force` takes.

    Returns:
        The parameters, the directions, and the growth of the kinetic energy in the first and in the second half turn.
    """
    force = energy_force(params, gradients, step_size, **energy)
    direction, before = turn(normalise(direction, batch_axes), force, 0.5, size, batch_axes)
    old, after = turn(direction, force, 0.5, size, batch_axes)
    keep = 1 - momentum_decay
    spread = scalar_sqrt((1 - keep * keep) / size)
    direction = normalise([keep * u + spread * z for u, z in zip(old, noise, strict=True)], batch_axes)
    moves = zip(params, step_size, old, direction, strict=True)
    return [p + (0.5 * s) * (u + new) for p, s, u, new in moves], direction, (before, after)


def turn(
    direction: Tensors, force: Tensors, time: float, size: int, batch_axes: int = 0
) -> tuple[list[Tensor], Tensor]:
    """Turn the unit vector u towards the force f for a time τ: the exact flow of u' = (I − uuᵀ)f/(d−1).

    With e = f/‖f‖, δ = τ‖f‖/(d−1) and ζ = exp(−δ): u ← normalise[e·(1−ζ)·(1+ζ+(u·e)(1−ζ)) + 2ζu].

    Returns:
        The new direction, and (d−1)·log(cosh δ + (u·e)·sinh δ), one number a chain: the growth of the kinetic energy,
        in units of T, which along the exact trajectory is the fall of U/T.
    """
    norm = inner_product(force, force, batch_axes).sqrt()
    unit = [f * per_chain(1 / norm.clamp(min=1e-37), f) for f in force]  # 0 where there is no force: nothing turns
    cosine = inner_product(direction, unit, batch_axes).clamp(-1, 1)
    delta = time * norm / (size - 1)
    zeta = (-delta.clamp(max=80)).exp()  # beyond, the direction is e to the last bit
    along, across = (1 - zeta) * (1 + zeta + cosine * (1 - zeta)), 2 * zeta
    turned = [per_chain(along, e) * e + per_chain(across, u) * u for e, u in zip(unit, direction, strict=True)]
    growth = delta - math.log(2) + torch.log(1 + cosine + (1 - cosine) * zeta**2)
    return normalise(turned, batch_axes), (size - 1) * growth


def energy_force(
    params: Tensors,
    gradients: Tensors,
    step_size: Sequence[Any],
    *,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
) -> list[Tensor]:
    """f = −σ·(N·g + λθ)/T of every tensor, the force that turns the direction in the time of one step."""
    pairs = zip(params, gradients, step_size, strict=True)
    return [-s / temperature * (num_data * g + prior_precision * p) for p, g, s in pairs]


def step_length(lr: Any, num_data: Any, temperature: Any, size: int) -> Any:
    """σ = √(lr·T·d/N), in units of θ: what a momentum of variance T moves all d weights in a step of `SGHMC`."""
    return scalar_sqrt(lr * temperature * size / num_data)


def noise_scale(
    gradients: Tensors, mean: Tensors, square: Tensors, *, rate: float, batch_axes: int = 0
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """ḡ ← ḡ + ρ(g−ḡ), s² ← s² + ρ((g−ḡ)² − s²), and ŝ = s over its root mean square, in [1/10, 10].

    The root mean square is over all tensors of a chain; ŝ is 1 as long as no gradient has differed from the mean.
    """
    square = [s + rate * ((g - m).square() - s) for g, m, s in zip(gradients, mean, square, strict=True)]
    mean = [m + rate * (g - m) for g, m in zip(gradients, mean, strict=True)]
    roots = [s.sqrt() for s in square]
    count = inner_product([torch.ones_like(r) for r in roots], [torch.ones_like(r) for r in roots], batch_axes)
    size = (inner_product(roots, roots, batch_axes) / count).sqrt()
    scale = [torch.where(per_chain(size, r) > 0, r / per_chain(size, r), 1.0).clamp(0.1, 10.0) for r in roots]
    return mean, square, scale


def joined(kept: Sequence[Tensor | None], fresh: Tensors, size: int) -> list[Tensor]:
    """The directions that are there, and N(0, I) draws for those that are not, to be normalised together.

    What joins a chain that moves already begins with its share of the direction, 1/√d a weight.
    """
    share = 1.0 if all(u is None for u in kept) else 1 / math.sqrt(size)
    return [share * new if u is None else u for u, new in zip(kept, fresh, strict=True)]


def normalise(x: Tensors, batch_axes: int = 0) -> list[Tensor]:
    """The unit vector of all tensors together, one a chain."""
    norm = inner_product(x, x, batch_axes).sqrt()
    return [a / per_chain(norm, a) for a in x]


def inner_product(x: Tensors, y: Tensors, batch_axes: int = 0) -> Tensor:
    """Σ x·y over a list of tensors and all but their leading ``batch_axes`` axes, in double precision."""
    products = (a.double() * b.double() for a, b in zip(x, y, strict=True))
    return torch.stack([p.reshape(*p.shape[:batch_axes], -1).sum(-1) for p in products]).sum(0)


def per_chain(scalar: Tensor, like: Tensor) -> Tensor:
    """Return one number a chain, in the shape and dtype in which it multiplies a tensor of the chains."""
    return scalar.to(like).reshape(scalar.shape + (1,) * (like.dim() - scalar.dim()))


class MCLMC(Sampler):
    """Moves all weights together at constant speed; the gradient only turns the direction.

    Source: Robnik and Seljak, Fluctuation without dissipation: microcanonical Langevin Monte Carlo, 2023. Theirs
    refreshes between steps; in the middle of the move, as here, stiff directions have less bias.

    One unit vector u spans all d weights of all parameter groups. With the energy S = U/T, σ = √(lr·T·d/N),
    a = ``momentum_decay`` and ξ ~ N(0, I),

        u ← turn(turn(u));  θ ← θ + σ/2·u;  u ← normalise[(1−a)·u + √((2a−a²)/d)·ξ];  θ ← θ + σ/2·u
        turn: e = −∇S/‖∇S‖, δ = σ‖∇S‖/(2(d−1)), ζ = exp(−δ):  u ← normalise[e·(1−ζ)·(1+ζ+(u·e)(1−ζ)) + 2ζu]

    with one gradient for both turns. lr and a mean what they do for `SGHMC`: √(T·d)·u is a momentum of variance T,
    1 − a its correlation from step to step. (In the literature's terms the step length is σ and L = −σ/log(1−a).)

    Invariant law with the full data: exp(−U/T) up to O(lr), for d ≥ 2. Minibatch noise turns the direction as if it
    were energy, and nothing damps it: then there is no law to claim, and ``preconditioner`` is a heuristic, after
    pSMILE (Sommer et al., arXiv 2602.06500). Without it a step is refused where the losses of the last 20 steps did
    not change as their gradients say: ΔE² above half of the squared changes of U/T and of the kinetic energy, with ΔE
    above 1e-4 of U/T and above 0.1. That is a fresh minibatch, dropout, or an lr that is far too large. The closure
    returns the loss, as for `HMC`: a scalar, or losses (M,) for M chains along the parameters' leading axis, each with
    a direction of its own.

    Energy errors are the diagnostic: along the exact trajectory U/T + kinetic energy is constant. `energy_error` is its
    change ΔE in the last completed step, in units of T, `energy_variance` the mean of ΔE²/d over all steps. At 5e-4 the
    bias is some two per cent of a variance. (With minibatches and one gradient a step, ΔE has the loss's noise in it.)

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; a step without a closure; fewer than two
            weights in a chain; losses whose shape is neither () nor the parameters' leading axis; a closure that is not
            deterministic, without ``preconditioner`` (nothing has changed by that step).
    """

    momentum_decay: float = setting(
        default=0.1,
        check=partial(validation.fraction, open_left=True),
        shared=True,
        doc="a in (0, 1]; may be given as ``momentum=``.",
    )
    preconditioner: str = choice(
        "none",
        "gradient_noise",
        default="none",
        shared=True,
        structural=True,
        doc='"none", or "gradient_noise": σ is divided by ŝ, the standard deviation of each weight\'s gradient '
        "over its root mean square, from running averages (rate 0.01), within [1/10, 10]. It makes the "
        "gradient noise isotropic. It never stops moving: heuristic.",
    )
    temperature: float = setting(default=1.0, check=validation.positive, shared=True, doc="T > 0.")
    prior_precision: float = setting(
        default=0.0, check=validation.non_negative, shared=True, doc="λ of the prior N(0, 1/λ), in 1/θ²."
    )
    foreach: bool | None = choice(None, True, False, default=None, doc="without effect.")

    needs_closure = True
    reads_loss = True
    side_by_side = ("stacked",)
    not_sharded = "its momentum has one length over all weights"
    not_checked = (
        "one direction spans all its weights (two at least), so that coordinates are neither independent chains nor "
        "moved one by one; look at its energy_variance, or compare moments over chains of a target that you know"
    )
    half_precision = False
    group_keys = ("tally",)
    takes_prior_mean = False
    non_negative = ("noise_square",)
    hyperparameters = ("num_data", "temperature", "prior_precision", "momentum_decay")
    rule = staticmethod(mclmc_rule)

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        self.param_groups[0].setdefault("tally", energy_errors.new_tally())

    @property
    def badge(self) -> str:  # type: ignore[override]
        return "O(h)" if self.param_groups[0]["preconditioner"] == "none" else "heuristic"

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        more = () if self.param_groups[0]["preconditioner"] == "none" else ("mean_gradient", "noise_square")
        return ("direction", *more)

    def validate_saved(self, saved: dict[str, Any]) -> None:
        super().validate_saved(saved)
        tallies.validate_saved(saved, energy_errors.new_tally())

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """A direction that is uniform on the sphere once it is normalised; the mean gradient starts at the first."""
        if name == "direction":
            return self.noise_like(p)
        return torch.zeros_like(p) if name == "noise_square" or p.grad is None else p.grad.detach().clone()

    # ---------------------------------------------------------------- the step

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute the whole step; each group's ``prepared`` holds its new parameters and state, and the next tally."""
        evaluation = super().evaluate(closure)
        loss = as_loss(evaluation.loss)
        params = [p for inputs in evaluation.groups for p in inputs.params]
        chains = chains_of(loss, params)
        batch_axes = 1 if chains else 0
        size = sum(p.numel() for p in params) // max(1, chains)
        if size < 2:
            raise ValueError(f"params must have at least 2 weights a chain for MCLMC, got {size}")
        with self.restored_on_error() as evaluation.restore:
            self._prepare(evaluation, loss, params, size, batch_axes)
        return evaluation

    def _prepare(self, evaluation: Evaluation, loss: Tensor, params: list[Tensor], size: int, batch_axes: int) -> None:
        """Draw the noise and compute the new values, which `advance` then writes into the parameters and the state."""
        members = [
            (g, p) for g, inputs in zip(self.param_groups, evaluation.groups, strict=True) for p in inputs.params
        ]
        layout = Layout(params, batch_axes)
        gradients = layout.laid([g for inputs in evaluation.groups for g in inputs.gradients])
        state = {name: layout.laid(self._peek(members, name, size)) for name in self.state_names}
        noise = layout.laid(self.noise_for(params, self.hyper(self.param_groups[0])) or [])
        numbers = [{name: as_number(g[name]) for name in ("lr", "num_data", "temperature")} for g, _ in members]
        step_size = layout.one_each([step_length(**of_group, size=size) for of_group in numbers])
        if "noise_square" in state:
            rate = max(RATE, 1 / (self.step_count + 1))
            averages = (state["mean_gradient"], state["noise_square"])
            mean, square, scale = noise_scale(gradients, *averages, rate=rate, batch_axes=batch_axes)
            state |= {"mean_gradient": mean, "noise_square": square}
            step_size = [s / one for s, one in zip(step_size, scale, strict=True)]
        hyper = {**self.hyper(self.param_groups[0]), "size": size, "batch_axes": batch_axes}
        start = layout.laid(params)
        moved, state["direction"], growth = mclmc_rule(start, gradients, noise, state["direction"], step_size, **hyper)
        first, potential = self.param_groups[0], self._potential(loss, params, batch_axes)
        tally = energy_errors.complete(first["tally"], potential, growth, size)
        if self.badge != "heuristic":
            _refuse_random(tally)
        after = iter(zip(*map(layout.apart, (moved, *(state[name] for name in self.state_names))), strict=True))
        for inputs in evaluation.groups:
            inputs.prepared = [next(after) for _ in inputs.params], tally

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        values, tally = inputs.prepared
        if group is self.param_groups[0]:  # here, not in `evaluate`: it belongs to the update if the step is broken off
            group["tally"] = tally
        if not inputs.params:
            return
        moved, *states = zip(*values, strict=True)
        for name, values in zip(self.state_names, states, strict=True):
            for p in inputs.params:
                if name not in self.state[p]:
                    self.state[p][name] = torch.empty_like(p)
            torch._foreach_copy_([self.state[p][name] for p in inputs.params], values)
        torch._foreach_copy_(inputs.params, moved)

    def _peek(self, members: list[tuple[dict[str, Any], Tensor]], name: str, size: int) -> list[Tensor]:
        """The state tensors, or their initial values, which are stored only once the step has succeeded.

        What joins a chain that moves already begins with the mean noise of the others.
        """
        kept = [self.state.get(p, {}).get(name) for _, p in members]
        present = [x for x in kept if x is not None]
        values = [
            self.initial_state(group, p, name) if x is None else x for x, (group, p) in zip(kept, members, strict=True)
        ]
        if not present or len(present) == len(values) or name == "mean_gradient":
            return values
        if name == "direction":
            return joined(kept, values, size)
        mean = sum(x.sum().item() for x in present) / sum(x.numel() for x in present)
        return [v + mean if x is None else v for x, v in zip(kept, values, strict=True)]

    def _potential(self, loss: Tensor, params: list[Tensor], batch_axes: int) -> Tensor:
        """U/T of each chain in double precision."""
        group = self.param_groups[0]
        prior = 0.5 * as_number(group["prior_precision"]) * inner_product(params, params, batch_axes)
        return (as_number(group["num_data"]) * loss.detach().double() + prior) / as_number(group["temperature"])

    # ---------------------------------------------------------------- energy errors

    def _one_a_chain(self, values: list[float]) -> Tensor:
        tensor = torch.tensor(values or [math.nan], dtype=torch.float64)
        return tensor[0] if len(tensor) == 1 else tensor

    @property
    def energy_error(self) -> Tensor:
        """Energy error ΔE of the last completed step, in units of T, one a chain; nan before the first."""
        return self._one_a_chain(self.param_groups[0]["tally"]["error"])

    @property
    def energy_variance(self) -> Tensor:
        """Mean of ΔE²/d over the steps so far, one a chain; nan before the first."""
        tally = self.param_groups[0]["tally"]
        return self._one_a_chain(tally["squares"]) / max(1, tally["count"] * tally["size"])


def _refuse_random(tally: energy_errors.Tally) -> None:
    """Raise ValueError if the losses of the last steps do not change as their gradients say."""
    if energy_errors.is_random(tally):
        raise ValueError(
            f"the closure is not deterministic: over the last steps {100 * tally['unexplained']:.0f} % of what U/T "
            f"changed by was not along its gradients, and MCLMC has no law then. Most likely {LIKELY}; for minibatches "
            "take preconditioner= (heuristic). If it is deterministic, lr is far too large. Nothing was changed"
        )
