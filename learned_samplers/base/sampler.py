"""The base class of the samplers: everything but the update rule.

A sampler is a ``torch.optim.Optimizer`` whose step draws the next state of a Markov chain. A subclass states its
update as one pure function (`Sampler.rule`) and names its hyperparameters and its state; validation, gradients,
noise, closures, the ``foreach`` path, and exact resumption live here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import saved_state as _saved_state
from learned_samplers.base import validation as check
from learned_samplers.base.operations import FOREACH, IN_PLACE, as_number, is_finite

# Parameters are updated in blocks of about this many coordinates, so that a block's noise is still in the processor's
# cache when it is added and never takes as much memory as the parameters do.
_BLOCK_ON_CPU = 1 << 18
_BLOCK_ON_GPU = 1 << 26


class Sampler(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` that draws samples from a posterior.

    The target is p(θ|D)^(1/T) ∝ exp(−U(θ)/T) with U(θ) = −Σₙ log p(yₙ|xₙ, θ) + ½ λ‖θ‖². The user's loss is the *mean*
    negative log-likelihood of a minibatch, so that ``p.grad`` = g and ∇Ũ = N·g + λθ.

    Subclasses set `badge`, `state_names`, `hyperparameters` and `rule`.
    """

    #: What a test has shown of the invariant law: ``"exact"``, ``"O(h)"`` or ``"heuristic"``.
    badge: ClassVar[str]
    #: Per-coordinate state tensors, in the order in which `rule` takes and returns them.
    state_names: ClassVar[tuple[str, ...]] = ()
    #: Keys of the parameter group that `rule` takes as keyword arguments.
    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "prior_precision")
    #: The update, a pure function: ``rule(parameter, gradient, noise, *state, **hyperparameters, ops=...)`` returns
    #: the new parameter followed by the new state. ``noise`` is standard normal, or None at temperature 0.
    rule: ClassVar[Callable[..., Any]]
    #: Keys of the parameter groups that choose the rule or its state: the same in every group, and in a loaded state.
    structural: ClassVar[tuple[str, ...]] = ()
    #: Whether `step` works only with a closure.
    needs_closure: ClassVar[bool] = False

    generator: torch.Generator | None = None

    def __init__(self, params: Any, defaults: dict[str, Any], *, generator: torch.Generator | None = None):
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        self._validate(defaults)
        super().__init__(params, defaults)
        self.generator = generator

    # ---------------------------------------------------------------- arguments

    def _validate(self, group: dict[str, Any]) -> None:
        """Check the hyperparameters of a group (or the defaults); subclasses add their own."""
        check.positive("lr", group["lr"])
        check.positive("num_data", group["num_data"])
        check.non_negative("temperature", group["temperature"])
        check.non_negative("prior_precision", group["prior_precision"])
        check.one_of("foreach", group["foreach"], (None, True, False))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`, after checking its hyperparameters and tensors."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        if "params" not in param_group:
            raise ValueError("param_group must have 'params'")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError("params must be in an order, got a set, in which a resumed chain could not find them again")
        listed = [params] if isinstance(params, Tensor) else list(params)
        if not listed:
            raise ValueError("params of a parameter group must not be empty")
        for i, entry in enumerate(listed):
            name, tensor = entry if isinstance(entry, tuple) else (f"params[{i}]", entry)
            check.parameter(f"parameter {name!r}", tensor)
        group = {**self.defaults, **param_group, "params": listed}
        self._validate(group)
        group.setdefault("step", self.param_groups[0]["step"] if self.param_groups else 0)
        super().add_param_group(group)

    def _name(self, group: dict[str, Any], index: int) -> str:
        if "param_names" in group:
            return repr(group["param_names"][index])
        return f"number {index} of shape {tuple(group['params'][index].shape)}"

    # ---------------------------------------------------------------- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the chain.

        Args:
            closure: clears the gradients, computes the mean minibatch loss, calls ``backward`` and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            ValueError: a parameter that requires a gradient has none.
            TypeError: a gradient is sparse.
            FloatingPointError: the closure's loss or a gradient is not finite. (Not inside ``torch.compile``, where
                nothing can be raised.) Nothing has changed after any of these.
        """
        loss = self._evaluate(closure)
        gradients = [self._gradients(group) for group in self.param_groups]
        self._check_finite(gradients)
        for group, (params, grads) in zip(self.param_groups, gradients, strict=True):
            self._advance(group, params, grads)
            group["step"] += 1
        return loss

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """The closure's loss, or None without one; nothing of the chain has changed if it raises."""
        if not torch.compiler.is_compiling():
            for group in self.param_groups:  # a scheduler, or a hand, may have written anything since the last step
                for name in ("lr", "temperature", "num_data"):
                    if not group[name] >= 0:
                        raise ValueError(f"{name} must not be negative, got {group[name]}")
        if closure is None:
            if self.needs_closure:
                raise ValueError(f"{type(self).__name__}.step needs a closure that re-evaluates the loss, got None")
            return None
        with torch.enable_grad():
            loss = closure()
        if not torch.compiler.is_compiling() and not is_finite(loss):
            raise FloatingPointError(f"the closure returned a loss that is not finite: {loss}")
        return loss

    def _gradients(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters of a group that are sampled, and their gradients; frozen parameters are left out."""
        params, grads = [], []
        for i, p in enumerate(group["params"]):
            if not p.requires_grad:
                continue
            if p.grad is None:
                raise ValueError(
                    f"parameter {self._name(group, i)} has no gradient: call loss.backward() before step(), "
                    "or set requires_grad=False to keep it fixed"
                )
            if p.grad.layout != torch.strided:
                raise TypeError(
                    f"the gradient of parameter {self._name(group, i)} is sparse ({p.grad.layout}); use dense gradients"
                )
            params.append(p)
            grads.append(p.grad)
        return params, grads

    def _check_finite(self, gradients: list[tuple[list[Tensor], list[Tensor]]]) -> None:
        if torch.compiler.is_compiling():
            return
        for _, grads in gradients:
            # One norm a tensor finds every NaN and infinity; coordinates are looked at only when a norm is suspicious.
            if not grads or all(map(is_finite, _stacked_by_device(torch._foreach_norm(grads)))):
                continue
            for group in self.param_groups:
                for i, p in enumerate(group["params"]):
                    if p.requires_grad and p.grad is not None and not p.grad.isfinite().all():
                        raise FloatingPointError(
                            f"the gradient of parameter {self._name(group, i)} is not finite; nothing was changed"
                        )

    def _advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """Apply the rule to one group, in place."""
        hyper, inputs = self._hyper(group), self._inputs(group)
        state = [[self._state(group, p, name) for p in params] for name in self.state_names]
        # "Nothing is drawn at temperature 0" is decided here; inside torch.compile a tensor cannot decide it.
        draw = isinstance(hyper["temperature"], Tensor) or hyper["temperature"] != 0
        if group["foreach"] is False:
            for p, g, *s in zip(params, grads, *state, strict=True):
                own = {key: value[p] for key, value in inputs.items()}
                self.rule(p, g, self._noise(p) if draw else None, *s, **own, **hyper, ops=IN_PLACE)
        else:
            for block in _blocks(params):
                noise = [self._noise(p) for p in params[block]] if draw else None
                extra = {key: [value[p] for p in params[block]] for key, value in inputs.items()}
                self.rule(params[block], grads[block], noise, *(s[block] for s in state), **extra, **hyper, ops=FOREACH)

    def _hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        """The rule's keyword arguments, read from the group at every step so that schedulers have their say."""
        if keep_tensors or torch.compiler.is_compiling():
            return {name: group[name] for name in self.hyperparameters}
        return {name: as_number(group[name]) for name in self.hyperparameters}

    def _inputs(self, group: dict[str, Any]) -> dict[str, dict[Tensor, Tensor]]:
        """Further tensors that the rule takes by keyword: name → parameter → tensor; none for most samplers."""
        return {}

    def _state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = self._initial_state(group, p, name)
        return state[name]

    def _initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "momentum" and group["momentum_init"] == "normal":
            temperature = as_number(group["temperature"])
            return self._noise(p).mul_(temperature**0.5) if temperature else torch.zeros_like(p)
        return torch.zeros_like(p)

    def _noise(self, p: Tensor) -> Tensor:
        if self.generator is None:
            return torch.randn_like(p)
        return torch.randn(p.shape, generator=self.generator, dtype=p.dtype, device=p.device)

    # ---------------------------------------------------------------- what the chain says of itself

    @property
    def step_count(self) -> int:
        """Steps taken so far; part of the state dict, so that burn-in survives a restart."""
        return self.param_groups[0]["step"]

    @property
    def is_sampling(self) -> bool:
        """Whether the state that the last step reached is worth keeping (a cyclical schedule says no at times)."""
        schedule = self.__dict__.get("_schedule")
        return True if schedule is None else schedule.is_sampling

    @property
    def cycle(self) -> int:
        """Index of the cycle that the last step belonged to; 0 without a cyclical schedule."""
        schedule = self.__dict__.get("_schedule")
        return 0 if schedule is None else schedule.cycle

    @torch.no_grad()
    def temperatures(self) -> list[dict[str, float]]:
        """Kinetic and configurational temperature of each parameter group, live health checks of the chain.

        Kinetic: mean of r² over the coordinates; configurational: mean of θ·∇Ũ(θ). Both equal T when the chain is at
        equilibrium. Call it between ``backward`` and ``step``, while the gradients belong to the parameters.

        Returns:
            One dict ``{"kinetic": …, "configurational": …}`` a group; nan where there is no momentum or no gradient.
        """
        reports = []
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            size = sum(p.numel() for p in moved)
            momenta = [self.state[p]["momentum"] for p in moved if "momentum" in self.state.get(p, {})]
            kinetic = sum(r.square().sum().item() for r in momenta) / size if momenta else float("nan")
            num_data, prior = as_number(group["num_data"]), as_number(group["prior_precision"])
            virial = sum((p * (num_data * p.grad + prior * p)).sum().item() for p in moved)
            reports.append({"kinetic": kinetic, "configurational": virial / size if size else float("nan")})
        return reports

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """As in `torch.optim.Optimizer`, with the sampler's name and the state of its random number generator.

        Without ``generator=`` that is torch's global generator (of the CPU and of every GPU that holds parameters),
        which `load_state_dict` sets. Loads with ``torch.load(..., weights_only=True)``.
        """
        saved = super().state_dict()
        saved["sampler"] = {"name": type(self).__name__, "rng": _saved_state.rng_state(self)}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit for bit: parameters loaded beside it, the chain continues with the same noise.

        Raises:
            ValueError: the state is of another sampler, of other shapes or groups, or was saved with ``generator=``
                where this one has none (or the other way round). Nothing has changed then.
        """
        _saved_state.check_saved(self, state_dict)
        before = _saved_state.rng_state(self)
        try:
            _saved_state.set_rng_state(self, state_dict["sampler"]["rng"])
            super().load_state_dict(state_dict)
        except BaseException:
            _saved_state.set_rng_state(self, before)
            raise

    def _state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return tuple(p.shape)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"generator": self.generator}
        if "_schedule" in self.__dict__:
            kept["_schedule"] = self.__dict__["_schedule"]
        return {**super().__getstate__(), **kept}


def arguments(local: dict[str, Any]) -> dict[str, Any]:
    """A constructor's ``locals()`` without what is no hyperparameter: the defaults of its parameter groups."""
    return {k: v for k, v in local.items() if k not in ("self", "params", "generator", "__class__")}


def _stacked_by_device(norms: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for norm in norms:
        by_kind.setdefault((norm.device, norm.dtype), []).append(norm)
    return [torch.stack(same) for same in by_kind.values()]


def _blocks(params: list[Tensor]) -> Iterator[slice]:
    """Consecutive runs of parameters of about one block's size each."""
    start = size = 0
    for i, p in enumerate(params):
        limit = _BLOCK_ON_CPU if p.device.type == "cpu" else _BLOCK_ON_GPU
        if size and size + p.numel() > limit:
            yield slice(start, i)
            start, size = i, 0
        size += p.numel()
    if start < len(params):
        yield slice(start, len(params))
