"""The network of a run, and its parameter groups."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from experiments.harness.runs import own_models
from experiments.harness.runs.own_models import is_own
from experiments.harness.runs.settings import Settings
from meta_tasks.datasets import ArrayData, ImageData, TokenData
from meta_tasks.networks import architectures, build_text, text_networks


def build_network(settings: Settings, data: ImageData) -> nn.Module:
    """A freshly initialised network on the device of the data."""
    shape, outputs = data.input_shape, data.num_classes
    if is_own(settings.model):
        words = {"vocabulary": len(data.vocabulary)} if isinstance(data, TokenData) else {}
        network = own_models.build(settings.model, shape, outputs, **words)
    elif isinstance(data, TokenData) != (settings.model in text_networks()):
        fitting = f"{', '.join(text_networks())}" if isinstance(data, TokenData) else "a network for images"
        raise ValueError(f"model={settings.model!r} does not read {data.name}: take {fitting}, or your own")
    elif isinstance(data, TokenData):
        network = build_text(settings.model, len(data.vocabulary), shape[0], outputs, **settings.network_options())
    elif not isinstance(data, ArrayData):
        network = architectures.build(settings.model, shape, outputs, **settings.network_options())
    elif settings.model == "mlp":
        network = architectures.mlp((1, 1, math.prod(shape)), outputs, **settings.network_options())  # type: ignore
    else:
        raise ValueError(f"model={settings.model!r} is for images, the inputs have shape {shape}: take mlp or your own")
    return network.to(data.train_x.device)


def own_network(settings: Settings, data: ImageData) -> dict[str, str]:
    """Fingerprints of the code of a user's own network, and of it when it is new; {} of other networks."""
    if not is_own(settings.model):
        return {}
    new = own_models.network_fingerprint(lambda: build_network(settings, data), data.train_x)
    return {"model_code": own_models.code_of(settings.model), "model_network": new}


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups, one for each part of the network, so that temperatures are reported part by part."""
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()
    for name, child in model.named_children():
        params = [p for p in child.parameters() if id(p) not in seen]
        seen.update(map(id, params))
        if params:
            label = f"{name}_{type(child).__name__}" if name.isdigit() else name
            groups.append({"params": params, "name": label})
    direct = [p for p in model.parameters() if id(p) not in seen]  # those that belong to the network itself
    return [*groups, {"params": direct, "name": "own"}] if direct else groups
