"""One chain whose parameters are sharded over the processes of a device mesh (`fully_shard`, tensor parallelism).

A sharded parameter is a `DTensor`: each process holds a part of it. The update of most samplers acts on each weight by
itself, so that every process does it on its own part, a plain tensor that shares the parameter's memory; the state is
kept in DTensors of the parameter's layout, which is what ``torch.distributed.checkpoint`` saves and loads. Only what
belongs to the chain as a whole is exchanged: whether everything is finite, and the statistics of whole tensors.

Noise: one private generator is the same in all processes and gives one seed a step; the noise of a part is drawn from
a generator seeded by that, the parameter's number, and the part's number on the mesh. So parts are independent, copies
of one part are equal, and the chain's only random state is the same everywhere. (On a CPU torch takes 32 bits of a
seed: two of a million steps may well share their noise, which no average sees.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.guards.precision import has_master, put_in_place, swap_out
from learned_samplers.base.protocol import Chain
from learned_samplers.base.segments import Segments
from learned_samplers.base.sharding import is_sharded, local, placements, summed


def mesh_of(sampler: Chain, listed: Sequence[Any]) -> Any:
    """The device mesh of a sampler that gets a new group of tensors or (name, tensor) pairs, None without DTensors.

    Raises:
        TypeError: the sampler cannot have sharded parameters.
        ValueError: they do not lie on one mesh, or in a way that cannot be sampled.
    """
    mesh = sampler.mesh
    for i, entry in enumerate(listed):
        name, p = entry if isinstance(entry, tuple) else (f"params[{i}]", entry)
        if not is_sharded(p):
            continue
        class_name, parameter = type(sampler).__name__, f"parameter {name!r} is a DTensor"
        if reason := sampler.not_sharded:
            raise TypeError(f"{class_name} cannot sample sharded parameters ({parameter}): {reason}")
        if sampler.distributed == "independent":
            raise ValueError(f"distributed='independent': {parameter}, whose parts belong to one chain")
        if mesh is None and sampler.param_groups:
            raise ValueError(f"{parameter}, and those of the first group are not: give sharded parameters first")
        if mesh is not None and p.device_mesh != mesh:
            raise ValueError(f"{parameter} on another device mesh ({p.device_mesh}) than those before ({mesh})")
        if not all(placement.is_shard() or placement.is_replicate() for placement in p.placements):
            raise ValueError(f"{parameter} of placements {p.placements}; each must be Shard or Replicate")
        mesh = p.device_mesh
    return mesh


class LocalParts:
    """This process's parts of a sampler's parameters during one step: their noise, and the tensors they belong to."""

    def __init__(self, seed: int, owners: dict[Tensor, Tensor], mesh: Any):
        self.seed, self.owners = seed, owners
        self._numbers = {part: i for i, part in enumerate(owners)}
        self._mesh, self._generators = mesh, dict[Tensor, torch.Generator]()

    def generator(self, part: Tensor) -> torch.Generator:
        """The source of a part's noise in this step."""
        if part not in self._generators:
            number = self._numbers[part] * self._mesh.size() + self._place(self.owners[part])
            self._generators[part] = torch.Generator(part.device).manual_seed(self.seed + number)
        return self._generators[part]

    def _place(self, p: Any) -> int:
        """Number of the part on the mesh; copies of one part have the same."""
        place = 0
        if is_sharded(p):
            for axis, placement in enumerate(p.placements):
                if not placement.is_replicate():
                    place = place * self._mesh.size(axis) + self._mesh.get_local_rank(axis)
        return place

    def segments(self, part: Tensor) -> Segments:
        """Where the whole tensor's statistics come from."""
        owner = self.owners[part]
        return ShardSegment(owner) if is_sharded(owner) else Segments((part.numel(),))


@contextmanager
def on_parts(sampler: Chain, evaluation: Any = None) -> Iterator[None]:
    """Within it a sampler's groups, inputs and state are this process's parts; new state becomes DTensors after it."""
    state, before = sampler.state, sampler.generator.get_state()
    kept = [(group, group["params"], group["prior_mean"]) for group in sampler.param_groups]
    parts = {p: local(p) for _, params, _ in kept for p in params}
    owners = {part: p for p, part in parts.items()}
    seed = int(torch.randint(2**62, (), generator=sampler.generator, device=sampler.generator.device))
    try:
        sampler.parts = LocalParts(seed, owners, sampler.mesh)
        before_step = {parts[p]: {name: local(x) for name, x in tensors.items()} for p, tensors in state.items()}
        sampler.state = defaultdict(dict, {part: dict(tensors) for part, tensors in before_step.items()})
        for group, params, means in kept:
            group["params"] = [parts[p] for p in params]
            group["prior_mean"] = means if means is None else [local(mean) for mean in means]
        for inputs in evaluation.groups if evaluation is not None else ():
            inputs.gradients = [_gradient(g, p) for g, p in zip(inputs.gradients, inputs.params, strict=True)]
            inputs.params = [parts[p] for p in inputs.params]
        yield
        for part, tensors in sampler.state.items():
            p = owners[part]
            for name, x in tensors.items():  # in one order everywhere
                if x is not before_step.get(part, {}).get(name):  # new, or another tensor than before
                    state[p][name] = _like_parameter(x, p) if is_sharded(p) else x
    except BaseException:
        sampler.generator.set_state(before)
        raise
    finally:
        for group, params, means in kept:
            group["params"], group["prior_mean"] = params, means
        sampler.state, sampler.parts = state, None


def _gradient(gradient: Any, p: Any) -> Tensor:
    if is_sharded(gradient) and gradient.placements != p.placements:
        gradient = gradient.redistribute(p.device_mesh, p.placements)
    return local(gradient)


def make_state(sampler: Chain) -> None:
    """Give a sampler that has taken no step its state, for a checkpoint to be read into."""
    with torch.no_grad(), on_parts(sampler):
        for group in sampler.param_groups:
            for p in group["params"]:
                if not sampler.parts.owners[p].requires_grad:
                    continue
                # As in a step: the state of half-precision parameters is made from their float32 copies.
                swapped: list[tuple[Tensor, Tensor]] = []
                if has_master(group, p):
                    put_in_place(sampler, p, swapped)
                try:
                    for name in sampler.saved_names(group, p):
                        sampler.state_of(group, p, name)
                finally:
                    swap_out(swapped)


def _like_parameter(x: Tensor, p: Any) -> Tensor:
    """The DTensor of a state whose part here is ``x``."""
    from torch.distributed.tensor import DTensor

    shape = (*x.shape[: x.dim() - p.dim()], *p.shape)
    stride = p.stride() if len(shape) == p.dim() else torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        x, p.device_mesh, placements(p, x.dim()), run_check=False, shape=torch.Size(shape), stride=stride
    )


class ShardSegment(Segments):
    """One tensor of which each process holds a part; its statistics are those of the whole.

    Args:
        p: the sharded parameter.
    """

    def __init__(self, p: Any):
        size = local(p).numel()
        for name, value in (
            ("lengths", (p.numel(),)),
            ("edges", (0, size)),
            ("total", size),
            ("staying", {}),
            ("_owner", p),
        ):
            object.__setattr__(self, name, value)

    def mean_square(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.from_norms(torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype))

    def from_norms(self, norms: Tensor) -> Tensor:
        return summed(norms.square(), self._owner) / self.lengths[0]  # type: ignore[attr-defined]

    def mean(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return summed(x.sum(-1, keepdim=True, dtype=dtype), self._owner) / self.lengths[0]  # type: ignore[attr-defined]

    def expand(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        return x
