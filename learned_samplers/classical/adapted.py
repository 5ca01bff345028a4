"""Warm up by any optimizer, freeze a mass that was measured meanwhile, and sample with it: the law is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import sharding, validation
from learned_samplers.base.guards.side_by_side import is_stacked
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, scalar_sqrt
from learned_samplers.base.sampler import MomentumSampler, Sampler
from learned_samplers.base.settings import choice, setting
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.classical.adapted_rule import adapted_rule
from learned_samplers.classical.budget import done, exploration, planned, position, thinning_of
from learned_samplers.classical.cycles import cycle_of
from learned_samplers.classical.from_adam import from_adam
from learned_samplers.classical.mass import MASSES
from learned_samplers.classical.warmup import MakeOptimizer, WarmUp
from learned_samplers.classical.whitened import WhitenedSGHMC

#: Where a budget alone is given: what explores.
WARMUP = partial(WhitenedSGHMC, lr=0.002)
#: When settling begins, the exploration counts as this many gradients: at its end they may be nearly zero.
REMEMBERED = 20


def _makes_optimizer(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be None or make an optimizer of parameter groups, got {value!r:.60}")


class AdaptedSGHMC(MomentumSampler):
    """Trains by an optimizer of your choice, then samples the posterior with the preconditioner that it has measured.

    The first ``warmup_steps`` W of a run find a mode and measure a mass, which is then frozen: a moving one (pSGLD,
    Adam with noise) has no law. With a = ``momentum_decay``, β = ``decay``, S of the share ``settling_share``, t the
    step:

        t ≤ W       v̂ ← v̂ + (1−β)/(1−βᵗ)·(g² − v̂)                                        Adam's, of the mean loss
        t ≤ W·(1−S) the step of ``warmup`` (None: the step below, with the mass of that moment)             explore
        t ≤ W       the step below, with the mass of that moment, at the temperature                         settle
        t > W       the step below, with G as it was at t = W                                                sample

        ĝ = g + λθ/N;   G = a/(√v̂ + √(λT)/N + eps);   hᵢ = √(lr·Gᵢ/N)                    the step of each coordinate
        r ← r − h·N·ĝ;  θ ← θ + (h/2)·r;  r ← (1−a)·r + √(T(2a−a²))·ξ;  θ ← θ + (h/2)·r           `BAOA`'s

    With mass="matrix" a matrix of weights (a row an output; a convolution's has all its other axes for columns) has a
    matrix in the place of G, on the right, and its root in that of √G, in the update of r and in that of θ:

        R̂ ← R̂ + (1−β)/(1−βᵗ)·(gᵀg/rows − R̂);   G = a·((R̂ + 10⁻⁶·‖R̂‖)^½ + √(λT)/N + eps)⁻¹

    in blocks of at most 288 columns, renewed every ten steps while it settles. It takes 2·width numbers a column (width
    is that of a block: 10 numbers a weight more for a ResNet-20), two products of rows·columns·width multiply-adds a
    step, and an eigendecomposition of each block at a renewal. Vectors, biases, the parameters of norms and matrices of
    very many columns beside their rows have the diagonal mass, as a group with its own ``mass="diagonal"`` has
    (embeddings).

    √(λT)/N is the root mean square of the prior's gradient, at the prior: without it a weight that hardly ever sees a
    gradient would fly away on its noise. Settling matters because at a mode, where a warm-up ends, gradients are
    smaller than in the posterior around it, on few data by orders of magnitude: so it forgets what the ``warmup`` saw,
    and the s-th gradient since has the weight 1/(s+20) where that is more than (1−β)/(1−βᵗ). r begins at zero (or
    drawn, by ``momentum_init``) after a ``warmup``.

    Invariant law once the mass is frozen: exp(−U/T) up to O(lr), for *any* mass; on quadratics Var θ = T/k
    exactly. Before, there is none, and `is_sampling` is False, so
    that `PosteriorSamples` collects nothing. At the posterior √v̂ ∝ √k, so that a condition number of 10⁴ becomes one
    of 100 in hᵢ²k. Stable while hᵢ²k < 4. The factor a makes ``lr`` Adam's: a gradient that stays moves a weight by
    lr·(1−a/2)·g/√v̂ a step. `from_optimizer` takes over a trained model and its Adam and samples at once.

    With ``cycle_length`` K all of it begins anew every K steps from the weights where it is (t counts from 1 in each
    cycle; mass and momenta are forgotten), to visit several modes. Each cycle's samples keep the law around what its
    warm-up found; how often a mode is found is not its probability, hence the badge "heuristic" then.

    Source: Springenberg et al., Bayesian optimization with robust Bayesian neural networks, NeurIPS 2016, where it is
    scale-adapted SGHMC; other warm-ups, the settling and the prior in the mass are ours.

        AdaptedSGHMC(model.parameters(), num_data=N, total_steps=4000)
        AdaptedSGHMC(model.parameters(), num_data=N, warmup_steps=2000, warmup=L2E)
        AdaptedSGHMC(model.parameters(), 0.003, num_data=N, warmup_steps=2000)
        AdaptedSGHMC(model.parameters(), num_data=N, warmup_steps=2000,
                     warmup=lambda groups: torch.optim.SGD(groups, 0.1))

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; ``warmup`` makes no optimizer of the
            groups, or one that needs more than gradients; a step of a parameter that joined after the mass was frozen.
            See `Sampler.step` for the others of a step.
    """

    lr: float | None = setting(  # type: ignore[assignment]
        default=None,
        check=validation.non_negative,
        check_new=validation.positive,
        kw_only=False,
        doc="of the chain: Adam's learning rate. Without a warm-up begin with the one that trains the network. "
        "None is 0.003, or 0.002 where T < 1 and ``total_steps`` (a cycle, where there are cycles) is more "
        "than N/16 steps, four epochs of minibatches of 64: their heat, some 115·lr on a small CNN, makes a "
        "longer run too unsure.",
    )
    num_data: float = setting(
        default=None,
        check=lambda name, value: validation.number_of_data(value),
        kw_only=False,
        shared=True,
        doc="N, the number of training points; it must be given.",
    )
    total_steps: int | None = setting(
        default=None,
        check=validation.integer,
        optional=True,
        of_sampler=True,
        doc="the budget. It stands for the two next ones: `WhitenedSGHMC` explores, at lr 0.002, and W is four "
        "fifths of it (of a cycle), but not more than N/8 steps, down to half of it. `thinning` is then "
        "known, too. At least 13 (a cycle, too), so that the mass is that of ten gradients.",
    )
    warmup_steps: int | None = setting(
        default=None,
        check=partial(validation.integer, least=0),
        shared=True,
        doc="W. A mass of a few gradients is a bad one, which slows the chain; its law is the same.",
    )
    warmup: MakeOptimizer | None = setting(
        default=None,
        check=_makes_optimizer,
        optional=True,
        of_sampler=True,
        doc="None, or what makes an optimizer of parameter groups: the class of a sampler that needs nothing but "
        "gradients (`WhitenedSGHMC`, `L2E`, ...), a ``functools.partial`` of one, or any callable, as ``lambda groups: "
        "torch.optim.AdamW(groups, lr=0.001)``. It has its own lr. A class of samplers gets ``num_data``, "
        "``temperature`` and ``prior_precision``, and follows them; other optimizers keep their own settings, and "
        "minimise the loss (their weight decay is the prior's part). None stays at the mass of the moment.",
    )
    settling_share: float | None = setting(
        default=None,
        check=partial(validation.fraction, open_right=True),
        shared=True,
        doc="S in [0, 1); by default 0.1 with a matrix mass and 0.25 with a diagonal one, but at least twice as many "
        "steps as a weight without gradients takes to the prior's width, √(T/λ)/lr, up to half of W: with a wide prior "
        "the chain has far to go before its gradients are those of the posterior (the longest such time of the groups "
        "given here). 0 without a ``warmup``, for then it has settled anyway.",
    )
    mass: str | None = choice(
        *MASSES,
        default=None,
        structural=True,
        doc='"diagonal" or "matrix"; by default "matrix" with a warm-up by another optimizer: it fits faster and mixes '
        "better.",
    )
    cycle_length: int | None = setting(
        default=None,
        check=validation.integer,
        optional=True,
        shared=True,
        structural=True,
        doc="K > W, in steps; None for a single warm-up.",
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
        for name in ("warmup", "total_steps"):
            self.declared[name].validate(values[name])
        if values["warmup"] is None and values["total_steps"] is not None:
            values["warmup"] = WARMUP
        self.warmup = values["warmup"]
        #: The optimizer that explores, while it does.
        self.explorer: WarmUp | None = None
        groups = [group for group in params if isinstance(group, dict)]
        plan = planned(values, values["total_steps"], groups, explores=self.warmup is not None)
        return {**super().prepare(params, values), **plan}

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        if defaults["cycle_length"] is not None:
            self.badge = "heuristic"  # type: ignore[misc]
        if self.warmup is not None:
            self.explorer = self._new_explorer()

    def check_together(self, group: dict[str, Any]) -> None:
        steps, length = group["warmup_steps"], group["cycle_length"]
        validation.integer("warmup_steps", steps, least=0 if self.warmup is None else 1)
        if length is not None and length <= steps:
            raise ValueError(f"cycle_length {length} leaves no step to sample in after warmup_steps={steps}")
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in group.get("params", ())]
        if not MASSES[group["mass"]].renewed_every:
            return
        if any(map(sharding.is_sharded, tensors)):
            raise TypeError(f"a mass of {group['mass']!r} cannot sample sharded parameters: take mass='diagonal'")
        if any(map(is_stacked, tensors)):
            raise TypeError(
                f"AdaptedSGHMC cannot have mass={group['mass']!r} for chains that are stacked in one tensor, whose "
                "matrix it would share among them: take Chains(..., separate=True)"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self.explorer is not None:
            self.explorer.add(self.param_groups[-1])

    add_param_group.__doc__ = Sampler.add_param_group.__doc__

    @classmethod
    def from_optimizer(
        cls,
        optimizer: torch.optim.Optimizer,
        num_data: float,
        *,
        prior_precision: float | None = None,
        **settings: Any,
    ) -> AdaptedSGHMC:
        """Go on from a model that ``torch.optim.Adam`` or ``AdamW`` has trained: sample, from the first step on.

        The parameters, their groups and names, each group's lr and β₁ (a = 1 − β₁) are the optimizer's, and the mass is
        frozen at its bias-corrected v̂ (with ``amsgrad`` at the largest). Adam's own momentum is left behind: it has no
        temperature. The optimizer is not changed, and must not be stepped any more.

        Args:
            optimizer: has taken at least one step.
            num_data: N.
            prior_precision: λ; None is N·weight_decay of each group of an ``Adam``. An ``AdamW``'s decay is no term of
                any energy, so that λ must be given if it has one (N·weight_decay is the nearest).
            settings: further keywords of the sampler, as ``temperature``, ``eps``, ``momentum_init``;
                ``lr`` and ``momentum_decay`` replace those of every group.

        Raises:
            TypeError: ``optimizer`` is no Adam.
            ValueError: a sampled parameter has no state yet, the optimizer maximises, or λ is needed; all that the
                constructor raises.
        """
        return from_adam(cls, optimizer, num_data, prior_precision, settings)

    # ---------------------------------------------------------------- where in its cycle the chain is

    def _new_explorer(self) -> WarmUp:
        assert self.warmup is not None
        return WarmUp(self.warmup, self.param_groups)

    def _explores(self, group: dict[str, Any]) -> bool:
        return self.warmup is not None and position(group) < exploration(group)

    @property
    def is_sampling(self) -> bool:
        """Whether the last step was one with the frozen mass (and, under a cyclical schedule, one that samples)."""
        first = self.param_groups[0]
        return done(first) > first["warmup_steps"] and super().is_sampling

    def thinning(self, num_samples: int) -> int:
        """Steps between samples of which there are to be so many at the end of ``total_steps``.

            PosteriorSamples(model, sampler, thinning=sampler.thinning(30))

        Raises:
            ValueError: ``total_steps`` was not given, or leaves fewer steps in which it samples.
        """
        validation.integer("num_samples", num_samples)
        if self.total_steps is None:
            raise ValueError("total_steps must have been given to plan samples, got None")
        first = self.param_groups[0]
        return thinning_of(self.total_steps, first["warmup_steps"], first["cycle_length"], num_samples)

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to, from 0."""
        length = self.param_groups[0]["cycle_length"]
        return cycle_of(self.step_count, length) if length else super().cycle

    # ---------------------------------------------------------------- the step

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        hyper = super().hyper(group, keep_tensors=keep_tensors)
        step, steps = position(group), group["warmup_steps"]
        heat = hyper["prior_precision"] * hyper["temperature"]
        prior = scalar_sqrt(heat) / hyper["num_data"] if isinstance(heat, Tensor) or heat else 0.0
        rate = None
        if step < steps:
            # In double precision, for 1 − βᵗ is a small difference; compiled as a tensor, for one graph of all steps.
            time = torch.full((), step + 1, dtype=torch.float64) if torch.compiler.is_compiling() else step + 1
            rate = (1 - group["decay"]) / (1 - group["decay"] ** time)
            if self.warmup is not None and step >= exploration(group):
                settled = 1 / (time - exploration(group) + REMEMBERED)
                rate = torch.maximum(rate, settled) if isinstance(settled, Tensor) else max(rate, settled)
        return {**hyper, "floor": prior + group["eps"], "rate": rate, "freezes": step + 1 == steps}

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
        if self.explorer is not None and not self._explores(self.param_groups[0]):
            if isinstance(self.explorer.optimizer, Sampler):  # what it has said of the noise is said
                self.reseeding.warned |= self.explorer.optimizer.reseeding.warned
            self.explorer = None
        return evaluation

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        step = position(group)
        if step == 0 and group["step"]:
            self._begin_cycle(group, inputs.params)
        if self.warmup is not None and step == exploration(group):
            self._begin_sampling(group)
        kind, explores, joined = MASSES[group["mass"]], self._explores(group), []
        for p, gradient in zip(inputs.params, inputs.gradients, strict=True):
            joins = p.numel() and "mass" not in self.state.get(p, {})
            if not explores:
                self.state_of(group, p, "momentum")
            state = self.state_of(group, p, "mass")
            if joins and (step or kind.kept(state)):  # else it would take long to forget that it began at zero
                kind.begin(state, gradient)
                joined.append(p)
        if explores:
            self._explore(group, inputs)
        else:
            if step < group["warmup_steps"] and kind.renewed_every:
                whole = step == exploration(group) or step % kind.renewed_every == 0
                self.freeze(group, group["params"] if whole else joined, kept=True)
            super().advance(group, inputs)
        if step + 1 == group["warmup_steps"]:
            self.freeze(group, group["params"])

    def _begin_cycle(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Forget all but the weights, and the master copies of those that move now."""
        if self.warmup is not None and group is self.param_groups[0]:
            self.explorer = self._new_explorer()
        here = {id(p) for p in params}
        for p in group["params"]:
            if id(p) not in here:
                self.state.pop(p, None)
                continue
            for name in self.state_names:
                self.state[p].pop(name, None)

    def _begin_sampling(self, group: dict[str, Any]) -> None:
        """A momentum for all parameters that have a mass, whether they have a gradient in this step or not."""
        for p in group["params"]:
            own = self.state.get(p, {})
            if "mass" in own:
                own["momentum"] = self.initial_state(group, p, "momentum").to(own["mass"].dtype)

    def freeze(self, group: dict[str, Any], params: Iterable[Tensor], *, kept: bool = False) -> None:
        """Freeze the mass of those that have one, whether they have a gradient in this step or not; or only renew the
        masses that are kept while they are measured."""
        kind, hyper = MASSES[group["mass"]], self.hyper(group)
        known = {name: hyper[name] for name in ("momentum_decay", "floor")}
        for p in params:
            state = self.state.get(p, {}).get("mass")
            if state is not None and (not kept or kind.kept(state)):
                # Not 0 where a gradient overflows, or the chain would stand still: what is not finite stays so.
                state.copy_(torch.where(state.isfinite(), kind.freeze(state, FUNCTIONAL, **known), state))

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "mass":
            return p.new_zeros(MASSES[group["mass"]].state_shape(tuple(p.shape)))
        return super().initial_state(group, p, name)

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        shape = tuple(p.shape)
        if name != "mass":
            return shape
        group = next(group for group in self.param_groups if any(p is each for each in group["params"]))
        return MASSES[group["mass"]].state_shape(shape)

    def _explore(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Measure the mass, and take a step of the optimizer that explores."""
        if inputs.params:
            states = [self.state[p]["mass"] for p in inputs.params]
            MASSES[group["mass"]].measure(states, inputs.gradients, self.hyper(group)["rate"], FOREACH)
        number = next(i for i, each in enumerate(self.param_groups) if each is group)
        assert self.explorer is not None
        self.explorer.step(number, group, inputs, position(group), self.generator)

    @property
    def not_sharded(self) -> str:  # type: ignore[override]
        return "" if self.warmup is None else "its warm-up may need whole tensors"

    @property
    def not_differentiable(self) -> str:  # type: ignore[override]
        if self.warmup is not None:
            return "its warm-up is another optimizer"
        if any(MASSES[group["mass"]].renewed_every for group in self.param_groups):
            return "the root of a covariance is not differentiated through (mass='diagonal')"
        return "" if self.param_groups[0]["cycle_length"] is None else "its twin has no cycles (cycle_length=None)"

    # ---------------------------------------------------------------- saving and resuming

    def saved_names(self, group: dict[str, Any], p: Tensor) -> tuple[str, ...]:
        # Of a saved state; the rest is checked later.
        validation.integer("warmup_steps", group["warmup_steps"], least=0)
        validation.fraction("settling_share", group["settling_share"], open_right=True)
        names = super().saved_names(group, p)
        if self.warmup is not None and 0 < done(group) <= exploration(group):
            return tuple(name for name in names if name != "momentum")
        return names

    def state_dict(self) -> dict[str, Any]:
        """As `Sampler.state_dict`, with that of the optimizer that explores while it does."""
        saved, first = super().state_dict(), self.param_groups[0]
        if self.explorer is not None and position(first) and self._explores(first):
            saved["sampler"]["warmup"] = self.explorer.state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validate_saved(state_dict)
        explorer = self._resumed(state_dict)
        super().load_state_dict(state_dict)
        self.explorer = explorer

    load_state_dict.__doc__ = Sampler.load_state_dict.__doc__

    def validate_header(self, header: dict[str, Any]) -> None:
        super().validate_header(header)
        if self.warmup is None and "warmup" in header:
            raise ValueError("state_dict is of a chain that explores by a warmup, this sampler has none")

    def _resumed(self, saved: dict[str, Any]) -> WarmUp | None:
        """A new optimizer that explores on from a saved state; None if nothing is explored there."""
        group, state = {**self.param_groups[0], **saved["param_groups"][0]}, saved["sampler"].get("warmup")
        if not self._explores(group):
            return None
        explorer = self._new_explorer()
        if position(group) == 0:
            return explorer
        if state is None:
            raise ValueError("state_dict is of a chain that explores without a warmup, this sampler has one")
        noise = self.rng_state(), self.global_rng_state()
        try:
            explorer.load_state_dict(state, saved["state"], self.param_groups[0]["params"][0].device)
        finally:
            for states in noise:
                self.set_rng_state(states)
        return explorer

    def inner_optimizers(self) -> list[torch.optim.Optimizer]:
        return [] if self.explorer is None else [self.explorer.optimizer]

    def bookmark(self) -> Callable[[], None]:
        explorer = self.explorer
        others = None if explorer is None else explorer.bookmark()

        def restore() -> None:
            self.explorer = explorer
            if others is not None:
                others()

        return restore

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            **{name: getattr(self, name) for name in ("warmup", "explorer", "badge", "total_steps")},
        }
