"""SGHMC with a diagonal mass that is adapted while burning in, then frozen, so that its law is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.master_weights import MASTER, has_master, working_dtype
from learned_samplers.base.operations import FUNCTIONAL, Operations, as_number
from learned_samplers.base.sampler import Sampler, arguments
from learned_samplers.base.step import Evaluation, GroupInputs
from learned_samplers.classical.baoa import baoa_rule
from learned_samplers.classical.sghmc import sghmc_rule

#: The rules that a mass can be given to, by the name of the integrator.
INTEGRATORS = {"baoa": baoa_rule, "semi_implicit": sghmc_rule}


def diagonal_mass_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    root: Any,
    *,
    integrator: str,
    ops: Operations = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any]:
    """A step of `baoa_rule` or `sghmc_rule` in the coordinates φ = θ/√G, with ``root`` = √G one number a coordinate.

    In φ the gradient is √G·∇Ũ, and θ moves by √G times φ's movement; so coordinate i has the step √(lr·Gᵢ/N), and the
    law exp(−U/T − ‖r‖²/2T) is the integrator's for any √G > 0 that does not depend on θ. ``gradient`` is that of the
    mean loss *and prior*, g + λθ/N; ``settings`` are lr, num_data, temperature and momentum_decay. A tensor as
    ``momentum_decay`` is a friction for each coordinate (not in the form for lists: lists have no arithmetic).
    """
    pushed = ops.multiply(ops.affine(gradient, 1.0, 0.0), root)
    still = ops.map(torch.zeros_like, gradient)
    moved, momentum = INTEGRATORS[integrator](still, pushed, noise, momentum, prior_precision=0.0, ops=ops, **settings)
    return ops.add_product(parameter, moved, root), momentum


def scale_adapted_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    second_moment: Any,
    *,
    num_data: Any,
    prior_precision: Any,
    momentum_decay: Any,
    eps: Any,
    adaptation_rate: Any = 0.0,
    ops: Operations = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any, Any]:
    """One step of `ScaleAdaptedSGHMC` as a pure function, with any leading batch axes.

    v̂ ← v̂ + w·(ĝ² − v̂), ĝ = g + λθ/N;  then `diagonal_mass_rule` with G = a/(√v̂ + eps).

    w is ``adaptation_rate``; at 0 the mass stands still and the step is the sampler's. ``settings`` are lr, temperature
    and integrator.
    """
    gradient = ops.combine(gradient, parameter, prior_precision / num_data)
    if isinstance(adaptation_rate, Tensor) or adaptation_rate != 0:
        second_moment = ops.scale(second_moment, 1 - adaptation_rate)
        second_moment = ops.add_product(second_moment, gradient, gradient, adaptation_rate)
    root = ops.map(lambda scale: (momentum_decay / (scale + eps)) ** 0.5, ops.sqrt(second_moment))
    settings = {**settings, "num_data": num_data, "momentum_decay": momentum_decay, "ops": ops}
    return *diagonal_mass_rule(parameter, gradient, noise, momentum, root, **settings), second_moment


class ScaleAdaptedSGHMC(Sampler):
    """Adam for the first steps, then a sampler whose step size in each coordinate is what Adam had settled on.

    Source: Springenberg et al., Bayesian optimization with robust Bayesian neural networks, NeurIPS 2016, where it is
    scale-adapted SGHMC.

    A diagonal mass follows the gradients' second moment for ``adaptation_steps`` steps and is then frozen, which gives
    the chain a law that a moving mass (pSGLD, Adam with noise) does not have. With ĝ = g + λθ/N the gradient of
    the mean loss and prior, a = ``momentum_decay``, β = ``decay`` and t the step,

        v̂ ← v̂ + (1−β)/(1−βᵗ)·(ĝ² − v̂)                                while t ≤ adaptation_steps: Adam's v̂
                                          (of a tensor that joins at a later t it starts at its first g², averaged)
        G = a/(√v̂ + eps);    hᵢ = √(lr·Gᵢ/N)                           the step of each coordinate
        r ← r − h·N·ĝ;  θ ← θ + (h/2)·r;  r ← (1−a)·r + √(T(2a−a²))·ξ;  θ ← θ + (h/2)·r        integrator="baoa"
        r ← (1−a)·r − h·N·ĝ + √(2aT)·ξ;   θ ← θ + h·r                                 integrator="semi_implicit"

    The factor a makes ``lr`` Adam's: at temperature 0, with the mass frozen and the semi-implicit integrator, this is
    ``torch.optim.Adam(lr, betas=(1−a, β), eps)`` with that v̂ and no bias correction of its first moment (with "baoa",
    at the rate lr·(1 − a/2)). `from_optimizer` takes over a trained model and its Adam and samples from there.

    Invariant law once the mass is frozen: exp(−U/T) up to O(lr), for *any* mass; on quadratics "baoa" has Var θ = T/k
    exactly, and "semi_implicit" SGHMC's variance with ηk = hᵢ²k. Before, there is none, and `is_sampling` is False, so
    that `PosteriorSamples` collects nothing. At the posterior √v̂ ∝ √k, so that a condition number of
    10⁴ becomes one of 100 in hᵢ²k. Stable while hᵢ²k < 2(2−a) ("baoa": < 4).

    Args:
        params, num_data, temperature, prior_precision, momentum_init, foreach, generator, options: as for `SGHMC`.
        lr: Adam's learning rate. Begin with the one that trains the network.
        adaptation_steps: steps in which the mass is adapted. 0 only in `from_optimizer`: there is no mass otherwise.
        adaptation_temperature: T of these steps; None is ``temperature``, 0 makes them plain optimisation.
        momentum_decay: a in (0, 1]; Adam's β₁ is 1 − a.
        decay: β in [0, 1), Adam's β₂: the memory of the second moment.
        eps: added to √v̂, in units of the mean loss's gradient. Adam's 1e-8 will not do: a weight that hardly ever sees
            a gradient would get the mass 1e-8/a and fly away on its noise.
        integrator: "baoa" or "semi_implicit".

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; a step of a parameter that joined after
            the mass was frozen. See `Sampler.step` for the others of a step.
    """

    badge = "O(h)"
    not_sharded = ""
    state_names = ("momentum", "second_moment")
    structural = ("integrator",)
    hyperparameters = (*Sampler.hyperparameters, "momentum_decay", "eps", "integrator")
    rule = staticmethod(scale_adapted_rule)
    needs_master_in_float16 = True

    def __init__(
        self,
        params: Any,
        lr: float,
        num_data: float,
        *,
        adaptation_steps: int,
        adaptation_temperature: float | None = None,
        momentum_decay: float = 0.1,
        decay: float = 0.999,
        eps: float = 1e-5,
        integrator: str = "baoa",
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        validation.momentum(group)
        validation.whole("adaptation_steps", group["adaptation_steps"], least=0)
        if group["adaptation_temperature"] is not None:
            validation.non_negative("adaptation_temperature", group["adaptation_temperature"])
        validation.fraction("decay", group["decay"], open_right=True)
        validation.positive("eps", group["eps"])
        validation.one_of("integrator", group["integrator"], INTEGRATORS)

    @classmethod
    def from_optimizer(
        cls,
        optimizer: torch.optim.Optimizer,
        num_data: float,
        *,
        prior_precision: float | None = None,
        **settings: Any,
    ) -> ScaleAdaptedSGHMC:
        """Go on from a model that ``torch.optim.Adam`` or ``AdamW`` has trained: sample, from the first step on.

        The parameters, their groups and names, each group's lr and β₁ (a = 1 − β₁) are the optimizer's, and the mass is
        frozen at its bias-corrected v̂ (with ``amsgrad`` at the largest). Adam's own momentum is left behind: it has no
        temperature. The optimizer is not changed, and must not be stepped any more.

        Args:
            optimizer: has taken at least one step.
            num_data: N.
            prior_precision: λ; None is N·weight_decay of each group of an ``Adam``. An ``AdamW``'s decay is no term of
                any energy, so that λ must be given if it has one (N·weight_decay is the nearest).
            settings: further keywords of the sampler, as ``temperature``, ``integrator``, ``eps``, ``momentum_init``;
                ``lr`` and ``momentum_decay`` replace those of every group.

        Raises:
            TypeError: ``optimizer`` is no Adam.
            ValueError: a sampled parameter has no state yet, the optimizer maximises, or λ is needed; all that the
                constructor raises.
        """
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            raise TypeError(f"optimizer must be torch.optim.Adam or AdamW, got {type(optimizer).__name__}")
        groups = [_sampling_group(g, optimizer, num_data, prior_precision, settings) for g in optimizer.param_groups]
        adapted = {"adaptation_steps", "adaptation_temperature", "decay"} & settings.keys()
        if adapted:
            raise ValueError(f"{', '.join(sorted(adapted))} must not be given: the optimizer's mass is frozen at once")
        settings = {"lr": groups[0]["lr"], **settings, "adaptation_steps": 0}
        sampler = cls(groups, num_data=num_data, **settings)
        for group, theirs in zip(sampler.param_groups, optimizer.param_groups, strict=True):
            for i, p in enumerate(group["params"]):
                if p.requires_grad:
                    moment = _second_moment(optimizer.state.get(p, {}), theirs, sampler.name_of(group, i))
                    dtype = working_dtype(group, p)
                    sampler.state[p]["momentum"] = sampler.initial_state(group, p, "momentum").to(dtype)
                    sampler.state[p]["second_moment"] = moment.to(p.device, dtype)
                    if has_master(group, p):
                        sampler.state[p][MASTER] = p.detach().float()
        return sampler

    @property
    def is_sampling(self) -> bool:
        """Whether the last step was one with the frozen mass (and, under a cyclical schedule, one that samples)."""
        frozen = all(group["step"] > group["adaptation_steps"] for group in self.param_groups)
        return frozen and super().is_sampling

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        evaluation = super().evaluate(closure)
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                # A parameter may lack a gradient, and so a mass, where missing_gradient is "skip".
                if not p.requires_grad or p.grad is None or "second_moment" in self.state.get(p, {}):
                    continue
                # Read for new ones alone: a compiled step must not depend on the count.
                if group["step"] >= group["adaptation_steps"]:
                    raise ValueError(
                        f"parameter {self.name_of(group, i)} has no mass: adaptation_steps is "
                        f"{group['adaptation_steps']} and {group['step']} steps are over; let it join before the "
                        "mass is frozen, or use from_optimizer"
                    )
        return evaluation

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        # The group counts the steps of v̂, so that zeros would not be forgotten by one that joins while others adapt.
        # The mean over its tensor (its part of a sharded one): of few gradients v̂ would let single weights fly away.
        for p, gradient in zip(inputs.params, inputs.gradients, strict=True):
            joins = p.numel() and "second_moment" not in self.state.get(p, {})
            if joins and 0 < group["step"] < group["adaptation_steps"]:
                self.state_of(group, p, "second_moment").add_(gradient.square().mean())
        super().advance(group, inputs)

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        hyper = super().hyper(group, keep_tensors=keep_tensors)
        step = group["step"] + 1
        if torch.compiler.is_compiling():  # a tensor keeps one graph for every step
            step = torch.full((), step, dtype=torch.float64)
        adapting = step <= group["adaptation_steps"]
        if group["adaptation_temperature"] is not None:
            burning = group["adaptation_temperature"]
            burning = burning if keep_tensors or torch.compiler.is_compiling() else as_number(burning)
            if isinstance(adapting, Tensor):
                hyper["temperature"] = burning * adapting + hyper["temperature"] * ~adapting
            elif adapting:
                hyper["temperature"] = burning
        return {**hyper, "adaptation_rate": adapting * (1 - group["decay"]) / (1 - group["decay"] ** step)}


def _sampling_group(
    theirs: dict[str, Any], optimizer: torch.optim.Optimizer, num_data: Any, prior: float | None, settings: Any
) -> dict[str, Any]:
    """A parameter group of the sampler from one of Adam: its parameters, learning rate, momentum and weight decay."""
    if theirs["maximize"]:
        raise ValueError("optimizer must minimise the loss, got maximize=True")
    decay = theirs["weight_decay"]
    decoupled = isinstance(optimizer, torch.optim.AdamW) or theirs.get("decoupled_weight_decay", False)
    if prior is None and decoupled and decay:
        raise ValueError(
            f"prior_precision must be given: AdamW's weight_decay={decay} is no prior (num_data * weight_decay = "
            f"{as_number(num_data) * decay:g} is the nearest)"
        )
    names, lr = theirs.get("param_names"), as_number(theirs["lr"])
    peak = max((as_number(theirs[key]) for key in ("initial_lr", "max_lr") if key in theirs), default=lr)
    if "lr" not in settings and lr < peak / 10:
        raise ValueError(
            f"lr must be given: a schedule has brought that of {type(optimizer).__name__} from {peak:g} down to "
            f"{lr:g}, at which a chain stands still; take one near the largest that trained well"
        )
    return {
        "params": list(zip(names, theirs["params"], strict=True)) if names else list(theirs["params"]),
        "lr": settings.get("lr", lr),
        "momentum_decay": settings.get("momentum_decay", 1 - as_number(theirs["betas"][0])),
        "prior_precision": as_number(num_data) * decay if prior is None else prior,
    }


def _second_moment(state: dict[str, Any], group: dict[str, Any], name: str) -> Tensor:
    """Adam's bias-corrected second moment of one parameter, a new tensor."""
    if "exp_avg_sq" not in state:
        raise ValueError(f"parameter {name} has no state in the optimizer: it must have taken a step before")
    moment = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    return moment / (1 - as_number(group["betas"][1]) ** as_number(state["step"]))
