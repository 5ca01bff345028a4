"""Networks of a user's own: ``file.py:factory``, ``package.module:factory``, or a function given from Python."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.harness.run_store import fingerprint

Factory = Callable[..., nn.Module]

#: Examples on which a new network's outputs tell what its ``forward`` computes.
EXAMPLES = 8

_FORMS = "write file.py:factory or package.module:factory"
# Functions given from Python, by the name that stands for them in the settings of runs.
_GIVEN: dict[str, Factory] = {}
# Files that have been executed, by path: the bytes they had then, and their module.
_LOADED: dict[Path, tuple[bytes, ModuleType]] = {}


def is_own(model: str) -> bool:
    """Whether a model's name is that of a user's factory."""
    return ":" in model


def register(factory: Factory) -> str:
    """The name that stands for a function given from Python: ``python:`` and its own."""
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
    if not callable(factory := getattr(_module_of(model), name, None)):
        raise ValueError(f"model={model!r}: {place} has no function {name}")
    return factory


def _module_of(model: str) -> ModuleType:
    """The module that a model's name names."""
    place = model.rpartition(":")[0]
    is_file, path = place.endswith(".py"), Path(place).expanduser()
    if is_file and not path.is_file():
        raise FileNotFoundError(f"model={model!r}: there is no file {path}")
    if not is_file and not all(map(str.isidentifier, place.split("."))):
        raise ValueError(f"model={model!r}: {place!r} is no module; {_FORMS}")
    if not is_file and os.getcwd() not in sys.path:  # of a script Python puts the script's folder there alone
        sys.path.insert(0, os.getcwd())
    try:
        return _executed(path.resolve()) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not is_file and f"{place}.".startswith(f"{error.name}."):
            raise ValueError(f"model={model!r}: {error}; {_FORMS}") from error
        raise ValueError(f"model={model!r}: {place} imports what is not there: {error}") from error


def _executed(path: Path) -> ModuleType:
    """The module of a file, executed once, and again when the file has changed."""
    content = path.read_bytes()
    if path in _LOADED and _LOADED[path][0] == content:
        return _LOADED[path][1]
    name = f"own_model_{path.stem}_{hashlib.sha256(bytes(path) + content).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and inspect look a class's module up there
    try:
        exec(compile(content, path, "exec"), module.__dict__)  # what was hashed, not what a .pyc file remembers
    except BaseException:
        del sys.modules[name]
        raise
    _LOADED[path] = content, module
    return module


def code_of(model: str) -> str:
    """A fingerprint of the factory's code: of the file or module named, or of the function given from Python."""
    factory = _unwrapped(factory_of(model))
    if model in _GIVEN:
        code = _text_of(factory).encode()
    else:  # a module may have the factory from another one
        modules = (_module_of(model), sys.modules.get(getattr(factory, "__module__", "")))
        files = dict.fromkeys(file for module in modules if (file := getattr(module, "__file__", None)))
        code = b"".join(Path(file).read_bytes() for file in files)
    return hashlib.sha256(code).hexdigest()[:16]


def _unwrapped(factory: Any) -> Any:
    """The function or class behind what is called."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory if inspect.isroutine(factory) or inspect.isclass(factory) else type(factory)


def _text_of(given: Any) -> str:
    """The source of a function or class, or its compiled code where Python has no source of it."""
    try:
        return inspect.getsource(given)
    except (OSError, TypeError):  # defined at a prompt, or compiled
        members = vars(given).values() if inspect.isclass(given) else [given]
        codes = [_compiled(member.__code__) for member in members if inspect.isfunction(member)]
        return "\n".join([f"{given.__module__}.{given.__qualname__}", *codes])


def _compiled(code: CodeType) -> str:
    """What a function does, without where it was defined."""
    constants = [_compiled(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def fingerprint_of(build_network: Callable[[], nn.Module], inputs: Tensor) -> str:
    """Changes with what a network is when it is new: its modules, the names, shapes and values of its tensors, and what
    it computes, in evaluation mode, of examples in the shape of ``inputs``, whose values are of no matter.

    It is initialised with one and the same seed; the generators go on afterwards as if nothing had been drawn.
    """
    # cuDNN's convolutions round to ten bits on a GPU.
    with _seeded(), torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        network = build_network()
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        described = re.sub(r"0x[0-9a-fA-F]+", "", str(network))  # addresses in memory differ from process to process
        shape = (EXAMPLES, *inputs.shape[1:])
        indices = (torch.arange(math.prod(shape)) % 2).reshape(shape)  # of words: the first two
        examples = (torch.randn(shape) if inputs.is_floating_point() else indices).to(inputs)
        parts = [described, *tensors, fingerprint(tensors.values()), _rounded(network.eval()(examples))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _rounded(outputs: Tensor) -> str:
    """Norm and one projection of a network's outputs in four digits: the last ones depend on threads and machine."""
    flat = outputs.double().flatten().cpu()
    directions = torch.arange(1, len(flat) + 1, dtype=flat.dtype).cos()
    return f"{flat.norm():.4g} {flat @ directions:.4g}"


@contextmanager
def _seeded() -> Iterator[None]:
    """Within the context the generators of torch, NumPy and Python have seed 0; afterwards the state of before."""
    # NumPy's old generator is the one that a factory without a generator of its own draws from.
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


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
