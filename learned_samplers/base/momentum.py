"""Samplers with a momentum: its friction, and how it begins."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.settings import choice, setting


class MomentumSampler(Sampler):
    """A sampler with a momentum r, of each parameter's shape, whose friction is the momentum decay a."""

    momentum_decay: float = setting(
        default=0.1,
        check=partial(validation.fraction, open_left=True),
        doc="a in (0, 1], dimensionless; 1 − a is SGD's momentum, and may be given as ``momentum=``.",
    )
    momentum_init: str = choice(
        "zero", "normal", default="zero", doc='"zero", or "normal" to draw the first momentum from N(0, T).'
    )

    state_names: ClassVar[tuple[str, ...]] = ("momentum",)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "momentum" and group["momentum_init"] == "normal":
            temperature = as_number(self.hyper(group)["temperature"])  # that of this step, 0 while a cycle explores
            return self.noise_like(p).mul_(temperature**0.5) if temperature else torch.zeros_like(p)
        return super().initial_state(group, p, name)
