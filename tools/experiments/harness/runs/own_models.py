"""Networks of a user's own: ``file.py:factory`` or ``package.module:factory``."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.run_store import fingerprint

Factory = Callable[..., nn.Module]

# Files that have been executed, by path: the bytes they had then, and their module.
_LOADED: dict[Path, tuple[bytes, ModuleType]] = {}


def is_own(model: str) -> bool:
    """True for the name of a user's factory."""
    return ":" in model


def factory_of(model: str) -> Factory:
    """The function of that name."""
    place, _, name = model.rpartition(":")
    if not callable(factory := getattr(_module_of(model), name, None)):
        raise ValueError(f"model={model!r}: {place} has no function {name}")
    return factory


def _module_of(model: str) -> ModuleType:
    """The module that a model's name names."""
    place = model.rpartition(":")[0]
    path = Path(place).expanduser()
    if place.endswith(".py"):
        if not path.is_file():
            raise FileNotFoundError(f"model={model!r}: there is no file {path}")
    elif os.getcwd() not in sys.path:  # of a script Python puts the script's folder there alone
        sys.path.insert(0, os.getcwd())
    try:
        return _executed(path.resolve()) if place.endswith(".py") else importlib.import_module(place)
    except (ModuleNotFoundError, ValueError) as error:
        raise ValueError(f"model={model!r}: {error}; write file.py:factory or package.module:factory") from error


def _executed(path: Path) -> ModuleType:
    """The module of a file, executed once, and again when the file has changed."""
    content = path.read_bytes()
    if path in _LOADED and _LOADED[path][0] == content:
        return _LOADED[path][1]
    name = f"own_model_{path.stem}_{hashlib.sha256(bytes(path) + content).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
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
    """A fingerprint of the code of the file or module named, and of the one that it may have the factory from."""
    factory: Any = factory_of(model)
    while isinstance(factory, functools.partial):
        factory = factory.func
    modules = (_module_of(model), sys.modules.get(getattr(factory, "__module__", "")))
    files = dict.fromkeys(file for module in modules if (file := getattr(module, "__file__", None)))
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def network_fingerprint(build_network: Callable[[], nn.Module], inputs: Tensor) -> str:
    """Changes with what a network is when it is new: its modules, the names, shapes and values of its tensors, and what
    it computes, in evaluation mode, of examples in the shape of ``inputs``, whose values are of no matter.

    It is initialised with one and the same seed; torch's generators go on afterwards as if nothing had been drawn.
    """
    # cuDNN's convolutions round to ten bits on a GPU.
    forked = torch.random.fork_rng(range(torch.cuda.device_count()))
    with forked, torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
        torch.manual_seed(0)
        network = build_network()
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        described = re.sub(r"0x[0-9a-fA-F]+", "", str(network))  # addresses in memory differ from process to process
        shape = (8, *inputs.shape[1:])
        indices = (torch.arange(math.prod(shape)) % 2).reshape(shape)  # of words: the first two
        examples = (torch.randn(shape) if inputs.is_floating_point() else indices).to(inputs)
        # Norm and a projection of the outputs in four digits: the last ones depend on threads and machine.
        flat = network.eval()(examples).double().flatten().cpu()
        outputs = f"{flat.norm():.4g} {flat @ torch.arange(1, len(flat) + 1, dtype=flat.dtype).cos():.4g}"
    parts = [described, *tensors, fingerprint(tensors.values()), outputs]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build(model: str, input_shape: tuple[int, ...], outputs: int, **more: Any) -> nn.Module:
    """The network; a factory gets ``input_shape``, ``outputs`` and what else is known (``vocabulary``, of texts the
    number of indices) if it has arguments of these names.
    """
    factory = factory_of(model)
    offered: dict[str, Any] = {"input_shape": input_shape, "outputs": outputs, **more}
    taken = {name: value for name, value in offered.items() if name in inspect.signature(factory).parameters}
    network = factory(**taken)
    if not isinstance(network, nn.Module):
        raise TypeError(f"model={model!r} must return a torch.nn.Module, got {type(network).__name__}")
    return network
