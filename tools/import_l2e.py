"""Convert the published L2E network, a pickled Haiku mapping, to this library's weight format.

    python tools/import_l2e.py FILE OUT.safetensors

FILE holds ``mlp/~/linear_0``, ``linear_1``, … → {"w": (in, out), "b": (out,)}; arrays may be numpy's or JAX's. Nothing
in it is run: names other than those of arrays are an error. Writes OUT and its card, for
``L2E(params, lr, num_data=50_000, network=OUT)``, the published sampler with the options of its code.

The authors state no licence for their weights, so the result is for your own use.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from experiments.harness.output import explained
from experiments.meta_training.array_pickle import as_array, load
from torch import nn

from learned_samplers.learned import weights
from learned_samplers.learned.features import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings

_LAYER = re.compile(r"((?:.{0,200}/)?)linear_(\d{1,9})")
_DEPTH = 4


@dataclass(frozen=True)
class Options:
    """Convert the published L2E network to this library's weight format."""

    # The pickle.
    file: Annotated[Path, tyro.conf.Positional]
    # The weight file to write, ending in .safetensors; its card is written beside it.
    out: Annotated[Path, tyro.conf.Positional]
    # Write over an existing file.
    overwrite: bool = False


def convert(file: Path) -> nn.Sequential:
    """The network in a pickle.

    Raises:
        FileNotFoundError, ValueError: the file cannot be read or holds no such network; the message says why.
    """
    found = list(_networks(load(file), _DEPTH, set()))
    if len(found) != 1:
        names = f" ({', '.join(reprlib.repr(prefix) for prefix, _ in found[:3])})" if found else ""
        raise ValueError(f"{file}: holds {len(found)} networks of layers linear_0, linear_1, …{names}; one is needed")
    ((prefix, numbered),) = found
    numbers = [number for number, _, _ in numbered]
    if numbers != list(range(len(numbers))):
        listed = reprlib.repr(numbers)
        raise ValueError(f"{file}: the layers of {prefix!r} are numbered {listed}, not from 0 without a gap")
    layers = [_layer(file, name, entry) for _, name, entry in numbered]
    size = FEATURE_SETS["paper"].size
    sizes = [layers[0].in_features, *(layer.out_features for layer in layers)]
    fits = all(layer.in_features == into for layer, into in zip(layers, sizes, strict=False))
    if not fits or (sizes[0], sizes[-1]) != (size, 2):
        shapes = reprlib.repr([tuple(layer.weight.T.shape) for layer in layers])
        raise ValueError(f"{file}: layers of shapes {shapes} are no network of {size} features and two outputs")
    return nn.Sequential(*[module for layer in layers for module in (layer, nn.ReLU())][:-1])


def _networks(content: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, list[tuple[int, str, Any]]]]:
    """What may be networks in ``content``: the prefix of the layers' names, and (number, name, entry) in order.

    ``seen`` are the dictionaries visited before, by identity: a small pickle may hold one of them many times.
    """
    if not isinstance(content, dict) or depth == 0 or id(content) in seen:
        return
    seen.add(id(content))
    networks: dict[str, list[tuple[int, str, Any]]] = {}
    for key, entry in content.items():
        if isinstance(key, str) and (match := _LAYER.fullmatch(key)):
            networks.setdefault(match[1], []).append((int(match[2]), key, entry))
    for prefix, layers in networks.items():
        yield prefix, sorted(layers, key=lambda layer: layer[0])
    for value in content.values():
        yield from _networks(value, depth - 1, seen)


def _layer(file: Path, name: str, entry: Any) -> nn.Linear:
    """A layer of w (in, out) and b (out,)."""
    parts = [as_array(entry.get(key)) for key in ("w", "b")] if isinstance(entry, dict) else [None]
    if any(part is None or part.dtype.kind != "f" for part in parts):
        raise ValueError(f"{file}: {name} must map w and b to arrays of floating-point numbers")
    weight, bias = (np.array(part, dtype=np.float64) for part in parts)
    if weight.ndim != 2 or bias.shape != weight.shape[1:]:
        raise ValueError(f"{file}: {name} has w of shape {weight.shape} and b of shape {bias.shape}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError(f"{file}: {name} has values that are not finite")
    layer = nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.T.copy()))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def card(name: str) -> dict[str, Any]:
    """What is known of the published weights, with the options that make `L2E` the published code."""
    tasks = "MNIST, Fashion-MNIST, EMNIST, BloodMNIST; 1-5 convolutions of 4, 8, 16 channels, some residual"
    training = {"tasks": tasks, "horizon": 3000, "estimator": "antithetic evolution strategies"}
    return {
        "name": name,
        **L2ESettings(form="paper", noise_multiplier=1e-3, friction="algorithm2").to_card(),
        # Table 14 of the paper: step size 2e-5, which is lr 1.0 at the 50,000 data points of the code.
        "defaults": {"lr": 1.0, "momentum_decay": 0.05},
        "badge": "heuristic",
        "meta_training": {**training, "seed": None, "commit": None, "command": None},
        "curve": [],
        "metrics": {},
        "licence": "none stated by the authors (Kim, Jung, Kim and Lee, ICML 2024); not for redistribution",
    }


def main(options: Options) -> None:
    if options.out.exists() and not options.overwrite:
        raise ValueError(f"out exists already: {options.out} (--overwrite writes over it)")
    network = convert(options.file)
    weights.save(options.out, network, card(options.out.stem))
    sizes = " → ".join(str(n) for n in [network[0].in_features, *(m.out_features for m in network[::2])])
    print(f"{options.out}: {sizes}, {sum(p.numel() for p in network.parameters())} weights")


if __name__ == "__main__":
    with explained():
        main(tyro.cli(Options, description=__doc__))
