"""Differentiable twins of the samplers for ``higher``: the same rules, out of place and on the autograd tape.

Importing `learned_samplers` registers them, so that ``higher.innerloop_ctx(model, sampler)`` works and gradients flow
through the chain to initial parameters, to hyperparameters given as ``override={"lr": [tensor]}``, and to the data.
"""

from __future__ import annotations

from typing import Any

import higher
import torch

from .cyclical import CyclicalSGMCMC
from .kinetic_l2e import KineticL2E
from .l2e import L2E
from .precond_l2e import PrecondL2E
from .psgld import PSGLD
from .sampler import Sampler
from .sghmc import SGHMC
from .sgld import SGLD
from .sgnht import SGNHT


class DifferentiableSampler(higher.optim.DifferentiableOptimizer):
    """Runs a sampler's pure rule on the autograd tape; the noise comes from the same generator as the sampler's own."""

    def __init__(self, other: Sampler, *args: Any, **kwargs: Any):
        if other.needs_closure:
            raise ValueError(f"{type(other).__name__} needs a closure at each step, which higher does not give")
        super().__init__(other, *args, **kwargs)
        self._sampler = other

    def _update(self, grouped_grads: Any, **kwargs: Any) -> None:
        sampler = self._sampler
        for index, (group, grads) in enumerate(zip(self.param_groups, grouped_grads, strict=True)):
            hyper = sampler._hyper(group, keep_tensors=True)
            temperature = hyper["temperature"]
            draw = isinstance(temperature, torch.Tensor) or temperature != 0
            for i, (p, gradient) in enumerate(zip(group["params"], grads, strict=True)):
                if gradient is None:
                    continue
                state = self.state[index][i]
                for name in sampler.state_names:
                    if name not in state:
                        state[name] = sampler._initial_state(group, p.detach(), name)
                noise = sampler._noise(p.detach()) if draw else None
                before = [state[name] for name in sampler.state_names]
                group["params"][i], *after = sampler.rule(p, gradient, noise, *before, **hyper)
                state.update(zip(sampler.state_names, after, strict=True))
            group["step"] += 1


for _sampler in (SGLD, PSGLD, SGHMC, SGNHT, CyclicalSGMCMC, L2E, KineticL2E, PrecondL2E):
    higher.register_optim(_sampler, DifferentiableSampler)
