"""The base class of the samplers: everything but the update rule.

A sampler is a ``torch.optim.Optimizer`` whose step draws the next state of a Markov chain. A subclass states its
update as one pure function (`Sampler.rule`) and names its hyperparameters and its state. A step reads

    guards before → gather (`Sampler.evaluate`: closure, gradients) → the rule (`Sampler.advance`) within guards

and a guard that does not apply to a step is not in its list, nor costs it anything. In order, and why:

    before  broken off       no step goes on from half a step
            hyperparameters  a scheduler, a hand or a loaded state may have changed them since the last step
            resumed          a loaded state goes with the weights that were saved with it
            schedule         no step at the rate or temperature of another step
            replicas         copies of one chain draw the same noise, and are compared
    around  clipping         it watches what was gathered, before anything else changes it
            autocast off     of the whole update
            shards           this process's parts take the place of the parameters, for all that follows
            overflow         what it undoes is what the rule and the masters have written
            masters          float32 copies take the place of half-precision parameters
            prior's mean     innermost: the rule works in coordinates in which it is zero

One more, the watch for a generator that is set back, stands where noise is drawn (`Sampler.noise_like`). Inside of
``torch.compile``, where nothing is raised or remembered, there are none before the step, and around it no watch and no
overflow; shards and masters refuse to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import prior_mean, sharding, step, validation
from learned_samplers.base.group_keys import GROUP_OPTIONS, known_options, momentum_as_decay, refuse_unknown
from learned_samplers.base.guards import broken_off, overflow, precision, replicas, schedule, shards, side_by_side
from learned_samplers.base.guards.hyperparameters import ChangedHyperparameters
from learned_samplers.base.guards.misuse import ClippingWatch, ReseedingWatch, other_weights
from learned_samplers.base.operations import FOREACH, IN_PLACE, as_number, is_finite, waits_for_launches
from learned_samplers.base.saved_state import ResumableOptimizer
from learned_samplers.base.step import Evaluation, GroupInputs, blocks

#: What is called before a step, and what the rule of a step is called within: see `learned_samplers.base.guards`.
Before = Callable[["Sampler"], None]
Around = Callable[["Sampler", Evaluation, Callable[[], None]], None]


class Sampler(ResumableOptimizer):
    """A ``torch.optim.Optimizer`` whose steps draw samples from a Bayesian posterior.

    The target is p(θ|D)^(1/T) ∝ exp(−U(θ)/T) with U(θ) = −Σₙ log p(yₙ|xₙ, θ) + ½ λ‖θ − μ‖². The user's loss is the
    *mean* negative log-likelihood of a minibatch, so that ``p.grad`` = g and ∇Ũ = N·g + λ(θ − μ). The prior's mean μ is
    zero unless a parameter group says otherwise by ``prior_mean``: "initial" for the weights that it is made with, or
    one tensor a parameter. `rule` is given θ − μ as its parameter and need not know of μ.

    A subclass sets `badge`, `state_names`, `hyperparameters` and `rule`, and extends `_validate`. One that needs more
    than the gradients (a second evaluation, the energy) extends `evaluate`, which must leave the chain where it was.
    """

    #: What a test has shown of the invariant law: ``"exact"``, ``"O(h)"`` or ``"heuristic"``.
    badge: ClassVar[str]
    #: Keys of the parameter group that `rule` takes as keyword arguments.
    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "prior_precision")
    #: The update, a pure function: ``rule(parameter, gradient, noise, *state, **hyperparameters, ops=...)`` returns
    #: the new parameter followed by the new state. ``noise`` is standard normal, or None at temperature 0.
    rule: ClassVar[Callable[..., Any]]
    #: Whether `step` works only with a closure.
    needs_closure: ClassVar[bool] = False
    #: Whether the sampler takes ``prior_mean``.
    takes_prior_mean: ClassVar[bool] = True
    #: The `CyclicalSchedule` that is attached to this sampler, or None.
    schedule: Any = None
    #: Options of the parameter groups that `step` reads, with their defaults.
    group_options: ClassVar[dict[str, Any]] = GROUP_OPTIONS
    #: Keys that the sampler itself writes into its parameter groups.
    group_keys: ClassVar[tuple[str, ...]] = ()
    #: Whether the whole update is done in `advance`, so that it can work on float32 copies of the parameters.
    half_precision: bool = True
    #: Whether the update divides by numbers that are 0 in float16.
    needs_master_in_float16: ClassVar[bool] = False
    #: Whether every step evaluates its closure more than once.
    evaluates_again: ClassVar[bool] = False
    #: Whether the update reads the loss beside the gradients, so that a closure must return it.
    reads_loss: ClassVar[bool] = False
    #: Why parameters must not be sharded over processes, "" where they may be: where the update acts on each weight by
    #: itself, or takes the statistics of whole tensors from `learned_samplers.base.guards.shards`.
    not_sharded: str = "its update may need more of a tensor than one process has"
    #: How several networks may lie in the parameters (`Chains`) so that each moves as it would alone: "stacked" along a
    #: leading axis where the update acts on each weight by itself, or takes one loss a network; "separate", a tensor
    #: being of one network, where it takes each tensor by itself.
    side_by_side: ClassVar[tuple[str, ...]] = ("separate",)
    #: Why there is no gradient through a step, "" where there is: see `learned_samplers.differentiable`.
    not_differentiable: ClassVar[str] = ""
    #: "auto", "replicated" or "independent"; see `learned_samplers.base.guards.replicas`.
    distributed: str = "auto"
    #: Whether this process has agreed with the others on the noise of a replicated chain.
    agreed: bool = False

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        if {"momentum", "momentum_decay"} <= keywords.keys():  # __init__ could not tell a default from what is given
            momentum_as_decay(cls.__name__, keywords, keywords)
        return super().__new__(cls)

    def __init__(self, params: Any, defaults: dict[str, Any], *, generator: torch.Generator | None = None):
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        self.distributed = defaults.pop("distributed", "auto")
        validation.one_of("distributed", self.distributed, ("auto", "replicated", "independent"))
        defaults = {**self.group_options, "prior_mean": None, **defaults}
        self._validate_new(defaults)
        self._begin()
        super().__init__(params, defaults)
        self.generator = generator
        if generator is None and self.mesh is not None:
            self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))

    def _begin(self) -> None:
        """What guards remember of the steps so far: it is not saved, and a copy of the sampler begins anew."""
        self.changed_hyperparameters = ChangedHyperparameters()
        #: Shape of the gradient and dtype of each parameter in its first step.
        self.first_shapes: dict[Tensor, tuple[torch.Size, torch.dtype]] = {}
        self.clipping, self.reseeding = ClippingWatch(), ReseedingWatch()

    # ---------------------------------------------------------------- arguments

    def _validate(self, group: dict[str, Any]) -> None:
        """Check the hyperparameters of a group at any time; subclasses add their own."""
        validation.non_negative("lr", group["lr"])
        validation.number_of_data(group["num_data"])
        validation.non_negative("temperature", group["temperature"])
        validation.non_negative("prior_precision", group["prior_precision"])
        validation.one_of("foreach", group["foreach"], (None, True, False))
        validation.one_of("master_weights", group["master_weights"], (None, True, False))
        validation.one_of("missing_gradient", group["missing_gradient"], ("error", "skip"))

    def _validate_new(self, group: dict[str, Any]) -> None:
        """Check the hyperparameters of a new group: `_validate`, and lr > 0, which a scheduler may later bring to 0."""
        validation.positive("lr", group["lr"])
        self._validate(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`, after checking its hyperparameters and tensors."""
        listed = validation.listed_parameters(param_group)
        others = [p for group in self.param_groups for p in group["params"]]
        validation.validate_parameters(listed, others)
        param_group = momentum_as_decay(type(self).__name__, param_group, self.defaults)
        refuse_unknown(type(self).__name__, param_group, self.defaults, self.group_keys)
        group = {**self.defaults, **param_group, "params": listed}
        if self.param_groups and "prior_mean" not in param_group:
            prior_mean.refuse_inherited(group["prior_mean"])
        self._validate_new(group)
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in listed]
        mesh = shards.mesh_of(self, listed)
        side_by_side.refuse(self, listed)
        precision.validate(self, group, tensors)
        dtypes = [precision.working_dtype(group, p) for p in tensors]
        group["prior_mean"] = prior_mean.resolve(self, group["prior_mean"], tensors, dtypes)
        group.setdefault("step", self.param_groups[0]["step"] if self.param_groups else 0)
        validation.integer("step", group["step"], least=0)
        super().add_param_group(group)
        self.mesh = mesh
        if self.schedule is not None:
            self.schedule.joined(self.param_groups[-1])

    # ---------------------------------------------------------------- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the chain.

        Args:
            closure: clears the gradients, computes the mean minibatch loss, calls ``backward`` and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            ValueError: a parameter that requires a gradient has none, or a hyperparameter is out of range.
            TypeError: a gradient is sparse.
            FloatingPointError: the closure's loss, a gradient or a parameter is not finite, or would not be after the
                step. (Not inside ``torch.compile``, where nothing can be raised.)
            RuntimeError: the copies of a replicated chain have drifted apart, or an earlier step was broken off.
                Nothing has changed after any of these. An update that fails in the middle (out of memory, or
                interrupted) is not undone: `broken_off` is true from then on, and `step` and `state_dict` refuse until
                a saved state is loaded.
        """
        for guard in self.guards_before():
            guard(self)
        attempt = nullcontext() if torch.compiler.is_compiling() else broken_off.Attempt(self)
        with attempt:
            evaluation = self.evaluate(closure)
            rule: Callable[[], None] = partial(self.advance_all, evaluation)
            for around in reversed(self.guards_around(evaluation)):
                rule = partial(around, self, evaluation, rule)
            if isinstance(attempt, broken_off.Attempt):
                attempt.begins_update(evaluation)
            rule()
            for group in self.param_groups:
                group["step"] += 1
        return evaluation.loss

    def guards_before(self) -> list[Before]:
        """What may refuse the next step before anything is evaluated, in this order."""
        if torch.compiler.is_compiling():  # where nothing can be raised
            return []
        guards: list[Before] = [broken_off.refuse, self.changed_hyperparameters]
        if self.saved_weights is not None:
            guards.append(other_weights)
        if self.schedule is not None or "sampling_temperature" in self.param_groups[0]:
            guards.append(schedule.keep_step)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            guards.append(replicas.keep_together)
        return guards

    def guards_around(self, evaluation: Evaluation) -> list[Around]:
        """What the rule of a step is applied within, the outermost first."""
        guards: list[Around] = []
        if not (self.clipping.warned or torch.compiler.is_compiling()):
            guards.append(self.clipping)
        if torch.is_autocast_enabled(self.param_groups[0]["params"][0].device.type):
            guards.append(precision.outside_autocast)
        if self.mesh is not None:
            guards.append(shards.on_parts)
        large = half_precision = centred = False
        for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
            large |= inputs.large
            half_precision |= inputs.half_precision and group.get("master_weights") is not False
            centred |= group.get("prior_mean") is not None
        if large:
            guards.append(overflow.undone)
        if half_precision:
            guards.append(precision.on_masters)
        if centred:
            guards.append(prior_mean.centred_at_zero)
        return guards

    def advance_all(self, evaluation: Evaluation) -> None:
        """Apply the rule to every group, in place."""
        for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
            self.advance(group, inputs)

    def _loaded(self) -> None:
        self.reseeding = ReseedingWatch()  # the generator may be put back to where it was then
        if self.schedule is not None:  # the state may be one of before the schedule's last step, or of no schedule
            self.schedule.step()

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute and check the loss and the gradients of all groups; no parameter moves yet.

        Subclasses extend it to add what their `advance` needs (see `GroupInputs`).
        """
        loss = self.run(closure)
        return Evaluation(loss, self.collect_gradients())

    def run(self, closure: Callable[[], Any] | None, where: str = "") -> Any:
        """Call the closure and return its loss, None without a closure; ``where`` ends the error message."""
        if closure is None:
            if self.needs_closure:
                raise ValueError(f"{type(self).__name__}.step needs a closure that re-evaluates the loss, got None")
            return None
        loss = self.call(closure, again=self.evaluates_again or bool(where))
        if loss is None and self.reads_loss:
            raise ValueError(f"the closure of {type(self).__name__} must return the mean loss, got None")
        if not torch.compiler.is_compiling() and not is_finite(loss):
            raise FloatingPointError(f"the closure returned a loss that is not finite{where}: {loss}")
        return loss

    def call(self, closure: Callable[[], Any], again: bool = True) -> Any:
        """The closure's loss; where it is evaluated ``again``, gradients of before go first: it may not clear them."""
        if again:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        with torch.enable_grad():
            return closure()

    def collect_gradients(self) -> list[GroupInputs]:
        """The sampled parameters of each group and their gradients, which are there, dense and finite."""
        return step.collect(self)

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Apply the rule to one group, in place."""
        params, grads, hyper = inputs.params, inputs.gradients, self.hyper(group)
        known = [self.state[p] for p in params]
        state = [
            [own[name] if name in own else self.state_of(group, p, name) for p, own in zip(params, known)]
            for name in self.state_names
        ]
        # One tensor at a time, or lists of tensors; the two have the same arithmetic.
        single = group["foreach"] is False
        for block in [slice(i, i + 1) for i in range(len(params))] if single else blocks(params):
            noise = self.noise_for(params[block], hyper)
            lists: list[Any] = [params[block], grads[block], noise, *(s[block] for s in state)]
            extra: dict[str, Any] = {key: values[block] for key, values in inputs.per_parameter.items()}
            if single:
                lists = [x if x is None else x[0] for x in lists]
                extra = {key: values[0] for key, values in extra.items()}
            self.rule(*lists, **extra, **hyper, ops=IN_PLACE if single else FOREACH)

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        """The rule's keyword arguments, read from the group at every step, since a scheduler may have changed them."""
        if keep_tensors or torch.compiler.is_compiling():
            return {name: group[name] for name in self.hyperparameters}
        return {name: as_number(group[name]) for name in self.hyperparameters}

    def noise_for(self, params: Sequence[Tensor], hyper: dict[str, Any]) -> list[Tensor] | None:
        """Standard normal noise for each parameter, or None at temperature 0, where nothing is drawn.

        A temperature that is a tensor (inside ``torch.compile``, or in ``higher``) cannot decide that: noise is drawn.
        """
        temperature = hyper["temperature"]
        drawn = isinstance(temperature, Tensor) or temperature != 0
        if not drawn:
            return None
        plain = type(self).noise_like is Sampler.noise_like and self.generator is None and self.parts is None
        alike = plain and len({(p.dtype, p.device) for p in params}) == 1
        if alike and waits_for_launches(params[0]) and not torch.compiler.is_compiling():
            # One launch in the place of one for each.
            flat = self.noise_like(params[0].new_empty(sum(p.numel() for p in params)))
            return [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in params]), params, strict=True)]
        return [self.noise_like(p) for p in params]

    def noise_like(self, p: Tensor) -> Tensor:
        """Standard normal noise of a parameter's shape, dtype and device, from the sampler's generator."""
        generator = self.generator if self.parts is None else self.parts.generator(p)
        if generator is None:
            if torch.compiler.is_compiling():
                return torch.randn_like(p)
            return self.reseeding.drawn(torch.randn_like, p, self.step_count)
        return torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)

    def state_of(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """The state tensor ``name`` of a parameter, made by `initial_state` at its first step."""
        state = self.state[p]
        if name not in state:
            state[name] = self.initial_state(group, p, name)
        return state[name]

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """A fresh state tensor: zeros, or for a momentum with ``momentum_init="normal"`` a draw from N(0, T)."""
        if name == "momentum" and group["momentum_init"] == "normal":
            temperature = as_number(self.hyper(group)["temperature"])  # that of this step, 0 while a cycle explores
            return self.noise_like(p).mul_(temperature**0.5) if temperature else torch.zeros_like(p)
        return torch.zeros_like(p)

    # ---------------------------------------------------------------- what the chain says of itself

    @property
    def step_count(self) -> int:
        """Steps taken so far; part of the state dict, so that burn-in survives a restart."""
        return self.param_groups[0]["step"]

    @property
    def is_sampling(self) -> bool:
        """Whether the last step reached a sample (False while a cyclical schedule explores)."""
        return True if self.schedule is None else self.schedule.is_sampling

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to; 0 without a cyclical schedule."""
        return 0 if self.schedule is None else self.schedule.cycle

    @torch.no_grad()
    def temperatures(self) -> list[dict[str, float]]:
        """Two estimates of the chain's temperature for each parameter group, which say whether it is at equilibrium.

        Kinetic: mean of r² over the coordinates; configurational: mean of (θ−μ)·∇Ũ(θ). Both equal T when the chain is
        at equilibrium. Call it between ``backward`` and ``step``, while the gradients belong to the parameters.

        Returns:
            A dict for each group, of the keys "kinetic" and "configurational"; nan where there is no momentum or no
            gradient.
        """
        return [self._temperatures_of(group) for group in self.param_groups]

    def _temperatures_of(self, group: dict[str, Any]) -> dict[str, float]:
        moved = [p for p in group["params"] if p.requires_grad and p.grad is not None]
        size = sum(p.numel() for p in moved)
        momenta = [self.state[p]["momentum"] for p in moved if "momentum" in self.state.get(p, {})]
        held = sum(r.numel() for r in momenta)  # one that has just joined has none yet
        kinetic = sum(sharding.total(_single(r).square()) for r in momenta) / held if held else float("nan")
        num_data, prior = as_number(group["num_data"]), as_number(group["prior_precision"])
        offsets = zip(moved, prior_mean.centred(group, moved), strict=True)
        virial = sum(sharding.total(_single(x) * (num_data * _single(p.grad) + prior * _single(x))) for p, x in offsets)
        return {"kinetic": kinetic, "configurational": virial / size if size else float("nan")}

    def __getstate__(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("generator", "schedule", "distributed", "replicated", "broken_off")
        }
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not hasattr(self, "first_shapes"):  # a copy; torch also calls it to load a state
            self._begin()


def arguments(local: dict[str, Any]) -> dict[str, Any]:
    """A constructor's ``locals()`` without what is no hyperparameter: the defaults of its parameter groups."""
    named = {k: v for k, v in local.items() if k not in ("self", "params", "generator", "options", "__class__")}
    own = type(local["self"]).__name__
    options = known_options(own, local.get("options", {}), named)
    return {**named, **momentum_as_decay(own, options, named)}


def _single(x: Tensor | None) -> Tensor:
    """In single precision at least: N·g of half precision would overflow."""
    assert x is not None
    return x.to(torch.promote_types(x.dtype, torch.float32))
