"""Stochastic gradient Hamiltonian Monte Carlo with a mass that a warm-up has measured: the law is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.configured import Precision
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.settings import data_count, setting
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.classical.baoa import baoa_rule
from learned_samplers.classical.budget import planned
from learned_samplers.classical.from_adam import from_adam
from learned_samplers.classical.mass import MASSES, freeze_, weight_of_gradient
from learned_samplers.classical.warmup import WarmedUpSampler, exploration, position


def adapted_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    state: Any,
    *,
    num_data: Any,
    prior_precision: Any,
    momentum_decay: Any,
    floor: Any = 0.0,
    weight: Any = None,
    freezes: bool = False,
    mass: str = "diagonal",
    ops: Operations = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any, Any]:
    """Take a step of `AdaptedSGHMC`'s own, not of its warm-up: a pure function, with any leading batch axes.

    It is `baoa_rule` in the coordinates φ = S⁻¹·θ, where the gradient is S·ĝ, ĝ = g + λθ/N, and θ moves
    by S times φ's movement: the law exp(−U/T − ‖r‖²/2T) is that rule's for any S that does not depend on θ.

    Args:
        parameter, gradient, noise, momentum: as for that rule.
        state: of the mass: S, or while it is measured what `DiagonalMass.measure` gives. A mass of matrices must have
            been renewed (`DiagonalMass.freeze`) by the caller; and there are no batch axes, because a tensor is one
            matrix.
        weight: of this gradient in the mass; None where it is frozen.
        freezes: return S in the place of the state.
        settings: lr and temperature. A tensor as ``momentum_decay`` is a friction for each coordinate (not in the form
            for lists, which have no arithmetic).
    """
    preconditioner, frozen = MASSES[mass], state
    if weight is not None:
        state = preconditioner.measure(state, gradient, weight, ops)
        frozen = preconditioner.freeze(state, ops, momentum_decay=momentum_decay, floor=floor, renew=freezes)
    pushed = preconditioner.apply(ops.combine(gradient, parameter, prior_precision / num_data), frozen, ops)
    still = ops.map(torch.zeros_like, parameter)
    settings |= {"num_data": num_data, "momentum_decay": momentum_decay, "prior_precision": 0.0, "ops": ops}
    moved, momentum = baoa_rule(still, pushed, noise, momentum, **settings)
    return ops.add(parameter, preconditioner.apply(moved, frozen, ops)), momentum, frozen if freezes else state


class AdaptedSGHMC(WarmedUpSampler):
    """Trains by an optimizer of your choice, then samples the posterior with the preconditioner that it has measured.

    Source: Springenberg et al., Bayesian optimization with robust Bayesian neural networks, NeurIPS 2016 (scale-adapted
    SGHMC); other warm-ups, the settling and the prior in the mass are ours.

    The first ``warmup_steps`` W of a run find a mode and measure a mass, which is then frozen: a moving one (pSGLD,
    Adam with noise) has no law. With a = ``momentum_decay``, β = ``decay``, S = ``settling_share``, t the step and
    ĝ = g + λθ/N:

        t ≤ W       v̂ ← v̂ + (1−β)/(1−βᵗ)·(g² − v̂)                                        Adam's, of the mean loss
        t ≤ W·(1−S) the step of ``warmup`` (None: the step below, with the mass of that moment)             explore
        t ≤ W       the step below, with the mass of that moment, at the temperature                         settle
        t > W       the step below, with G as it was at t = W                                                sample

        G = a/(√v̂ + √(λT)/N + eps);   hᵢ = √(lr·Gᵢ/N)                                    the step of each coordinate
        r ← r − h·N·ĝ;  θ ← θ + (h/2)·r;  r ← (1−a)·r + √(T(2a−a²))·ξ;  θ ← θ + (h/2)·r

    With mass="matrix" G is a matrix for each matrix of weights (`learned_samplers.classical.mass.MatrixMass`), on the
    inputs' side, in blocks of at most 288 columns. It is renewed every ten steps while the chain settles. It takes
    2·width numbers a column (10 numbers a weight more for a ResNet-20) and two products of rows·columns·width
    multiply-adds a step. Vectors, biases, norms and very wide matrices keep the diagonal mass, as does a group with
    ``mass="diagonal"`` (embeddings).

    √(λT)/N is the root mean square of the prior's gradient: without it a weight that hardly ever sees a gradient would
    fly away on its noise. At a mode, where a warm-up ends, gradients are smaller than in the posterior around it; so
    the s-th gradient of settling has the weight 1/(s+20) where that is more than (1−β)/(1−βᵗ).

    Invariant law once the mass is frozen: exp(−U/T) up to O(lr), for *any* mass; on quadratics Var θ = T/k exactly.
    Before, `is_sampling` is False and `PosteriorSamples` collects nothing. Stable while hᵢ²k < 4: a condition number of
    10⁴ becomes one of 100 in hᵢ²k. ``lr`` is Adam's: a steady gradient moves a weight by lr·(1−a/2)·g/√v̂ a step.

    With ``cycle_length`` K all of it begins anew every K steps from the weights where it is, to visit several modes.
    Each cycle's samples keep the law around what its warm-up found; how often a mode is found is not its probability,
    hence the badge "heuristic" then.

        AdaptedSGHMC(model.parameters(), num_data=N, total_steps=4000)
        AdaptedSGHMC(model.parameters(), 0.003, num_data=N, warmup_steps=2000, warmup=L2E)

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; ``warmup`` makes no optimizer of the
            groups, or one that needs more than gradients; a group joins after the mass was frozen, or a parameter has
            none then. See `Sampler.step` for the others of a step.
    """

    lr: float | None = setting(  # type: ignore[assignment]
        default=None,
        check=validation.non_negative,
        check_new=validation.positive,
        kw_only=False,
        doc="of the chain: Adam's learning rate. Without a warm-up begin with the one that trains the network. "
        "None is 0.003, or 0.002 where T < 1 and ``total_steps`` (a cycle, where there are cycles) is more "
        "than N/16 steps, four epochs of minibatches of 64: their heat, some 0.01·lr·N, makes a longer run too "
        "unsure. With ``total_steps``, a warm-up by another optimizer, few data and one hidden layer (two matrices at "
        "most) it is 10·T/N where that is more, at most 0.1 and ``total_steps``/3000: it heats the chain by a tenth of "
        "T where minibatches of 32 or more have a loss of order one. A regression with little noise is heated more; "
        "`PosteriorSamples.verdict` says by how much.",
    )
    num_data: float = data_count(default=None, kw_only=False, doc="N, the number of training points; it must be given.")
    mass: str | None = setting(
        default=None,
        check=partial(validation.one_of, choices=tuple(MASSES)),
        structural=True,
        doc='"diagonal" or "matrix"; by default "matrix" with a warm-up by another optimizer: it fits faster and mixes '
        "better.",
    )
    decay: float = setting(
        default=0.999,
        check=partial(validation.fraction, open_right=True),
        doc="β in [0, 1), Adam's β₂: the memory of the second moment.",
    )
    eps: float = setting(
        default=1e-5,
        check=validation.positive,
        doc="in units of the mean loss's gradient. Adam's 1e-8 will not do without a prior: a weight that hardly ever "
        "sees a gradient would get the mass 1e-8/a.",
    )

    badge = "O(h)"
    state_names = ("momentum", "mass")
    hyperparameters = (*MomentumSampler.hyperparameters, "momentum_decay", "mass")
    rule = staticmethod(adapted_rule)
    needs_master_in_float16 = True
    side_by_side = ("stacked", "separate")

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        values = super().prepare(params, values)
        return {**values, **planned(values, params, explores=self.warmup is not None)}

    def check_together(self, group: dict[str, Any]) -> None:
        super().check_together(group)
        params = [entry[1] if isinstance(entry, tuple) else entry for entry in group.get("params", ())]
        MASSES[group["mass"]].refuse(params)

    @classmethod
    def from_optimizer(
        cls,
        optimizer: torch.optim.Optimizer,
        num_data: float,
        *,
        prior_precision: Precision | None = None,
        **settings: Any,
    ) -> AdaptedSGHMC:
        """Go on from a model that ``torch.optim.Adam`` or ``AdamW`` has trained: sample, from the first step on.

        The parameters, their groups and names, each group's lr and β₁ (a = 1 − β₁) are the optimizer's, and the mass is
        frozen at its bias-corrected v̂ (with ``amsgrad`` at the largest). Adam's own momentum is left behind: it has no
        temperature. The optimizer is not changed, and must not be stepped any more.

        Args:
            optimizer: has taken at least one step.
            num_data: N.
            prior_precision: λ, or a prior; None is N·weight_decay of each group of an ``Adam``. An ``AdamW``'s decay is
                no term of any energy, so that λ must be given if it has one (N·weight_decay is the nearest).
            settings: further keywords of the sampler, as ``temperature``, ``eps``, ``momentum_init``;
                ``lr`` and ``momentum_decay`` replace those of every group.

        Raises:
            TypeError: ``optimizer`` is no Adam.
            ValueError: a sampled parameter has no state yet, the optimizer maximises, or λ is needed; all that the
                constructor raises.
        """
        return from_adam(cls, optimizer, num_data, prior_precision, settings)

    @property
    def not_differentiable(self) -> str:  # type: ignore[override]
        if self.warmup is not None:
            return "its warm-up is another optimizer"
        if any(MASSES[group["mass"]].renewed_every for group in self.param_groups):
            return "the root of a covariance is not differentiated through (mass='diagonal')"
        return "" if self.param_groups[0]["cycle_length"] is None else "its twin has no cycles (cycle_length=None)"

    # ---------------------------------------------------------------- the step

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        hyper = super().hyper(group, keep_tensors=keep_tensors)
        step, steps, weight = position(group), group["warmup_steps"], None
        heat = hyper["prior_precision"] * hyper["temperature"]
        prior = scalar_sqrt(heat) / hyper["num_data"] if isinstance(heat, Tensor) or heat else 0.0
        if step < steps:
            # Compiled as a tensor, for one graph of all steps.
            time = torch.full((), step + 1, dtype=torch.float64) if torch.compiler.is_compiling() else step + 1
            settles = self.warmup is not None and step >= exploration(group)
            weight = weight_of_gradient(time, group["decay"], time - exploration(group) if settles else None)
        return {**hyper, "floor": prior + group["eps"], "weight": weight, "freezes": step + 1 == steps}

    def join(self, param_group: dict[str, Any]) -> None:
        super().join(param_group)
        group = self.param_groups[-1]
        step, steps = position(self.param_groups[0]), group["warmup_steps"]
        if group["cycle_length"] is None and step >= max(1, steps):
            raise ValueError(
                f"a parameter group must join before the mass is frozen: warmup_steps is {steps} and {step} steps are "
                "over; make another sampler of all parameters"
            )

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        evaluation = super().evaluate(closure)
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                # A parameter may lack a gradient, and so a mass, where missing_gradient is "skip".
                if not p.requires_grad or p.grad is None or "mass" in self.state.get(p, {}):
                    continue
                # Read for new ones alone: a compiled step must not depend on the count.
                if (step := position(group)) >= group["warmup_steps"]:
                    raise ValueError(
                        f"parameter {self.name_of(group, i)} has no mass: warmup_steps is {group['warmup_steps']} and "
                        f"{step} steps are over; let it join before the mass is frozen, or use from_optimizer"
                    )
        return evaluation

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Explore, or take the chain's step; measure the mass meanwhile, and freeze it when the warm-up ends."""
        self.begin_phase(group, inputs.params)
        step, steps, mass = position(group), group["warmup_steps"], MASSES[group["mass"]]
        explores = self.explores(group)
        for p in () if explores else inputs.params:
            self.state_of(group, p, "momentum")
        joined = self._begin_masses(group, inputs)
        if explores:
            states = [self.state[p]["mass"] for p in inputs.params]
            if states:
                mass.measure(states, inputs.gradients, self.hyper(group)["weight"], FOREACH)
            self.explore(group, inputs)
        else:
            if step < steps and mass.renewed_every:
                all_at_once = step == exploration(group) or step % mass.renewed_every == 0
                params = group["params"] if all_at_once else joined
                self.freeze(group, [p for p in params if self._holds_root(group, p)])
            super().advance(group, inputs)
        if step + 1 == steps:
            self.freeze(group, group["params"])

    def begin_settling(self, group: dict[str, Any]) -> None:
        """A momentum for all parameters that have a mass, whether they have a gradient in this step or not."""
        for p in group["params"]:
            state = self.state.get(p, {})
            if "mass" in state:
                state["momentum"] = self.initial_state(group, p, "momentum").to(state["mass"].dtype)

    def _begin_masses(self, group: dict[str, Any], inputs: GroupInputs) -> list[Tensor]:
        """Make the masses of the parameters that have none, and return those that join a group that moves already."""
        joined, mass, step = [], MASSES[group["mass"]], position(group)
        compiling = torch.compiler.is_compiling()
        states = [self.state[p] for p in inputs.params] if compiling else self.plan(inputs.params).states
        for p, gradient, kept in zip(inputs.params, inputs.gradients, states, strict=True):
            if "mass" in kept:
                continue
            state = self.state_of(group, p, "mass")
            if p.numel() and (step or mass.holds_root(state)):
                mass.begin(state, gradient)
                joined.append(p)
        return joined

    def _holds_root(self, group: dict[str, Any], p: Tensor) -> bool:
        state = self.state.get(p, {}).get("mass")
        return state is not None and MASSES[group["mass"]].holds_root(state)

    def freeze(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Freeze, or renew, the masses of those that have one, whether they have a gradient in this step or not."""
        hyper, states = self.hyper(group), [self.state[p]["mass"] for p in params if "mass" in self.state.get(p, {})]
        freeze_(MASSES[group["mass"]], states, momentum_decay=hyper["momentum_decay"], floor=hyper["floor"])

    # ---------------------------------------------------------------- its state

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "mass":
            return p.new_zeros(MASSES[group["mass"]].state_shape(tuple(p.shape)))
        return super().initial_state(group, p, name)

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        if name != "mass":
            return tuple(p.shape)
        group = next(group for group in self.param_groups if any(p is member for member in group["params"]))
        return MASSES[group["mass"]].state_shape(tuple(p.shape))

    def is_possible_state(self, group: dict[str, Any], name: str, state: Tensor) -> bool:
        return name != "mass" or MASSES[group["mass"]].is_possible(state)
