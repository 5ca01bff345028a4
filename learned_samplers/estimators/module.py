"""A fitted estimator as one `torch.nn.Module`, which torch.export and TorchScript take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.estimators.networks import SharedNoise
from learned_samplers.estimators.tables import Standardised, inputs_of
from learned_samplers.posterior import SampleCollection


def network_of_all(standardised: Standardised, samples: SampleCollection, head: nn.Module) -> nn.Sequential:
    """Return a module of rows (rows, features) that runs the networks of all samples side by side, then ``head``."""
    layers: list[nn.Module] = [_Inputs(standardised)]
    states = list(samples)
    for place, layer in enumerate(samples.model.children()):
        stacked = {name: torch.stack([s[f"{place}.{name}"] for s in states]) for name, _ in layer.named_parameters()}
        module = {nn.Linear: _Linear, SharedNoise: _Noise}.get(type(layer))
        layers.append(module(stacked) if module else layer)
    return nn.Sequential(*layers, head)


class _Constants(nn.Module):
    """A module of tensors that nothing changes, read as attributes."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        super().__init__()
        for name, values in tensors.items():
            self.register_buffer(name, torch.as_tensor(values).clone())


class _Inputs(_Constants):
    """`Standardised`: rows in the units of fit to inputs in single precision."""

    def __init__(self, standardised: Standardised) -> None:
        super().__init__({name: v for name, v in standardised._asdict().items() if v is not None})

    def forward(self, x: Tensor) -> Tensor:
        return inputs_of(x.double(), *self.buffers()).float()


class _Linear(_Constants):
    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT + self.bias[:, None]


class _Noise(_Constants):
    raw: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.raw[:, None].expand(-1, x.shape[1], -1)], 2)


class Normals(_Constants):
    """Outputs (samples, rows, 2·targets) to means and scales of the noise, (samples, rows, targets) in their units.

    Args:
        tensors: ``centre``, ``unit`` and ``floor``, (targets,): mean and standard deviation of the targets, and the
            smallest scale in units of the latter.
        one_target: whether the last axis is left out.
    """

    centre: Tensor
    unit: Tensor
    floor: Tensor

    def __init__(self, tensors: Mapping[str, Any], one_target: bool) -> None:
        super().__init__(tensors)
        self.one_target = one_target

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = x.double().chunk(2, -1)
        mean, scale = mean * self.unit + self.centre, (nn.functional.softplus(raw) + self.floor) * self.unit
        return (mean[..., 0], scale[..., 0]) if self.one_target else (mean, scale)


class Classes(nn.Module):
    """Logits to probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double().softmax(-1)
