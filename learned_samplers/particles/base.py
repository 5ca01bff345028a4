"""The base class of the particle samplers: roles of parameter groups, losses, gradients, and how a direction is taken.

A subclass states its directions (`ParticleSampler._trunk`, `ParticleSampler._head`) by the pure functions of
`directions`; everything is computed and checked before the first parameter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.guards import broken_off, hyperparameters, replicas, resumed
from learned_samplers.base.guards.precision import without_autocast
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import choice, data_count, learning_rate, setting
from learned_samplers.particles import base_optimizer as base_optimizers
from learned_samplers.particles.axis import validate_parameters
from learned_samplers.particles.equal import warn_of_equal
from learned_samplers.particles.gradients import all_finite, flat_buffers, task_gradients, validate_losses


class Role(NamedTuple):
    """The parameters of one role, the shared trunk or the head of one task, as flat buffers."""

    #: (M, d), the particles.
    points: Tensor
    #: (K, M, d) for the trunk, (1, M, d) for a head: ∇U of every target, prior included.
    gradients: Tensor
    #: The prior precision λ of each coordinate, (d,), or None where it is zero everywhere.
    prior: Tensor | None
    #: (K, M), the losses as the closure returned them.
    losses: Tensor
    num_data: float
    temperature: float
    #: None for the trunk, k for a head.
    task: int | None
    #: What the closure returned beside the losses, or None.
    features: Tensor | None
    #: The parameters, in the buffer's order.
    params: list[Tensor]

    def __str__(self) -> str:
        return "shared parameters" if self.task is None else f"parameters of task {self.task}"

    @property
    def loss_gradients(self) -> Tensor:
        """∇loss = (∇U − λθ)/N, of the gradients' shape."""
        gradients = self.gradients if self.prior is None else self.gradients - self.prior * self.points
        return gradients / self.num_data if self.num_data != 1 else gradients


def _maker(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} must make an optimizer from a list of parameter groups, such as torch.optim.Adam, got {value!r}"
        )


