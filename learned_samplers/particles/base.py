"""The base class of the particle samplers: roles of parameter groups, losses, gradients, and how a direction is taken.

A subclass states its directions (`ParticleSampler._trunk`, `ParticleSampler._head`) by the pure functions of
`directions`; everything is computed and checked before the first parameter changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from learned_samplers.base import distributed, validation
from learned_samplers.base.operations import as_number, without_autocast
from learned_samplers.base.sampler import Sampler
from learned_samplers.particles import base_optimizer as base_optimizers
from learned_samplers.particles.axes import validate_axes
from learned_samplers.particles.base_optimizer import BaseOptimizer
from learned_samplers.particles.gradients import all_finite, gather, task_gradients, validate_losses, validate_names


class Part(NamedTuple):
    """One role's parameters as a flat buffer: the shared trunk, or the head of one task."""

    #: (M, d), the particles.
    points: Tensor
    #: (K, M, d) for the trunk, (1, M, d) for a head: ∇U of every target, prior included.
    gradients: Tensor
    #: The parts' prior precision λ as numbers that broadcast to the points, (d,), or None where it is zero everywhere.
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

    @property
    def loss_gradients(self) -> Tensor:
        """∇loss = (∇U − λθ)/N, of the gradients' shape."""
        gradients = self.gradients if self.prior is None else self.gradients - self.prior * self.points
        return gradients / self.num_data if self.num_data != 1 else gradients


