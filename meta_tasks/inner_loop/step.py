"""One step of the members of an inner loop; experimental: the same step in a form that a GPU can replay.

`update` is the step itself, on any tensors. `StaticStep` is the same step between fixed buffers: whatever changes from
step to step lies in a tensor that is written to before the call, nothing is read back to the host, and no Python branch
looks at a number that a tensor holds. Calling it again after its buffers were changed is therefore a step like any
other, which is what a CUDA graph needs: `CapturedStep` records the call once and replays it. The static form gives the
loop's numbers bit for bit on a CPU; the capture has never run on a GPU, and is used only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from meta_tasks.rules.base import MemberStep, SamplerRule, State
from meta_tasks.tasks.task import Task

__all__ = ["STEPPINGS", "CapturedStep", "StaticStep", "hessian_product", "stepping_for", "update"]

#: How the members' steps are taken: "loop", the default, new tensors at every step; "static", between fixed buffers;
#: "graph", experimental: the static form captured and replayed as a CUDA graph; "auto", experimental: "graph" on a CUDA
#: device if the rule can be captured, else "loop".
STEPPINGS = ("loop", "static", "graph", "auto")

# δ of the finite difference for Hessian-vector products: what `learned_samplers.KineticL2E` uses.
_PROBE = 1e-3
# Calls before the capture: libraries choose their algorithms and make their workspaces in the first ones.
_WARM_UP = 3


def hessian_product(task: Task, parameter: Tensor, indices: Tensor, gradient: Tensor, direction: Tensor) -> Tensor:
    """∂²L/∂θ²·w of each member (P, d) by a finite difference along w, with a root mean square displacement of δ.

    ``gradient`` is that at ``parameter`` on the same minibatch ``indices``.
    """
    length = direction.square().mean(-1, keepdim=True).sqrt()
    # A direction of zeros (an untrained network) has the product zero and must not divide by its length.
    delta = _PROBE / torch.where(length > 0, length, torch.inf)
    moved = task.loss_and_gradient(parameter + delta * direction, indices)[1]
    return torch.where(delta > 0, (moved - gradient) / delta, 0.0)


def update(
    task: Task,
    rule: SamplerRule,
    prepared: Any,
    parameter: Tensor,
    state: State,
    *,
    indices: Tensor,
    loss: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    step: Any,
) -> tuple[Tensor, State]:
    """New parameters and state of the members, from the minibatch's loss (P,) and its gradient (P, d).

    What is given may have been written into, see `SamplerRule.update`.
    """
    product = partial(hessian_product, task, parameter, indices, gradient) if rule.needs_hessian else None
    known = loss if rule.needs_loss else None
    at = MemberStep(parameter, gradient, noise, state, task.segments, task.hyperparameters, step, known, product)
    return rule.update(prepared, at)


def stepping_for(stepping: str, rule: SamplerRule, device: torch.device) -> str:
    """The stepping "loop", "static" or "graph" that one of `STEPPINGS` means for a rule on a device.

    Raises:
        ValueError: an unknown name, one that the rule cannot do, or a graph on another device than a GPU.
    """
    validation.one_of("stepping", stepping, STEPPINGS)
    if stepping == "auto":
        return "graph" if device.type == "cuda" and rule.capturable else "loop"
    if stepping != "loop" and not rule.capturable:
        raise ValueError(f"stepping={stepping!r}: the rule {rule.name!r} changes with the step on the host; use 'loop'")
    if stepping == "graph" and device.type != "cuda":
        raise ValueError(f"stepping='graph' needs a CUDA device, the task is on {device}")
    return stepping


class StaticStep:
    """A step of all members between fixed buffers; calling it takes one.

    Args:
        task, rule: of the members.
        parameter, state: whose shapes the buffers get.
        prepared: what `SamplerRule.prepare` gave.
        groups: of members that share minibatches and noise.
        draws_noise: whether the steps draw noise.
        curve_every: steps whose losses make a point of the curves; 0 records nothing.

    Attributes:
        indices, noise, prepared: read at a call; noise is None where none is drawn.
        parameter, state, step, failed_at, stretch: changed by a call: the members, steps taken so far (a whole number),
            the step at which a member failed (P,) (−1: it has not), and its mean loss in the stretch of the curve.
        gradient: written by a call, (P, d).
    """

    def __init__(
        self,
        task: Task,
        rule: SamplerRule,
        parameter: Tensor,
        state: State,
        prepared: Any,
        *,
        groups: int,
        draws_noise: bool,
        curve_every: int = 0,
    ) -> None:
        self.task, self.rule, self.curve_every = task, rule, curve_every
        device, members = parameter.device, len(parameter)
        batch_size = min(task.batch_size, task.hyperparameters.num_data)
        self.indices = torch.zeros(groups, batch_size, dtype=torch.int64, device=device)
        self.noise = torch.zeros_like(parameter) if draws_noise else None
        self.prepared = _copied(prepared)
        self.parameter, self.state = torch.zeros_like(parameter), tuple(torch.zeros_like(each) for each in state)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.failed_at = torch.full((members,), -1, dtype=torch.int64, device=device)
        self.stretch = torch.zeros(members, device=device)
        self.gradient = torch.zeros_like(parameter)

    def load(
        self, parameter: Tensor, state: State, prepared: Any, *, step: int, failed_at: Sequence[int], stretch: Tensor
    ) -> None:
        """Write members, meta-parameters and step number into the buffers."""
        pairs = [(self.parameter, parameter), *zip(self.state, state, strict=True), (self.stretch, stretch)]
        pairs += zip(_tensors(self.prepared), _tensors(prepared), strict=True)
        for buffer, value in pairs:
            buffer.copy_(value)
        self.step.fill_(step)
        self.failed_at.copy_(torch.tensor(failed_at))

    def draw(self, indices: Sequence[Tensor], streams: Sequence[torch.Generator]) -> None:
        """Write the next step's minibatch and noise into the buffers, a row of each for each group."""
        torch.stack(list(indices), out=self.indices)
        if self.noise is not None:
            for rows, stream in zip(self.noise.view(len(streams), -1, self.noise.shape[-1]), streams, strict=True):
                rows[0].normal_(generator=stream)
                rows[1:] = rows[0]

    def __call__(self) -> None:
        loss, gradient = self.task.loss_and_gradient(self.parameter, self.indices)
        parameter, state = update(
            self.task,
            self.rule,
            self.prepared,
            self.parameter,
            self.state,
            indices=self.indices,
            loss=loss,
            gradient=gradient,
            noise=self.noise,
            step=self.step,
        )
        self.step += 1
        self.gradient.copy_(gradient)
        if self.curve_every:
            self.stretch += loss / self.curve_every
        broken = ~torch.isfinite(torch.linalg.vector_norm(parameter, dim=-1) + loss)
        for buffer, value in ((self.parameter, parameter), *zip(self.state, state, strict=True)):
            buffer.copy_(value).masked_fill_(broken.view(-1, *[1] * (buffer.dim() - 1)), 0.0)
        self.failed_at.copy_(torch.where(broken & (self.failed_at < 0), self.step, self.failed_at))

    def rehearse(self, times: int) -> None:
        """Warm up: take some steps, which sets up whatever a first call does, and restore everything."""
        changed = (self.parameter, *self.state, self.step, self.failed_at, self.stretch, self.gradient)
        kept = [each.clone() for each in changed]
        for _ in range(times):
            self()
        for buffer, value in zip(changed, kept, strict=True):
            buffer.copy_(value)


class CapturedStep:
    """Experimental: a static step as a CUDA graph; calling it replays all that the step does on the GPU, at one launch.

    The buffers of ``static`` must hold valid members, indices and noise; they are as they were after the capture.
    """

    def __init__(self, static: StaticStep) -> None:
        self.static = static  # the graph reads and writes its buffers: they must live as long
        device = static.parameter.device
        with torch.cuda.device(device):
            # The warm-up must not run on the stream that is legacy-synchronised with all others.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                static.rehearse(_WARM_UP)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                static()

    def __call__(self) -> None:
        self.graph.replay()


def _tensors(nested: Any) -> Iterator[Tensor]:
    """The tensors in nested lists and tuples, in order."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, list | tuple):
        for each in nested:
            yield from _tensors(each)


def _copied(nested: Any) -> Any:
    """A copy of nested lists and tuples, with clones of their tensors."""
    if isinstance(nested, Tensor):
        return nested.clone()
    return type(nested)(_copied(each) for each in nested) if isinstance(nested, list | tuple) else nested