class ParticleSampler(Sampler):
    """A ``torch.optim.Optimizer`` over M particles: every parameter has a leading axis of length M.

    The direction φ of a particle maximises how fast its law approaches the targets exp(−Uₖ/T) with the energies
    Uₖ = N·lossₖ + ½λ‖θ‖². A particle moves by θ ← θ + (lr/N)·φ(θ); with ``base_optimizer`` that optimizer gets −φ/N as
    the gradient instead, and the group's lr.

    Groups name their role: ``{"params": trunk}`` (or with ``"shared": True``) is shared by all tasks, ``{"params":
    head, "task": k}`` belongs to loss k alone.

    Particles must start apart: those that are equal, as copies of one network are, stay equal for ever. The first step
    warns of them.
    """

    lr: float = learning_rate(
        kw_only=False,
        doc="learning rate, dimensionless; that of ``base_optimizer`` where one is given.",
    )
    num_data: float = data_count(
        default=1.0,
        kw_only=False,
        doc="N, by which the losses are multiplied: the number of training points where they are mean losses, 1 where "
        "they are energies.",
    )
    temperature: float = setting(
        default=1.0,
        check=validation.non_negative,
        shared=True,
        doc="T, the weight of the repulsion; at 0 there is none.",
    )
    prior_precision: float = setting(default=0.0, check=validation.non_negative, doc="λ of the prior N(0, I/λ).")
    task: int | None = setting(
        default=None,
        check=partial(validation.integer, least=0),
        optional=True,
        structural=True,
        doc="k in the group of a head, whose parameters belong to loss k alone; None for those that all tasks share.",
    )
    shared: bool | None = choice(None, True, False, default=None, doc="may be True in a group without ``task``.")
    base_optimizer: Any = setting(
        default=None,
        check=_maker,
        optional=True,
        of_sampler=True,
        doc="makes the optimizer that takes −φ/N as the gradient, from a list of groups with ``lr``, such as "
        "``torch.optim.Adam`` or ``functools.partial(torch.optim.SGD, momentum=0.9)``. Schedulers act on the sampler's "
        "lr. By default the particles move by the formula above.",
    )
    generator: torch.Generator | None = setting(
        default=None, check=validation.generator, of_sampler=True, doc="kept for resumption; nothing is drawn."
    )
    not_taken: ClassVar[tuple[str, ...]] = (
        "prior_mean",
        "foreach",
        "master_weights",
        "missing_gradient",
        "distributed",
    )

    badge = "heuristic"
    not_checked = "its particles are no chain"
    side_by_side = ()
    not_sharded = "particles are compared as whole sets of weights"
    needs_closure = True
    takes_prior_mean = False
    takes_priors = False
    #: Whether the closure returns (K, M) losses of K targets; one target has (M,).
    several_targets: ClassVar[bool] = True
    #: Whether particles that start equal stay so: nothing but where they are tells one from another.
    must_start_apart: ClassVar[bool] = True
    #: Weights of the targets at the last step: (K,), or (M, K) where each particle has its own.
    weights: Tensor | None = None
    #: Weights of the step under way, kept if it succeeds.
    _new_weights: Tensor | None = None

    @classmethod
    def named(cls, positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        values = {"prior_precision": 0.0, **super().named(positional, keywords)}
        # A prior by layer, or one that is sampled with the weights, is for chains.
        validation.non_negative("prior_precision", values["prior_precision"])
        return values

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        maker, self.base_optimizer, self.distributed = self.base_optimizer, None, "auto"
        super().start(params, {**defaults, "prior_mean": None})
        if maker is not None:
            self.base_optimizer = base_optimizers.make(maker, self.param_groups)

    # ---------------------------------------------------------------- arguments

    def check_together(self, group: dict[str, Any]) -> None:
        task, shared = group.get("task"), group["shared"]
        if task is not None and shared:
            raise ValueError(f"a parameter group is shared or belongs to a task, got shared=True and task={task}")
        if task is None and shared is False:
            raise ValueError("a parameter group with shared=False must name its task, got task=None")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in `torch.optim.Optimizer`; its tensors must have the particle axis of the others.

        Raises:
            ValueError: a parameter has no particle axis, or one of another length, or another dtype or device, or is
                there already. Nothing has changed then.
        """
        if isinstance(param_group, dict) and "params" in param_group and not isinstance(param_group["params"], set):
            params = param_group["params"]
            listed = [params] if isinstance(params, Tensor) else list(params)
            named = [entry if isinstance(entry, tuple) else (f"params[{i}]", entry) for i, entry in enumerate(listed)]
            validate_parameters(named, next(self._real(), None))
            param_group = {**param_group, "params": listed}
        super().add_param_group(param_group)

    def join(self, param_group: dict[str, Any]) -> None:
        super().join(param_group)
        if self.base_optimizer is not None:
            group = self.param_groups[-1]
            self.base_optimizer.add_param_group({"params": list(group["params"]), "lr": group["lr"]})

    @property
    def num_particles(self) -> int:
        """M, the length of every parameter's leading axis."""
        return next(self._real()).shape[0]

    def _real(self) -> Iterator[Tensor]:
        """The parameters that are particles: frozen ones of integer or complex type are left alone."""
        return (p for group in self.param_groups for p in group["params"] if p.is_floating_point())

    # ---------------------------------------------------------------- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all particles by one step.

        Args:
            closure: returns the losses of every particle, (M,) for one target or (K, M) for K, with their graph: it
                neither reduces them over particles nor calls ``backward``, and a particle's loss depends on that
                particle alone (no means across particles). A list of K losses (M,) does as well, and
                is faster where there are many heads. Where the kernel acts on features it returns the pair
                (losses, features), features being (M, ...).

        Returns:
            What the closure returned, detached.

        Raises:
            TypeError, ValueError: the losses are no tensor, have another shape (already reduced, say) or no graph; a
                parameter takes no part in them, or is one of a `DistributedDataParallel` module; the groups do not fit
                the targets.
            FloatingPointError: a loss, a gradient or a direction is not finite. Nothing has changed after any of
                these.
        """
        broken_off.refuse(self)
        if self.saved_weights is not None:
            resumed.other_weights(self)
        hyperparameters.check_changed(self)
        self._refuse_replicas()
        if closure is None:
            raise ValueError(f"{type(self).__name__}.step needs a closure that returns the losses, got None")
        with broken_off.attempt(self) as attempt:
            with torch.enable_grad():
                result = closure()
            self._new_weights = None
            with without_autocast(self.param_groups):  # the closure alone is the user's
                with torch.enable_grad():
                    roles = self._roles(result)
                moves = self._moves(roles)
                if self.must_start_apart and not self.step_count:
                    warn_of_equal(self.param_groups, roles, moves)
                returned = _detached(result)
                attempt.begins_update()
                self._move(moves)
            self._end()
        return returned

    def inner_optimizers(self) -> list[torch.optim.Optimizer]:
        return [] if self.base_optimizer is None else [self.base_optimizer]

    def _moves(self, roles: list[Role]) -> dict[Tensor, Tensor]:
        """φ of every parameter, all of them finite."""
        moves: dict[Tensor, Tensor] = {}
        for role in roles:
            direction = self._trunk(role) if role.task is None else self._head(role)
            if not all_finite(direction):
                raise FloatingPointError(f"the direction of the {role} is not finite; nothing was changed")
            pieces = direction.split([p[0].numel() for p in role.params], dim=1)
            moves |= {p: piece.view_as(p) for p, piece in zip(role.params, pieces, strict=True)}
        return moves

    def _refuse_replicas(self) -> None:
        """Before the first step: gradients are taken by ``torch.autograd.grad``, which no wrapper averages."""
        if self.step_count or not replicas.in_process_group():
            return
        if replicas.are_replicas("auto", [p for group in self.param_groups for p in group["params"]]):
            raise ValueError(
                f"{type(self).__name__} cannot move the parameters of a DistributedDataParallel module: it does not "
                "average their gradients, and the processes' particles would drift apart"
            )

    def _roles(self, result: Any) -> list[Role]:
        """The trunk and the heads with their gradients, from what the closure returned."""
        with_features = getattr(self, "kernel_on", None) == "features"
        if isinstance(result, tuple) and not (with_features and len(result) == 2):
            raise TypeError(
                f"the closure returned a tuple of {len(result)}: several losses go into a list or one tensor (K, M); "
                "(losses, features) is for kernel_on='features'"
            )
        losses, features = result if isinstance(result, tuple) else (result, None)
        losses = validate_losses(losses, self.num_particles, several=self.several_targets)
        tasks = self._tasks(len(losses))
        trunk, heads = self._named("task", None), {task: self._named("task", task) for task in tasks}
        if not trunk and not any(heads.values()):
            raise ValueError("every parameter is frozen: none has requires_grad=True")
        shared, of_heads = task_gradients(losses, trunk, heads, keep_graph=features is not None)
        first = self.param_groups[0]
        num_data, temperature = as_number(first["num_data"]), as_number(first["temperature"])
        stacked = torch.stack([loss.detach() for loss in losses])
        priors = {p: as_number(g["prior_precision"]) for g in self.param_groups for p in g["params"]}
        roles = []
        for task, named, gradients in [(None, trunk, shared), *((k, heads[k], of_heads.get(k, [])) for k in heads)]:
            if params := [p for _, p in named]:
                buffers = flat_buffers(params, gradients, num_data, [priors[p] for p in params])
                roles.append(Role(*buffers, stacked, num_data, temperature, task, features, params))
        return roles

    def _tasks(self, targets: int) -> list[int]:
        """The tasks that have heads; ValueError unless they fit the number of losses."""
        tasks = [group.get("task") for group in self.param_groups]
        if None not in tasks:
            raise ValueError("there is no group of shared parameters: every parameter group names a task")
        with_heads = sorted({task for task in tasks if task is not None})
        if with_heads and with_heads != list(range(targets)):
            raise ValueError(
                f"{targets} losses need a group for each of the tasks 0 to {targets - 1}, got groups for {with_heads}"
            )
        return with_heads

    def _named(self, key: str, value: Any) -> list[tuple[str, Tensor]]:
        """Names and parameters of the groups that have that value, without those that are frozen."""
        return [
            (self.name_of(group, i), p)
            for group in self.param_groups
            if group.get(key) == value
            for i, p in enumerate(group["params"])
            if p.requires_grad
        ]

    def _trunk(self, role: Role) -> Tensor:
        """φ of the shared parameters, (M, d)."""
        raise NotImplementedError

    def _head(self, role: Role) -> Tensor:
        """φ of one task's parameters, (M, d)."""
        raise NotImplementedError

    def _move(self, moves: dict[Tensor, Tensor]) -> None:
        """θ ← θ + (lr/N)·φ, or −φ/N to the base optimizer as the gradient."""
        if self.base_optimizer is None:
            for group in self.param_groups:
                rate = as_number(group["lr"]) / as_number(group["num_data"])
                moved = [p for p in group["params"] if p in moves]
                if moved:
                    torch._foreach_add_(moved, [moves[p] for p in moved], alpha=rate)
        else:
            base_optimizers.step(self.base_optimizer, self.param_groups, moves)
        for group in self.param_groups:
            group["step"] += 1

    def _end(self) -> None:
        """Called after a step that succeeded: keeps the weights that it computed."""
        self.weights = self._new_weights

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, as for every sampler, with that of the base optimizer."""
        saved = {**super().state_dict(), "of": self._identity()}
        if self.base_optimizer is not None:
            saved["base_optimizer"] = base_optimizers.state_dict(self.base_optimizer)
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state: with the parameters loaded too, the particles continue bit for bit.

        Raises:
            ValueError: as for `Sampler.load_state_dict`, or the state is of another kernel, other weights of the
                targets or other preferences, or its base optimizer is of another class or has other groups than this
                sampler's or numbers that are not finite, or only one of them has any. Nothing has changed then.
        """
        self.validate_saved(state_dict)
        theirs = state_dict.get("of", {})
        for name, ours in self._identity().items():
            if theirs.get(name, ours) != ours:
                raise ValueError(f"the state's {name} is {theirs[name]}, this sampler's is {ours}")
        base = base_optimizers.loadable(self, self.base_optimizer, state_dict.get("base_optimizer"))
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in ("base_optimizer", "of")})
        if self.base_optimizer is not None and base is not None:
            self.base_optimizer.load_state_dict(base)

    def _identity(self) -> dict[str, Any]:
        """Settings beside the groups that the particles' law depends on, those that can be written down."""
        values = {name: getattr(self, name) for name in self._choices()}
        named = {name: x.tolist() if isinstance(x, Tensor) else repr(x) for name, x in values.items()}
        return {name: x for name, x in named.items() if " at 0x" not in str(x)}  # a function has no lasting name

    def _choices(self) -> list[str]:
        """Names of the settings of the sampler as a whole that choose its update: a saved state names them."""
        names = [name for name, declared in self.declared.items() if declared.of_sampler]
        return [name for name in names if name not in ("base_optimizer", "generator")]

    def __getstate__(self) -> dict[str, Any]:
        names = ("base_optimizer", "weights", *self._choices())
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}


def _detached(result: Any) -> Any:
    if isinstance(result, tuple):  # a named one too, whose class does not take an iterable
        return tuple(map(_detached, result))
    return list(map(_detached, result)) if isinstance(result, list) else result.detach()
