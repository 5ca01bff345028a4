"""A step that fails half-way is either as if it had not been, or marks the chain, which then refuses to go on.

Whatever a step's closure and its preparations raise leaves the chain where it was. The update itself works in place,
and to undo it would take a copy of everything; so it is only noticed, by the versions that torch gives its tensors,
whether it had begun to write when it failed (out of memory, or interrupted). If it had, weights, momenta and noise no
longer belong together, and nothing but a saved state has the law: `Sampler.broken_off` says so until one is loaded.
An evaluation that moves the weights for a time sets the mark before, and takes it away when they are back: an
interruption may come anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, compress, repeat
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.protocol import Chain


def refuse(sampler: object) -> None:
    """Raise RuntimeError if an update was broken off in the middle and no state was loaded since."""
    if getattr(sampler, "broken_off", False):
        raise RuntimeError(
            f"a step of {type(sampler).__name__} was broken off in the middle, so that its weights and its state no "
            "longer belong together: load a saved state (load_state_dict) and the weights that were saved with it"
        )


#: Number of active ``TorchDispatchMode``s, in which some operations raise no version of what they write.
dispatch_modes = torch._C._len_torch_dispatch_stack


class Attempt:
    """A step under way: what it found, to be put back if it fails.

    Args:
        sampler: the one that steps; it is marked if its update had begun to write.

    Attributes:
        evaluation: what the step has gathered, once it has.
    """

    def __init__(self, sampler: Chain):
        self.sampler = sampler
        self.evaluation: Any = None
        self.states: list[Any] | None = None

    def begins_update(self) -> None:
        """Remember which tensors there are, and the version of each: all that is left is the update."""
        sampler = self.sampler
        all_states = [sampler.state, *[optimizer.state for optimizer in sampler.inner_optimizers()]]
        states = [(state, [*state], [*map(dict.copy, state.values())]) for state in all_states]
        self.params = [p for group in sampler.param_groups for p in group["params"]]
        self.versions = self._versions(states)
        self.states = states  # the last of it: Ctrl-C may come in between

    def _versions(self, states: list[Any]) -> list[int] | None:
        """Versions of all tensors that an update may write.

        None where they cannot be known: in other processes, of tensors made in ``torch.inference_mode``, and while a
        dispatch mode is active (``FlopCounterMode``, profilers), in which some operations raise no version.
        """
        if self.sampler.mesh is not None or dispatch_modes():
            return None
        kept = [x for *_, before in states for x in chain.from_iterable(map(dict.values, before))]
        tensors = compress(kept, map(isinstance, kept, repeat(Tensor)))
        try:
            return [x._version for x in (*self.params, *tensors)]
        except RuntimeError:
            return None

    def restored(self) -> bool:
        """Return whether all is as it was; state that was made or replaced since is taken away."""
        if self.sampler.broken_off:  # an evaluation has not put the weights back
            return False
        if getattr(self.evaluation, "undone", False):
            return True
        if self.states is not None:
            if self.versions is None or self.versions != self._versions(self.states):
                return False
            for state, keys, before in self.states:
                state.clear()
                state.update(zip(keys, before, strict=True))
        if self.evaluation is not None and self.evaluation.restore is not None:
            self.evaluation.restore()
        return True


@contextmanager
def attempt(sampler: Chain) -> Iterator[Attempt]:
    """A step: an error in it puts the generators back, and marks the chain if the update had begun to write."""
    noise = [sampler.rng_state()]
    if sampler.generator is not None:
        noise.append(sampler.global_rng_state())  # the closure's dropout draws on it
    step = Attempt(sampler)
    try:
        yield step
    except BaseException:
        if not step.restored():
            sampler.broken_off = True
        for states in noise:
            sampler.set_rng_state(states)
        raise
