"""Requirements on a model with adapters, and the names that ``peft`` gives the weights of its adapter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from learned_samplers.base.optional import require
from learned_samplers.posterior.network import network_of, parameters_of


def adapted(model: nn.Module) -> Any:
    """Return the ``PeftModel`` inside wrappers, once its one active adapter is seen by its forward.

    Raises:
        TypeError: no ``PeftModel``.
        ValueError: prompts instead of weights, several active adapters, or one that is merged or disabled; by name.
    """
    peft = require("peft", "adapters")
    network = network_of(model)
    if not isinstance(network, peft.PeftModel):
        raise TypeError(
            f"model must be a peft.PeftModel, with adapters of one type, got {type(network).__name__}: "
            "peft.get_peft_model(base, config) makes one"
        )
    config = network.active_peft_config
    if config.is_prompt_learning:
        raise ValueError(f"model: {config.peft_type.value} adds prompts, which have no weights in the layers to sample")
    layers = [(n, m) for n, m in network.named_modules() if isinstance(m, peft.tuners.tuners_utils.BaseTunerLayer)]
    for name, layer in layers:
        if len(layer.active_adapters) != 1:
            raise ValueError(
                f"model has the active adapters {layer.active_adapters} in {name!r}: choose the one whose posterior it "
                "is by model.set_adapter(name)"
            )
        if layer.merged:
            raise ValueError(
                f"model: {name!r} has merged its adapter into the base's weight, which hides every sample: call "
                "model.unmerge_adapter() first"
            )
        if layer.disable_adapters:
            raise ValueError(f"model: the adapter of {name!r} is disabled: call model.enable_adapter_layers() first")
    return network


def saved_names(model: Any, adapter: str | None = None) -> dict[str, str]:
    """Return the name in ``adapter_model.safetensors`` → the plain name in the model; None is the active adapter."""
    peft = require("peft", "adapters")
    saved = peft.get_peft_model_state_dict(
        model,
        state_dict=dict(model.named_parameters(remove_duplicate=False)),
        adapter_name=adapter or active(model),
        save_embedding_layers=False,
    )
    names = {id(tensor): name for name, tensor in parameters_of(model).items()}
    lost = next((name for name, tensor in saved.items() if id(tensor) not in names), None)
    if lost is not None:
        raise ValueError(f"model: {lost!r} of its adapter is computed when it is saved, and not a weight to sample")
    return {name: names[id(tensor)] for name, tensor in saved.items()}


def active(model: Any) -> str:
    """Return the name of the active adapter."""
    (name,) = model.active_adapters
    return str(name)


def refuse_base_weights(model: Any, sampled: Iterable[str]) -> None:
    """Raise ValueError if weights beside the adapter are sampled, which no adapter's folder can hold."""
    names = set(saved_names(model).values())
    strangers = [name for name in sampled if name not in names]
    if strangers:
        raise ValueError(
            f"{strangers[0]!r} is sampled and no part of the adapter {active(model)!r} ({len(strangers)} such): "
            "freeze the base by requires_grad_(False) before get_peft_model, name layers that are trained whole in "
            "modules_to_save, or keep samples of all weights in SampleCollection"
        )
