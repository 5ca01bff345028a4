"""One chain held by several processes: the same noise everywhere, and an error when the copies drift apart.

Under `torch.nn.parallel.DistributedDataParallel` every process has a copy of the parameters and all get the same
averaged gradient, so that an optimizer keeps the copies equal. A sampler also draws noise. From torch's global
generator each process draws its own: the copies drift apart without a word, and even with equal seeds they do so as
soon as dropout or a shorter last batch uses the generator on one of them. So a replicated chain draws from a private
generator that begins alike in all processes, is saved with the state, and serves nothing else; and every `CHECK_EVERY`
steps the copies are compared.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learned_samplers.base import sharding
from learned_samplers.base.norms import norms
from learned_samplers.base.protocol import Chain

#: Steps between two comparisons of the copies; the first is before the first step.
CHECK_EVERY = 100
# Copies that draw other noise differ by far more; equal hardware gives no difference at all.
_TOLERANCE = 1e-5
_BEFORE = "before the first step; load the same weights in every process"
_MOVED = "something else than the sampler moved one of them"


def in_process_group() -> bool:
    """Return whether this process works with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def keep_together(sampler: Chain) -> None:
    """Before a step in a process group: at the first one find out whether the chain is replicated, later compare.

    Raises:
        RuntimeError: the copies have drifted apart, or the chain turns out to be replicated after its first step.
    """
    if not in_process_group():
        return
    if sampler.replicated is False:
        _refuse_late(sampler)
        return
    params = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad]
    if sampler.agreed:
        if sampler.step_count % CHECK_EVERY == 0:
            _compare_all(sampler, params, f"after {sampler.step_count} steps; {_MOVED}")
    elif sampler.mesh is not None:
        _compare_all(sampler, params, _BEFORE)
        for axis in range(sampler.mesh.ndim):
            group = sampler.mesh.get_group(axis)
            sampler.generator.set_state(_from_first(sampler.generator.get_state(), sampler.mesh.device_type, group))
        sampler.replicated = sampler.agreed = True
    elif are_replicas(sampler.distributed, params):
        _agree(sampler, params)
        sampler.replicated = sampler.agreed = True
    else:
        sampler.replicated = False


def _refuse_late(sampler: Chain) -> None:
    """Raise RuntimeError where a `DistributedDataParallel` module was made after a chain's first step.

    Looked for before steps 2, 3, 5, 9, 17, …: it takes some milliseconds.
    """
    taken = sampler.step_count
    if taken & (taken - 1) or sampler.distributed != "auto":
        return
    if are_replicas("auto", [p for group in sampler.param_groups for p in group["params"]]):
        raise RuntimeError(
            f"a DistributedDataParallel module holds parameters of this {type(sampler).__name__}, and was made after "
            "the chain's first step, when each process began to draw noise of its own: make it before, or give "
            "distributed='replicated' or 'independent'"
        )


def are_replicas(mode: str, params: list[Tensor]) -> bool:
    """Return whether the processes hold copies of one chain, for ``distributed=mode``; no message is sent.

    "auto" looks for a living `DistributedDataParallel` module that has one of the parameters.

    Raises:
        RuntimeError: it cannot look, because of ``gc.freeze()``.
    """
    if mode != "auto":
        return mode == "replicated"
    wanted = {id(p) for p in params}
    # By the type: isinstance would ask the objects themselves, among them lazy ones.
    modules = (x for x in gc.get_objects() if issubclass(type(x), torch.nn.parallel.DistributedDataParallel))
    replicated = any(id(p) in wanted for module in modules for p in module.parameters())
    if not replicated and gc.get_freeze_count():
        raise RuntimeError(
            "after gc.freeze() nobody can see whether DistributedDataParallel holds the parameters of this sampler: "
            "give it distributed='replicated' or 'independent'"
        )
    return replicated


def writes(sampler: torch.optim.Optimizer) -> bool:
    """Return whether this process is the one that writes the samples of the chain it takes part in."""
    if not in_process_group():
        return True
    mesh = getattr(sampler, "mesh", None)
    if mesh is not None:
        return not any(mesh.get_coordinate())
    params = [p for group in sampler.param_groups for p in group["params"] if p.requires_grad]
    return dist.get_rank() == 0 or not are_replicas(getattr(sampler, "distributed", "auto"), params)


def _agree(sampler: Chain, params: list[Tensor]) -> None:
    """Give the sampler the generator of its copies: that of process 0, or a new one with a seed of process 0's.

    Raises:
        ValueError: the sampler reads the loss, which differs from process to process, or its parameters lie on several
            devices. Nothing has changed then.
        RuntimeError: the processes are at other steps, hold other weights, or not all have a generator.
    """
    name = type(sampler).__name__
    if sampler.reads_loss:
        raise ValueError(
            f"{name} reads the loss, and each process has that of its own data: it cannot run as replicas. Give every "
            "process all data and a chain of its own, with distributed='independent' and without "
            "DistributedDataParallel"
        )
    devices = {p.device for p in params}
    if len(devices) > 1:
        raise ValueError(
            f"distributed='replicated' needs all parameters on one device, got {sorted(map(str, devices))}"
        )
    (device,) = devices
    most, least = (x.tolist() for x in _extremes([sampler.step_count, sampler.generator is not None], device))
    if most != least:
        raise RuntimeError(
            f"copies of one chain are at step {least[0]:g} in one process and at step {most[0]:g} in another, or some "
            "have a generator and others none: load the sampler's state, and give generator=, in every process"
        )
    _compare(params, _BEFORE)
    if sampler.generator is None:
        seed = torch.randint(2**62, ())
        sampler.generator = torch.Generator(device).manual_seed(int(_from_first(seed, device)))
    else:
        sampler.generator.set_state(_from_first(sampler.generator.get_state(), device))


def _from_first(value: Tensor, device: torch.device | str, group: Any = None) -> Tensor:
    """The tensor of the first process (of a group), on the CPU."""
    carrier = value.to(device) if "nccl" in dist.get_backend(group) else value.clone()
    dist.broadcast(carrier, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
    return carrier.cpu()


def _extremes(values: list[float], device: torch.device, group: Any = None) -> tuple[Tensor, Tensor]:
    """The largest and the smallest of each value over the processes (of a group)."""
    numbers = torch.tensor(values, dtype=torch.float64)
    both = torch.cat([numbers, -numbers])
    if "nccl" in dist.get_backend(group):
        both = both.to(device)
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    largest, smallest = both.cpu().chunk(2)
    return largest, -smallest


def _compare_all(sampler: Chain, params: list[Tensor], when: str) -> None:
    """Compare the copies: in all processes, or along each axis of a mesh those that it has copies of."""
    if sampler.mesh is None:
        _compare(params, when)
        return
    for axis in range(sampler.mesh.ndim):
        copied = [p for p in params if not sharding.is_sharded(p) or p.placements[axis].is_replicate()]  # type: ignore
        if copied:
            _compare([sharding.local(p) for p in copied], when, sampler.mesh.get_group(axis))


def _compare(params: list[Tensor], when: str, group: Any = None) -> None:
    largest, smallest = _extremes(norms([p.detach() for p in params]), params[0].device, group)
    apart = ~((largest - smallest) <= _TOLERANCE * largest)
    if apart.any():
        i = int(apart.nonzero()[0])
        raise RuntimeError(
            f"the copies of parameter number {i} of shape {tuple(params[i].shape)} have drifted apart (norms from "
            f"{smallest[i]:.9g} to {largest[i]:.9g}) {when}"
        )
