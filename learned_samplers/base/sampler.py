"""The base class of the samplers: everything but the update rule.

A sampler is a ``torch.optim.Optimizer`` whose step draws the next state of a Markov chain. A subclass states its
update as one pure function (`Sampler.rule`) and declares its settings and the names of its state. `Sampler.step` reads
from top to bottom: what may refuse the step, gradients, and the rule within what must hold around it. A guard that does
not apply to a step is not called. Inside of ``torch.compile``, where nothing is raised or remembered, most are left
out; shards and half precision refuse to be compiled.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import prior as priors
from learned_samplers.base import prior_mean as prior_means
from learned_samplers.base import step, validation
from learned_samplers.base.group_keys import in_our_names, refuse_unknown
from learned_samplers.base.guards import (
    broken_off,
    hyperparameters,
    overflow,
    precision,
    replicas,
    resumed,
    schedule,
    shards,
    side_by_side,
)
from learned_samplers.base.guards.clipping import ClippingWatch
from learned_samplers.base.guards.outside import OutsideChanges
from learned_samplers.base.noise import ReseedingWatch
from learned_samplers.base.operations import FOREACH, IN_PLACE, is_finite
from learned_samplers.base.prior_mean import PriorMean
from learned_samplers.base.saved_state import ResumableOptimizer
from learned_samplers.base.settings import Configurable, choice, setting
from learned_samplers.base.step import Evaluation, GroupInputs, blocks
from learned_samplers.base.temperatures import temperatures_of

_PLAIN = nullcontext()
Precision = float | Mapping[str, float] | priors.Prior


def _generator(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator, got {type(value).__name__}")


class Sampler(ResumableOptimizer, Configurable):
    """A ``torch.optim.Optimizer`` whose steps draw samples from a Bayesian posterior.

    The target is p(θ|D)^(1/T) ∝ exp(−U(θ)/T) with U(θ) = −Σₙ log p(yₙ|xₙ, θ) + ½ λ‖θ − μ‖². The user's loss is the
    *mean* negative log-likelihood of a minibatch, so that ``p.grad`` = g and ∇Ũ = N·g + λ(θ − μ). `rule` is given θ − μ
    as its parameter and need not know of μ.

    A subclass sets `badge`, `state_names` and `rule`, and declares its own settings by
    `learned_samplers.base.settings.setting`; the rule is given those that it names. One that needs more than the
    gradients (a second evaluation, the energy) extends `evaluate`, which must leave the chain where it was.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
    """

    params: Any = setting(kw_only=False)
    lr: float = setting(
        check=validation.non_negative,
        check_new=validation.positive,
        kw_only=False,
        doc="learning rate of ordinary training, dimensionless; a step moves the weights by √(lr/N) times a momentum.",
    )
    num_data: float = setting(
        check=lambda name, value: validation.number_of_data(value),
        kw_only=False,
        shared=True,
        doc="N, the number of training points.",
    )
    temperature: float = setting(
        default=1.0,
        check=validation.non_negative,
        doc="T; 1 is the Bayes posterior, below 1 a cold posterior, 0 an optimizer.",
    )
    prior_precision: Precision = setting(
        default=0.0,
        check=validation.non_negative,
        doc="λ of the Gaussian prior N(μ, 1/λ), in 1/θ²; a weight decay of λ/N on the mean loss. A dict has one "
        'by name of the parameter ({"*.weight": 0.3, "*.bias": 1.0}); a prior of `learned_samplers.priors` one by '
        "fan-in, or one that is sampled with the weights.",
    )
    prior_mean: PriorMean = setting(
        default=None,
        doc='μ of that prior: None for zero, "initial" for the weights at construction, or one tensor a parameter'
        " (with several groups: in the groups' own dicts). It is saved with the state.",
    )
    foreach: bool | None = choice(
        None,
        True,
        False,
        default=None,
        doc="update in lists of tensors (None, True) or one at a time (False); the two agree bit for bit.",
    )
    generator: torch.Generator | None = setting(
        default=None, check=_generator, of_sampler=True, doc="source of the noise; None is torch's global generator."
    )
    master_weights: bool | None = choice(
        None,
        True,
        False,
        default=None,
        doc="keep a float32 copy of half-precision parameters in the state and do the update on it "
        "(`learned_samplers.base.guards.precision`). None does so for bfloat16 and float16; True too, and "
        "refuses wider parameters; False updates the parameters themselves, which breaks the law.",
    )
    missing_gradient: str = choice(
        "error",
        "skip",
        default="error",
        doc='what to do with a parameter that requires a gradient and has none: "error", or "skip", as torch does.',
    )
    distributed: str = choice(
        "auto",
        "replicated",
        "independent",
        default="auto",
        of_sampler=True,
        doc='in a process group: one chain for all ("replicated": equal noise, and drift raises) or one each '
        '("independent"). "auto" takes parameters of a `DistributedDataParallel` module for replicas.',
    )

    #: What a test has shown of the invariant law: ``"exact"``, ``"O(h)"`` or ``"heuristic"``.
    badge: ClassVar[str]
    #: Settings of a parameter group that `rule` takes as keyword arguments: by default those that it names.
    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "prior_precision")
    #: The update, a pure function: ``rule(parameter, gradient, noise, *state, **hyperparameters, ops=...)`` returns
    #: the new parameter followed by the new state. ``noise`` is standard normal, or None at temperature 0.
    rule: ClassVar[Callable[..., Any]]
    #: Whether `step` works only with a closure.
    needs_closure: ClassVar[bool] = False
    #: Whether the sampler takes ``prior_mean``.
    takes_prior_mean: ClassVar[bool] = True
    #: Keys that the sampler itself writes into its parameter groups.
    group_keys: ClassVar[tuple[str, ...]] = ()
    #: Whether the whole update is done in `advance`, so that it can work on float32 copies of the parameters.
    half_precision: ClassVar[bool] = True
    #: Whether the update divides by numbers that are 0 in float16.
    needs_master_in_float16: ClassVar[bool] = False
    #: Whether every step evaluates its closure more than once.
    evaluates_again: ClassVar[bool] = False
    #: Whether the update reads the loss beside the gradients, so that a closure must return it.
    reads_loss: ClassVar[bool] = False
    #: Why parameters must not be sharded over processes, "" where they may be: where the update acts on each weight by
    #: itself, or takes the statistics of whole tensors from `learned_samplers.base.guards.shards`.
    not_sharded: ClassVar[str] = "its update may need more of a tensor than one process has"
    #: How several networks may lie in the parameters (`Chains`) so that each moves as it would alone: "stacked" along a
    #: leading axis where the update acts on each weight by itself, or takes one loss a network; "separate", a tensor
    #: being of one network, where it takes each tensor by itself.
    side_by_side: ClassVar[tuple[str, ...]] = ("separate",)
    #: Why there is no gradient through a step, "" where there is: see `learned_samplers.differentiable`.
    not_differentiable: ClassVar[str] = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "rule" in vars(cls) and "hyperparameters" not in vars(cls):
            arguments = inspect.signature(cls.rule).parameters.values()
            if not any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
                names = [argument.name for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
                cls.hyperparameters = tuple(name for name in names if name in cls.declared or name == "step")
        names = [name for name, one in cls.declared.items() if one.structural]
        cls.structural = tuple(dict.fromkeys((*cls.structural, *names)))

    def __init__(self, params: Any, *positional: Any, **keywords: Any):
        keywords = in_our_names(type(self).__name__, keywords, self.declared)
        params, values = validation.in_order(params), self.named(positional, keywords)
        self.prior = priors.prior_of(values["prior_precision"])
        if self.prior is not None:
            priors.check_taken(self, self.prior)
            params, values["prior_precision"] = priors.split(params, self.prior), 0.0
        values = self.prepare(params, values)
        self.check_settings(values, of_sampler=True, new=True)
        for name, declared in self.declared.items():
            if declared.of_sampler:
                setattr(self, name, values.pop(name))
        self.start(values.pop("params", params), values)

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        """The constructor's arguments by name, once the sampler has filled in those that depend on others.

        ``values["params"]`` are the parameters, in an order.
        """
        return {**values, "params": params}

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        """Check the settings that groups take by default, and make the parameter groups."""
        self.check_group(defaults, new=True)
        self._begin()
        super().__init__(params, defaults)
        if self.generator is None and self.mesh is not None:
            self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))

    def _begin(self) -> None:
        """Begin what guards remember of the steps so far: it is not saved, and a copy of the sampler begins anew."""
        self.checked = hyperparameters.CheckedValues()
        #: Shape of the gradient and dtype of each parameter in its first step.
        self.first_shapes: dict[Tensor, tuple[torch.Size, torch.dtype]] = {}
        self.clipping, self.reseeding, self.outside = ClippingWatch(), ReseedingWatch(), OutsideChanges()

    # ---------------------------------------------------------------- settings of the groups

    def check_group(self, group: dict[str, Any], *, new: bool = False) -> None:
        """Check the settings of a group, at any time, or more strictly when it is ``new``.

        Raises:
            ValueError, TypeError: a setting is out of range or of a wrong type, does not go with another one, or is not
                that of the other groups where it must be.
        """
        self.check_settings(group, new=new)
        self.check_together(group)
        shared = [name for name, one in self.declared.items() if one.shared]
        validation.same_in_all_groups(self, group, shared)

    def check_together(self, group: dict[str, Any]) -> None:
        """Check settings that must go with each other; each has been checked by itself."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`, after checking its settings and tensors."""
        prior = getattr(self, "prior", None)
        if prior is not None and isinstance(param_group, dict) and "prior_precision" not in param_group:
            for part in priors.split([param_group], prior, all_parameters=False):
                self.add_param_group(part)
            return
        listed = validation.listed_parameters(param_group)
        others = [p for group in self.param_groups for p in group["params"]]
        validation.validate_parameters(listed, others)
        param_group = in_our_names(type(self).__name__, param_group, self.defaults, of_group=True)
        refuse_unknown(type(self).__name__, param_group, self.defaults, self.group_keys)
        group = {**self.defaults, **param_group, "params": listed}
        if self.param_groups and "prior_mean" not in param_group:
            prior_means.refuse_inherited(group["prior_mean"])
        self.check_group(group, new=True)
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in listed]
        mesh = shards.mesh_of(self, listed)
        side_by_side.refuse(self, listed)
        precision.validate(self, group, tensors)
        dtypes = [precision.working_dtype(group, p) for p in tensors]
        group["prior_mean"] = prior_means.resolve(self, group["prior_mean"], tensors, dtypes)
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
        if torch.compiler.is_compiling():
            return self._compiled_step(closure)
        self._refuse_or_warn()
        with broken_off.attempt(self) as attempt:
            evaluation = self.evaluate(closure)
            if evaluation.total_norm >= self.clipping.watched:
                self.clipping.look(self, evaluation)
            attempt.begins_update(evaluation)
            device = self.param_groups[0]["params"][0].device.type
            with (
                # the update is in the parameters' own precision
                precision.without_autocast(self.param_groups) if torch.is_autocast_enabled(device) else _PLAIN,
                # this process's parts take the place of the parameters
                shards.on_parts(self, evaluation) if self.mesh is not None else _PLAIN,
                # what the rule and the masters have written is undone if it is not finite
                overflow.undone(self, evaluation) if evaluation.large else _PLAIN,
                # float32 copies take the place of half-precision parameters
                precision.on_masters(self, evaluation) if evaluation.half_precision else _PLAIN,
                # coordinates in which the prior's mean is zero
                prior_means.centred_at_zero(self, evaluation) if evaluation.centred else _PLAIN,
            ):
                for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
                    self.advance(group, inputs)
            for group in self.param_groups:
                group["step"] += 1
            if self.prior is not None and self.prior.every and self.step_count % self.prior.every == 0:
                self.prior.draw(self)
            if self.outside.watching and not torch.compiler.is_compiling():
                self.outside.note(self)
        return evaluation.loss

    def _compiled_step(self, closure: Callable[[], Any] | None) -> Any:
        """A step inside of ``torch.compile``, where nothing can be raised by a value, remembered or undone."""
        if self.prior is not None and self.prior.every:
            raise NotImplementedError(f"a step that draws {self.prior!r} cannot be compiled: compile the network")
        evaluation = self.evaluate(closure)
        precision.refuse_compiled(evaluation)
        shards.refuse_compiled(self)
        with (
            precision.without_autocast(self.param_groups),
            prior_means.centred_at_zero(self, evaluation) if evaluation.centred else _PLAIN,
        ):
            for group, inputs in zip(self.param_groups, evaluation.groups, strict=True):
                self.advance(group, inputs)
        for group in self.param_groups:
            group["step"] += 1
        return evaluation.loss

    def _refuse_or_warn(self) -> None:
        """Call the guards that stand before a step and apply to this one; each file says what it guards against."""
        if self.broken_off:
            broken_off.refuse(self)
        last = self.checked.objects
        for number, group in enumerate(self.param_groups):
            now = (len(group), *map(group.get, self.defaults))
            if number >= len(last) or not all(map(operator.is_, now, last[number])):
                hyperparameters.check_changed(self)
                break
        if self.outside.watching and not torch.compiler.is_compiling():  # by frames, it is as if compiled here
            self.outside(self)
        if self.saved_weights is not None:
            resumed.other_weights(self)
        if self.schedule is not None or "sampling_temperature" in self.param_groups[0]:
            schedule.keep_step(self)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            replicas.keep_together(self)

    def _loaded(self) -> None:
        self.reseeding, self.outside = ReseedingWatch(), OutsideChanges()  # generator and weights may be put back
        if self.schedule is not None:  # the state may be one of before the schedule's last step, or of no schedule
            self.schedule.step()

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute and check the loss and the gradients of all groups; no parameter moves yet.

        Subclasses extend it to add what their `advance` needs (see `GroupInputs`).
        """
        loss = None if closure is None and not self.needs_closure else self.run(closure)
        return step.collect(self, loss)

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
        return step.collect(self).groups

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Apply the rule to one group, in place."""
        params, gradients, hyper = inputs.params, inputs.gradients, self.hyper(group)
        states = [self.state[p] for p in params]
        state = [
            [kept[name] if name in kept else self.state_of(group, p, name) for p, kept in zip(params, states)]
            for name in self.state_names
        ]
        # One tensor at a time, or lists of tensors; the two have the same arithmetic.
        single = group["foreach"] is False
        for block in [slice(i, i + 1) for i in range(len(params))] if single else blocks(params):
            noise = self.noise_for(params[block], hyper)
            lists: list[Any] = [params[block], gradients[block], noise, *(tensors[block] for tensors in state)]
            extra: dict[str, Any] = {key: values[block] for key, values in inputs.per_parameter.items()}
            if single:
                lists = [x if x is None else x[0] for x in lists]
                extra = {key: values[0] for key, values in extra.items()}
            self.rule(*lists, **extra, **hyper, ops=IN_PLACE if single else FOREACH)

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        """The rule's keyword arguments, read from the group at every step, since a scheduler may have changed them."""
        if keep_tensors or torch.compiler.is_compiling():
            return {name: group[name] for name in self.hyperparameters}
        values = [group[name] for name in self.hyperparameters]
        numbers = [value.item() if isinstance(value, Tensor) else value for value in values]
        return dict(zip(self.hyperparameters, numbers, strict=True))

    def inner_optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that a step of this one drives."""
        return []

    def state_of(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """The state tensor ``name`` of a parameter, made by `initial_state` at its first step."""
        state = self.state[p]
        if name not in state:
            state[name] = self.initial_state(group, p, name)
        return state[name]

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        """A fresh state tensor: zeros, unless a sampler says otherwise."""
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
        return [temperatures_of(self, group) for group in self.param_groups]

    def __getstate__(self) -> dict[str, Any]:
        names = ["generator", "schedule", "distributed", "replicated", "broken_off", "prior"]
        names += [name for name, one in self.declared.items() if one.of_sampler and hasattr(self, name)]
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not hasattr(self, "first_shapes"):  # a copy; torch also calls it to load a state
            self._begin()