class ParticleSampler(Sampler):
    """A ``torch.optim.Optimizer`` over M particles: every parameter has a leading axis of length M.

    The direction φ of a particle maximises how fast its law approaches the targets exp(−Uₖ/T) with the energies
    Uₖ = N·lossₖ + ½λ‖θ‖². A particle moves by θ ← θ + (lr/N)·φ(θ); with ``base_optimizer`` that optimizer gets −φ/N as
    the gradient instead, and the group's lr.

    Groups name their role: ``{"params": trunk}`` (or with ``"shared": True``) is shared by all tasks, ``{"params":
    head, "task": k}`` belongs to loss k alone.
    """

    badge = "heuristic"
    not_sharded = "particles are compared as whole sets of weights"
    structural = ("task",)
    group_options: ClassVar[dict[str, Any]] = {}
    needs_closure = True
    takes_prior_mean = False
    #: Whether the closure returns (K, M) losses of K targets; one target has (M,).
    several_targets: ClassVar[bool] = True
    #: Attributes that a copy keeps, beside those of the base class.
    _kept: ClassVar[tuple[str, ...]] = ("base_optimizer", "weights")

    #: The optimizer that takes the direction, or None.
    base_optimizer: torch.optim.Optimizer | None = None
    #: Weights of the targets at the last step: (K,), or (M, K) where each particle has its own.
    weights: Tensor | None = None
    #: Those of the step under way, kept if it succeeds.
    _new_weights: Tensor | None = None

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        base_optimizer: BaseOptimizer | None = None,
        generator: torch.Generator | None = None,
    ):
        if base_optimizer is not None and not callable(base_optimizer):
            raise TypeError(
                "base_optimizer must make an optimizer from a list of parameter groups, such as torch.optim.Adam, got "
                f"{base_optimizer!r} of type {type(base_optimizer).__name__}"
            )
        super().__init__(params, {"task": None, "shared": None, **defaults}, generator=generator)
        if base_optimizer is not None:
            self.base_optimizer = base_optimizers.made(base_optimizer, self.param_groups)

    # ---------------------------------------------------------------- arguments

    def _validate(self, group: dict[str, Any]) -> None:
        validation.non_negative("lr", group["lr"])
        validation.number_of_data(group["num_data"])
        validation.non_negative("temperature", group["temperature"])
        validation.non_negative("prior_precision", group["prior_precision"])
        validation.one_of("shared", group["shared"], (None, True, False))
        task, shared = group["task"], group["shared"]
        if task is not None:
            validation.whole("task", task, least=0)
            if shared:
                raise ValueError(f"a parameter group is shared or belongs to a task, got shared=True and task={task}")
            if not self.several_targets:
                raise ValueError(f"{type(self).__name__} has one target and no task groups, got task={task}")
        elif shared is False:
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
            validate_axes(listed, next((p for group in self.param_groups for p in group["params"]), None))
            param_group = {**param_group, "params": listed}
        super().add_param_group(param_group)
        if self.base_optimizer is not None:
            group = self.param_groups[-1]
            self.base_optimizer.add_param_group({"params": list(group["params"]), "lr": group["lr"]})

    @property
    def num_particles(self) -> int:
        """M, the length of every parameter's leading axis."""
        return self.param_groups[0]["params"][0].shape[0]

    # ---------------------------------------------------------------- the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all particles.

        Args:
            closure: returns the losses of every particle, (M,) for one target or (K, M) for K, with their graph: it
                neither reduces them over particles nor calls ``backward``. A list of K losses (M,) does as well, and
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
        self._validate_groups()
        self._refuse_replicas()
        if closure is None:
            raise ValueError(f"{type(self).__name__}.step needs a closure that returns the losses, got None")
        with torch.enable_grad():
            result = closure()
        with without_autocast(self.param_groups):  # the closure alone is the user's
            with torch.enable_grad():
                parts = self._parts(result)
            self._move(self._moves(parts))
        self._end(parts)
        return _detached(result)

    def _moves(self, parts: list[Part]) -> dict[Tensor, Tensor]:
        """φ of every parameter, all of them finite."""
        moves: dict[Tensor, Tensor] = {}
        self._begin(parts)
        for part in parts:
            direction = self._trunk(part) if part.task is None else self._head(part)
            if not all_finite(direction):
                raise FloatingPointError(f"the direction of the {_role(part)} is not finite; nothing was changed")
            pieces = direction.split([p[0].numel() for p in part.params], dim=1)
            for p, piece in zip(part.params, pieces, strict=True):
                moves[p] = piece.view_as(p)
        return moves

    def _refuse_replicas(self) -> None:
        """Before the first step: gradients are taken by ``torch.autograd.grad``, which no wrapper averages."""
        if self.step_count or not distributed.in_process_group():
            return
        params = [p for group in self.param_groups for p in group["params"]]
        if distributed.are_replicas("auto", params):
            raise ValueError(
                f"{type(self).__name__} cannot move the parameters of a DistributedDataParallel module: it does not "
                "average their gradients, and the processes' particles would drift apart"
            )

    def _validate_groups(self) -> None:
        self._validate_changed()
        first = self.param_groups[0]
        for group in self.param_groups:
            for name in ("num_data", "temperature"):
                if as_number(group[name]) != as_number(first[name]):
                    raise ValueError(
                        f"{name} must be the same in every parameter group, got {first[name]} and {group[name]}"
                    )

    def _parts(self, result: Any) -> list[Part]:
        losses, features = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        count = self.num_particles
        losses = validate_losses(losses, count, several=self.several_targets)
        tasks = sorted({group["task"] for group in self.param_groups if group["task"] is not None})
        validate_names(tasks, len(losses), any(group["task"] is None for group in self.param_groups))
        trunk, heads = self._named(None), {task: self._named(task) for task in tasks}
        if not trunk and not any(heads.values()):
            raise ValueError("every parameter is frozen: none has requires_grad=True")
        shared, own = task_gradients(losses, trunk, heads, keep_graph=features is not None)
        common = {
            "losses": torch.stack([loss.detach() for loss in losses]),
            "num_data": as_number(self.param_groups[0]["num_data"]),
            "temperature": as_number(self.param_groups[0]["temperature"]),
            "features": features,
        }
        roles = [(None, trunk, shared)] if trunk else []
        roles += [(task, named, own[task]) for task, named in heads.items() if named]
        priors = {p: as_number(g["prior_precision"]) for g in self.param_groups for p in g["params"]}
        parts = []
        for task, named, gradients in roles:
            params = [p for _, p in named]
            points, buffer, prior = gather(params, gradients, common["num_data"], [priors[p] for p in params])
            parts.append(Part(points, buffer, prior, task=task, params=params, **common))
        return parts

    def _named(self, task: int | None) -> list[tuple[str, Tensor]]:
        """Names and parameters of a task's head, or of the shared part (None), without those that are frozen."""
        return [
            (self.name_of(group, i), p)
            for group in self.param_groups
            if group["task"] == task
            for i, p in enumerate(group["params"])
            if p.requires_grad
        ]

    def _begin(self, parts: list[Part]) -> None:
        """Called before the directions of a step are computed; changes nothing that a state dict holds."""
        self._new_weights = None

    def _trunk(self, part: Part) -> Tensor:
        """φ of the shared parameters, (M, d)."""
        raise NotImplementedError

    def _head(self, part: Part) -> Tensor:
        """φ of one task's parameters, (M, d)."""
        raise NotImplementedError

    def _end(self, parts: list[Part]) -> None:
        """Called after a step that succeeded: keeps the weights that it computed."""
        self.weights = self._new_weights

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

    # ---------------------------------------------------------------- saving and resuming

    def state_dict(self) -> dict[str, Any]:
        """As for every sampler, with the state of the base optimizer."""
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
        theirs = state_dict.get("of", {})  # earlier states do not say
        for name, ours in self._identity().items():
            if theirs.get(name, ours) != ours:
                raise ValueError(f"the state's {name} is {theirs[name]}, this sampler's is {ours}")
        base = base_optimizers.loadable(self, self.base_optimizer, state_dict.get("base_optimizer"))
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in ("base_optimizer", "of")})
        if self.base_optimizer is not None and base is not None:
            self.base_optimizer.load_state_dict(base)

    def _identity(self) -> dict[str, Any]:
        """What the particles' law depends on beside the groups, as far as it can be written down."""
        own = {name: self.__dict__.get(name) for name in self._kept if name not in ParticleSampler._kept}
        named = {name: x.tolist() if isinstance(x, Tensor) else repr(x) for name, x in own.items()}
        return {name: x for name, x in named.items() if " at 0x" not in str(x)}  # a function has no lasting name

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in self._kept if name in self.__dict__}}


def _role(part: Part) -> str:
    return "shared parameters" if part.task is None else f"parameters of task {part.task}"


def _detached(result: Any) -> Any:
    if isinstance(result, tuple):  # a named one too, whose class does not take an iterable
        return tuple(map(_detached, result))
    return list(map(_detached, result)) if isinstance(result, list) else result.detach()
