"""Networks of a user's own: ``file.py:factory``, ``package.module:factory``, or a function given from Python."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

Factory = Callable[..., nn.Module]

# Functions given from Python, by the name that stands for them in the settings of runs.
_GIVEN: dict[str, Factory] = {}


def is_own(model: str) -> bool:
    """Whether a model's name is that of a user's factory."""
    return ":" in model


def register(factory: Factory) -> str:
    """The name of a function given from Python: its own, and a fingerprint of its code."""
    if not callable(factory):
        raise TypeError(f"model must be a function that returns a network, got {type(factory).__name__}")
    label = getattr(factory, "__qualname__", type(factory).__name__).replace("<", "").replace(">", "")
    name = f"python:{label.rpartition('.')[2]}"
    _GIVEN[name] = factory
    return name


def factory_of(model: str) -> Factory:
    """The function of that name.

    Raises:
        ValueError, FileNotFoundError: there is no such file, module or function.
    """
    if model in _GIVEN:
        return _GIVEN[model]
    place, _, name = model.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"model={model!r}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"model={model!r}: {error}; write file.py:factory or package.module:factory") from error
    if not callable(factory := getattr(module, name, None)):
        raise ValueError(f"model={model!r}: {place} has no function {name}")
    return factory


def digest_of(model: str) -> str:
    """Changes with the code of the factory's file, or of the function itself where it was given from Python."""
    factory = factory_of(model)
    try:
        code = inspect.getsource(factory) if model in _GIVEN else Path(inspect.getfile(factory)).read_text()
    except (OSError, TypeError):
        code = repr(getattr(getattr(factory, "__code__", None), "co_code", factory))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def build(model: str, input_shape: tuple[int, ...], outputs: int, **more: Any) -> nn.Module:
    """The network; a factory gets ``input_shape``, ``outputs`` and what else is known (``vocabulary``, of texts the
    number of indices) if it has arguments of these names.

    Raises:
        TypeError: what it returns is no network.
    """
    factory = factory_of(model)
    offered: dict[str, Any] = {"input_shape": input_shape, "outputs": outputs, **more}
    taken = {name: value for name, value in offered.items() if name in inspect.signature(factory).parameters}
    network = factory(**taken)
    if not isinstance(network, nn.Module):
        raise TypeError(f"model={model!r} must return a torch.nn.Module, got {type(network).__name__}")
    return network
