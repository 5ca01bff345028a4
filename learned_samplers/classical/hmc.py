"""Hamiltonian Monte Carlo on the full data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.operations import FOREACH, as_number, is_finite, kick, scalar_sqrt
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import learning_rate, setting
from learned_samplers.base.step import Evaluation, GroupInputs, as_loss, chains_of
from learned_samplers.base.warning import warn
from learned_samplers.classical import tally as tallies
from learned_samplers.classical.full_data import LIKELY, KnownLoss

#: Each trajectory's ε is multiplied by a uniform number in [1 − JITTER, 1 + JITTER]: it then closes on itself nowhere.
JITTER = 0.2
#: Proposals of a chain, none of them accepted, after which it is told.
STUCK = 20
_NEW_TALLY = {"proposed": 0.0, "accepted": 0.0, "divergent": 0, "error": 0.0, "log_scale": 0.0, "average": 0.0}
_NEW_TALLY["lr_factor"] = 1.0


class HMC(Sampler):
    """Exact samples of the posterior, from gradients over the full data.

    Source: Neal, MCMC using Hamiltonian dynamics, Handbook of Markov Chain Monte Carlo, 2011. Leapfrog steps, then the
    Metropolis test.

    ``step(closure)`` draws one state: with ε = √(lr/N), within a fifth of it at random, r ~ N(0, T·I) and
    L = ``leapfrog_steps``,

        r ← r − (ε/2)·∇U(θ);  L × [θ ← θ + ε·r;  r ← r − ε·∇U(θ)] (the last kick halved)

    and the new θ is accepted with probability min(1, exp(−ΔH/T)), H = U(θ) + ½‖r‖². The closure must be deterministic
    and over the *full* data: mean loss, ``backward``, return the loss. A step costs L + 1 of its evaluations.

    A fresh minibatch or dropout makes the law another one, several times too wide. A step begins by evaluating where
    the last one ended: from the second step on it refuses a loss that has changed there by more than 1e-4 of itself and
    N·Δloss/T by more than 0.1, which no rounding does. Parameters that were changed from outside, a loaded state,
    parameters that join, another num_data, temperature or prior begin anew. Where you change on purpose what else the
    loss depends on (a noise that is drawn between steps, as by Gibbs), say so by `target_changed`.

    Invariant law: exp(−U/T), exactly.

    Several chains run side by side when the closure returns losses of shape (M,) and calls ``losses.sum().backward()``
    on parameters with a leading axis of length M; each chain is accepted on its own.

    Attributes:
        lr_factor: what adaptation multiplies every group's lr by, which stays a scheduler's to change; 1 without it.
        acceptance_rate: share of proposals accepted since the end of adaptation (nan before the first).
        divergences: trajectories, since then, whose energy became non-finite; they count as rejected.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; a step without a closure; losses whose
            shape is neither () nor the parameters' leading axis; a closure that is not deterministic (nothing has
            changed by that step).
        FloatingPointError: loss or gradient not finite at the current state, which stays as it was.
    """

    lr: float = learning_rate(kw_only=False, doc="N·ε², so that ε = √(lr/N) as in `SGHMC`.")
    temperature: float = setting(default=1.0, check=validation.positive, shared=True, doc="T > 0.")
    leapfrog_steps: int = setting(default=10, check=validation.integer, shared=True, doc="L ≥ 1.")
    adapt_steps: int = setting(
        default=0,
        check=partial(validation.integer, least=0),
        shared=True,
        doc="number of first steps in which `lr_factor`, which multiplies every group's lr, is adapted to "
        "``target_acceptance`` by dual averaging (Hoffman and Gelman, 2014). Their draws are burn-in: `is_sampling` is "
        "False, and `PosteriorSamples` keeps none.",
    )
    target_acceptance: float = setting(
        default=0.8,
        check=partial(validation.fraction, open_left=True, open_right=True),
        shared=True,
        doc="wanted mean acceptance probability, in (0, 1).",
    )

    badge = "exact"
    needs_closure = True
    reads_loss = True
    evaluates_again = True
    side_by_side = ("stacked",)
    not_sharded = "it accepts or refuses whole trajectories by the energy of all data and weights"
    half_precision = False
    group_keys = ("tally",)
    takes_prior_mean = False

    def _begin(self) -> None:
        super()._begin()
        #: The loss where the last step has left the chain; None where it is not known.
        self._known_loss: KnownLoss | None = None

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        # Plain numbers in the first group, so that they are saved and resumed with it.
        self.param_groups[0].setdefault("tally", dict(_NEW_TALLY))

    @property
    def is_sampling(self) -> bool:
        """Tell whether the last step reached a sample: False while the step size is adapted."""
        return self.step_count > self.param_groups[0]["adapt_steps"] and super().is_sampling

    # ---------------------------------------------------------------- one trajectory

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Run a trajectory and its Metropolis test; each group's ``prepared`` is the next state and the next tally."""
        evaluation = super().evaluate(closure)
        assert closure is not None
        params = [p for inputs in evaluation.groups for p in inputs.params]
        loss = as_loss(evaluation.loss)
        chains = chains_of(loss, params)
        self._refuse_random(loss)
        groups = [(group, inputs.params) for group, inputs in zip(self.param_groups, evaluation.groups, strict=True)]
        temperature = as_number(self.param_groups[0]["temperature"])
        start = {p: p.clone() for p in params}
        with self.restored_on_error() as evaluation.restore:
            self.broken_off = True  # until the weights are back
            try:
                momentum = {p: self.noise_like(p).mul_(temperature**0.5) for p in params}
                before = self._hamiltonian(loss, groups, momentum, chains)
                jitter = JITTER * (2 * self._uniform(loss.new_empty(())).item() - 1)
                after, end_loss = self._trajectory(closure, groups, momentum, chains, 1 + jitter)
                divergent = ~after.isfinite()
                probability = torch.where(divergent, 0.0, ((before - after) / temperature).exp().clamp(max=1.0))
                accept = self._uniform(probability) < probability
                ends = {p: torch.where(_along(accept, p), p, start[p]) for p in params}
            finally:  # `advance` moves, nothing else
                with torch.no_grad():  # also where an interruption kept the closure's gradients on
                    for p, value in start.items():
                        p.copy_(value)
                self.broken_off = False
            evaluation.loss = torch.where(accept.to(loss.device), end_loss, loss)
            end_of_step = KnownLoss(self, evaluation.loss, ends)
            tally = self._tally_after(probability, accept, divergent)
            for inputs in evaluation.groups:
                inputs.prepared = ends, tally
        self._known_loss = end_of_step
        return evaluation

    def _refuse_random(self, loss: Tensor) -> None:
        """Raise ValueError if the loss where the last step has ended is not what it was then."""
        # Its copy of the weights goes before the trajectory needs as much.
        known_loss, self._known_loss = self._known_loss, None
        if known_loss is not None and (losses := known_loss.belies(self, loss)):
            before, now = losses
            raise ValueError(
                f"the closure is not deterministic: it returned {before:.6g} and then {now:.6g} for the same "
                f"parameters, and HMC samples no law with it. Most likely {LIKELY}. (If you have changed the loss on "
                "purpose between two steps, call target_changed().) Nothing was changed"
            )

    def target_changed(self) -> None:
        """Say that what the closure computes has been changed on purpose since the last step (data, a Gibbs draw)."""
        self._known_loss = None

    def validate_saved(self, saved: dict[str, Any]) -> None:
        super().validate_saved(saved)
        tallies.validate_saved(saved, _NEW_TALLY)

    def _loaded(self) -> None:
        super()._loaded()
        self._known_loss = None

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        ends, tally = inputs.prepared
        if group is self.param_groups[0]:  # here, not in `evaluate`: it belongs to the update if the step is broken off
            group["tally"] = tally
        for p in inputs.params:
            p.copy_(ends[p])

    def _trajectory(self, closure, groups, momentum, chains, scale) -> tuple[Tensor, Tensor]:
        def kick_all(share: float) -> None:
            for group, params in groups:
                for p in params:
                    kick([momentum[p]], [p], [p.grad], ops=FOREACH, **self._leapfrog(group, scale * share))

        kick_all(0.5)
        steps = self.param_groups[0]["leapfrog_steps"]
        loss = torch.as_tensor(float("nan"))
        for i in range(steps):
            for group, params in groups:
                if params:
                    size = self._leapfrog(group, scale)["step_size"]
                    FOREACH.add(params, [momentum[p] for p in params], size)
            loss = as_loss(self.call(closure))
            self._refuse_missing(groups)
            if not chains and not is_finite(loss):  # with one chain there is nothing to go on for
                break
            kick_all(1.0 if i < steps - 1 else 0.5)
        return self._hamiltonian(loss, groups, momentum, chains), loss

    def _refuse_missing(self, groups: list[tuple[dict[str, Any], list[Tensor]]]) -> None:
        """Raise ValueError where a parameter that moves has no gradient any more: which ones move may not change."""
        for group, params in groups:
            for p in params:
                if p.grad is None:
                    number = next(i for i, member in enumerate(group["params"]) if member is p)
                    raise ValueError(
                        f"parameter {self.name_of(group, number)} had a gradient where the trajectory began and has "
                        "none on its way: HMC samples no law where the weights decide which parameters move"
                    )

    def _leapfrog(self, group: dict[str, Any], scale: float) -> dict[str, Any]:
        hyper = self.hyper(group)
        del hyper["temperature"]
        lr = hyper.pop("lr") * self.lr_factor
        return {"step_size": scalar_sqrt(lr / hyper["num_data"]) * scale, **hyper}

    def _hamiltonian(self, loss: Tensor, groups, momentum: dict[Tensor, Tensor], chains: int) -> Tensor:
        """N·loss + ½λ‖θ‖² + ½‖r‖² in double precision, of shape (M,) or ()."""
        total = self.param_groups[0]["num_data"] * loss.detach().double().cpu()
        for group, params in groups:
            for p in params:
                energy = momentum[p].double().square() + group["prior_precision"] * p.double().square()
                total = total + 0.5 * (energy.reshape(chains, -1).sum(1) if chains else energy.sum()).cpu()
        return total

    def _uniform(self, like: Tensor) -> Tensor:
        if self.generator is None:
            return torch.rand_like(like)
        device = self.generator.device
        return torch.rand(like.shape, generator=self.generator, dtype=like.dtype, device=device).to(like.device)

    # ---------------------------------------------------------------- acceptance and adaptation

    def _tally_after(self, probability: Tensor, accept: Tensor, divergent: Tensor) -> dict[str, Any]:
        """Return the tally with one more step in it."""
        group = self.param_groups[0]
        tally = dict(group["tally"])  # a state dict taken before keeps its own
        if group["step"] >= group["adapt_steps"]:
            tally["proposed"] += accept.numel()
            tally["accepted"] += accept.sum().item()
            tally["divergent"] += int(divergent.sum().item())
            if tally["proposed"] == STUCK * accept.numel() and not tally["accepted"]:
                lr = as_number(group["lr"]) * self.lr_factor
                warn(
                    f"HMC has rejected all of its first {STUCK} proposals, so its samples are copies of one state: "
                    f"take a smaller lr than {lr:.3g}, or adapt_steps=200"
                )
            return tally
        # Dual averaging on log ε relative to the first ε, with Hoffman and Gelman's constants.
        m = group["step"] + 1
        weight = 1 / (m + 10)
        tally["error"] += weight * (as_number(group["target_acceptance"]) - probability.mean().item() - tally["error"])
        old = tally["log_scale"]
        tally["log_scale"] = math.log(10) - math.sqrt(m) / 0.05 * tally["error"]
        tally["average"] += m**-0.75 * (tally["log_scale"] - tally["average"])
        if m == group["adapt_steps"]:
            tally["log_scale"] = tally["average"]
        tally["lr_factor"] = self.lr_factor * math.exp(2 * (tally["log_scale"] - old))
        return tally

    @property
    def lr_factor(self) -> float:
        return self.param_groups[0]["tally"]["lr_factor"]

    @property
    def acceptance_rate(self) -> float:
        tally = self.param_groups[0]["tally"]
        return tally["accepted"] / tally["proposed"] if tally["proposed"] else float("nan")

    @property
    def divergences(self) -> int:
        return self.param_groups[0]["tally"]["divergent"]


def _along(accept: Tensor, p: Tensor) -> Tensor:
    """The chains' decisions on a parameter's device, broadcast over all but its leading axis."""
    return accept.to(p.device).view(accept.shape + (1,) * (p.dim() - accept.dim()))
