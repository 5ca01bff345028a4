"""Declarations of a sampler: the settings that all share, what it can do; and groups that are checked by them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch

from learned_samplers.base import prior as priors
from learned_samplers.base import prior_mean as prior_means
from learned_samplers.base import validation
from learned_samplers.base.group_keys import in_our_names, refuse_unknown
from learned_samplers.base.guards import precision, shards, side_by_side
from learned_samplers.base.prior_mean import PriorMean
from learned_samplers.base.protocol import Chain
from learned_samplers.base.saved_state import ResumableOptimizer
from learned_samplers.base.settings import Configurable, choice, data_count, learning_rate, setting

Precision = float | Mapping[str, float] | priors.Prior


class ConfiguredOptimizer(ResumableOptimizer, Configurable):
    """An optimizer whose keywords are declared settings; `Sampler` adds the step."""

    params: Any = setting(kw_only=False)
    lr: float = learning_rate(
        kw_only=False,
        doc="learning rate of ordinary training, dimensionless; a step moves the weights by √(lr/N) times a momentum.",
    )
    num_data: float = data_count(kw_only=False, doc="N, the number of training points.")
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
        "fan-in, or one that is sampled with the weights; a group may have its own.",
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
        default=None,
        check=validation.generator,
        of_sampler=True,
        doc="source of the noise; None is torch's global one.",
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
    #: Whether ``prior_precision`` may be a prior, and need not be one number.
    takes_priors: ClassVar[bool] = True
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
        #: The prior of groups that name none, None where it is one number; of each group the one that draws its λ.
        self.prior, self.group_priors = priors.prior_of(values["prior_precision"]), list[priors.Prior | None]()
        if self.prior is not None or priors.has_priors(params):
            params = priors.split(cast(Chain, self), params, self.prior, values.get("prior_mean"))
        if self.prior is not None:
            values["prior_precision"] = 0.0
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
        """Begin what guards remember of the steps so far; subclasses do."""

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
        validation.same_in_all_groups(cast(Chain, self), group, shared)

    def check_together(self, group: dict[str, Any]) -> None:
        """Check settings that must go with each other; each has been checked by itself."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`, after checking its settings and tensors.

        Under a prior it becomes several, one for each precision. An error leaves the groups as they were.
        """
        precision_or_prior = param_group.get("prior_precision", self.prior) if isinstance(param_group, dict) else None
        has_prior, chain = priors.prior_of(precision_or_prior) is not None, cast(Chain, self)
        mesh, counts = self.mesh, [(one, len(one.param_groups)) for one in (self, *chain.inner_optimizers())]
        try:
            for part in priors.split(chain, [param_group], self.prior) if has_prior else [param_group]:
                self.join(part)
        except BaseException:
            for optimizer, count in counts:
                del optimizer.param_groups[count:]
                if isinstance(optimizer, ConfiguredOptimizer):
                    optimizer.forget_groups(count)
            self.mesh = mesh
            raise

    def forget_groups(self, count: int) -> None:
        """Forget what is kept beside the groups of all but the first ``count``."""
        del self.group_priors[count:]
        if self.schedule is not None:
            self.schedule.left(count)

    def join(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with one precision; a sampler that drives another optimizer adds it there, too."""
        listed = validation.listed_parameters(param_group)
        others = [p for group in self.param_groups for p in group["params"]]
        validation.validate_parameters(listed, others)
        param_group = in_our_names(type(self).__name__, param_group, self.defaults, of_group=True)
        refuse_unknown(type(self).__name__, param_group, self.defaults, self.group_keys)
        group = {**self.defaults, **param_group, "params": listed}
        prior = group.pop(priors.DRAWN_BY, None)
        if self.param_groups and "prior_mean" not in param_group:
            prior_means.refuse_inherited(group["prior_mean"])
        self.check_group(group, new=True)
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in listed]
        chain = cast(Chain, self)  # `Sampler` has the rest
        mesh = shards.mesh_of(chain, listed)
        side_by_side.refuse(chain, listed)
        precision.validate(chain, group, tensors)
        dtypes = [precision.working_dtype(group, p) for p in tensors]
        group["prior_mean"] = prior_means.resolve(chain, group["prior_mean"], tensors, dtypes)
        group.setdefault("step", self.param_groups[0]["step"] if self.param_groups else 0)
        validation.integer("step", group["step"], least=0)
        super().add_param_group(group)
        self.group_priors.append(prior)
        self.mesh = mesh
        if self.schedule is not None:
            self.schedule.joined(self.param_groups[-1])

    def __getstate__(self) -> dict[str, Any]:
        names = ["generator", "schedule", "distributed", "replicated", "broken_off", "prior", "group_priors"]
        names += [name for name, one in self.declared.items() if one.of_sampler and hasattr(self, name)]
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}
