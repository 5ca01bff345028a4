"""Noise of a sampler: where it comes from, how it is drawn, saved and put back, and a watch on repeated noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import waits_for_launches
from learned_samplers.base.warning import warn


class NoisyOptimizer(torch.optim.Optimizer):
    """An optimizer that draws standard normal noise from a generator whose state can be read and put back."""

    #: Source of the noise; None is torch's global generator.
    generator: torch.Generator | None = None
    #: Within a step of sharded parameters: this process's parts of them.
    parts: Any = None
    #: Watch on torch's global generator.
    reseeding: ReseedingWatch

    def noise_for(self, params: Sequence[Tensor], hyper: dict[str, Any]) -> list[Tensor] | None:
        """Standard normal noise for each parameter, or None at temperature 0, where nothing is drawn.

        A temperature that is a tensor (inside ``torch.compile``, or in ``higher``) cannot decide that: noise is drawn.
        """
        temperature = hyper["temperature"]
        if not isinstance(temperature, Tensor) and temperature == 0:
            return None
        ours = getattr(self.noise_like, "__func__", None) is NoisyOptimizer.noise_like and self.parts is None
        if not ours or torch.compiler.is_compiling():
            return [self.noise_like(p) for p in params]
        if waits_for_launches(params[0]) and len({(p.dtype, p.device) for p in params}) == 1:
            flat = self.noise_like(params[0].new_empty(sum(p.numel() for p in params)))
            return list(torch._C._nn.unflatten_dense_tensors(flat, list(params)))
        if self.generator is not None:
            return [self.noise_like(p) for p in params]
        return [self.noise_like(params[0]), *map(torch.randn_like, params[1:])]  # the watch looks once a step

    def noise_like(self, p: Tensor) -> Tensor:
        """Standard normal noise of a parameter's shape, dtype and device, from the sampler's generator."""
        generator = self.generator if self.parts is None else self.parts.generator(p)
        if generator is not None:
            return torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        if torch.compiler.is_compiling():
            return torch.randn_like(p)
        return self.reseeding.drawn(torch.randn_like, p, self.param_groups[0]["step"])

    # ---------------------------------------------------------------- states of the generators

    def rng_state(self) -> dict[str, Tensor]:
        """State of the sampler's own generator, or of the global ones of the devices that it draws on."""
        if self.generator is not None:
            return {"generator": self.generator.get_state()}
        return self.global_rng_state()

    def global_rng_state(self) -> dict[str, Tensor]:
        """State of torch's global generators, of the CPU and of every GPU that holds parameters."""
        devices = {p.device for group in self.param_groups for p in group["params"] if p.device.type == "cuda"}
        return {"cpu": torch.get_rng_state(), **{str(d): torch.cuda.get_rng_state(d) for d in devices}}

    def set_rng_state(self, states: dict[str, Tensor]) -> None:
        """Restore what `rng_state` or `global_rng_state` gave; warns if the GPU of a saved state is missing."""
        for name, state in states.items():
            state = state.to("cpu", torch.uint8)
            if name == "generator":
                assert self.generator is not None
                self.generator.set_state(state)
            elif name == "cpu":
                torch.set_rng_state(state)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(state, name)
            else:
                warn(f"the noise of {name} cannot be resumed: there is no GPU here")


class ReseedingWatch:
    """Watch for a generator that is set back again and again: warns where a step begins in a state of before.

    A function that calls ``torch.manual_seed`` once an epoch, for its validation or its batches, makes a chain repeat
    its noise; noise that comes back adds up, and the chain drifts far out of its law. States are kept at steps 1, 2, 4,
    8, … of those seen, of which one lies in the part that repeats. (The watch stands where noise is drawn: a closure of
    `HMC` draws within its evaluation.)
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self.count = 0
        self.step: int | None = None
        self.warned = False

    def drawn(self, draw: Callable[[Tensor], Tensor], like: Tensor, step: int) -> Tensor:
        """``draw(like)``; the generator's state before the first draw of each step counts."""
        if step == self.step or self.warned or (before := _state(like.device)) is None:
            return draw(like)
        self.step, state = step, hash(before)
        self.count += 1
        noise = draw(like)
        # A draw that leaves the state where it was was none: `check_sampler` gives numbers of its own.
        if state in self.kept and _state(like.device) != before:
            self.warned = True
            warn(
                "torch's random generator is in a state that it had at an earlier step: something sets it back "
                "(torch.manual_seed in a function that validates or makes batches?), and the chain's noise repeats. A "
                "chain with such noise does not sample its law. Give the sampler a generator of its own: "
                "generator=torch.Generator().manual_seed(0)"
            )
        elif self.count & (self.count - 1) == 0:
            self.kept.add(state)
        return noise


def _state(device: torch.device) -> bytes | None:
    """State of the default generator of a device; None where it cannot be had for nothing."""
    if device.type == "cpu":
        return torch.default_generator.get_state().numpy().tobytes()
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index].get_state().numpy().tobytes()
    return None
