"""Weight files of learned samplers: safetensors with a JSON card beside them.

``NAME.safetensors`` holds ``linear_0.weight`` (out, in), ``linear_0.bias`` (out,), … of a network with ReLU between
its layers; ``NAME.json``, the card, says which sampler and features they belong to, how they were trained and what they
reach. The card carries the SHA-256 of the weights and that of its own content: a truncated, changed or swapped file is
refused. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.base import validation
from learned_samplers.base.files import write_together
from learned_samplers.learned.network import build_network, check_forward, layers_of, shapes_of
from learned_samplers.learned.settings import LearnedSettings

FORMAT = "learned-samplers network weights"
VERSION = 1

#: What a card must say, and of what type. ``sampler`` is the name of its class, ``feature_set`` that of the network's
#: inputs, and ``features`` are these in order; where the sampler has forms, ``form`` stands beside them. ``scales`` are
#: the sampler's arguments that the weights were trained with, ``defaults`` the ``lr`` and ``momentum_decay`` that are
#: recommended with them, or one of the two or neither. ``learned`` and ``chosen`` say in a sentence each what
#: meta-training found (how many numbers, on what, for how long) and what a person chose.
#: ``law`` is what was measured of the invariant law, None before it was; ``badge`` is its summary for readers, which
#: no program believes (see `learned_samplers.learned.badge`).
CARD_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "learned": str,
    "chosen": str,
    "sampler": str,
    "feature_set": str,
    "features": list,
    "scales": dict,
    "defaults": dict,
    "badge": str,
    "law": (dict, type(None)),
    "meta_training": dict,
    "curve": list,
    "metrics": dict,
    "licence": str,
}
#: What ``meta_training`` must say: None where it is not known.
META_TRAINING_FIELDS = ("tasks", "horizon", "estimator", "seed", "commit", "command")
_FILLED_IN = ("format", "version", "layers", "sha256", "card_sha256")

#: Where the weights lie that ship with the package: in the package ``pretrained``, beside this one.
SHIPPED = Path(__file__).resolve().parents[2] / "pretrained"

#: The weight file of a folder that `learned_samplers.learned.hub` has written.
IN_FOLDER = "model.safetensors"

_VERSION_MARK = ", version "
# Bytes that a card, and a weight file beside its weights, may have.
_LARGEST_CARD, _LARGEST_HEADER = 2**26, 2**20


def card_path(path: str | os.PathLike[str]) -> Path:
    """Path of a weight file's card: the same name with ``.json``."""
    return Path(path).with_suffix(".json")


def save(path: str | os.PathLike[str], network: nn.Module, card: dict[str, Any]) -> None:
    """Write a network and its card, both or neither: a full disk leaves an earlier pair as it was.

    Args:
        path: of the weights, ending in ``.safetensors``; the card is written beside it.
        network: its ``nn.Linear`` layers in order are saved, in float32.
        card: the fields of `CARD_FIELDS`; format, version, layers and checksums are filled in.

    Raises:
        ValueError, TypeError: the card misses a field or has a wrong one, or a weight is not finite.
        OSError: a file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {str(path)!r}")
    from safetensors.torch import save as to_bytes

    check_forward(network)
    tensors = {}
    for i, (weight, bias) in enumerate(layers_of(network)):
        tensors[f"linear_{i}.weight"] = weight.detach().to("cpu", torch.float32).contiguous()
        tensors[f"linear_{i}.bias"] = bias.detach().to("cpu", torch.float32).contiguous()
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"network must have finite weights, {broken[0]} has not")
    # One entry: safetensors writes several in random order, and the same network must give the same file.
    data = to_bytes(tensors, metadata={"format": f"{FORMAT}{_VERSION_MARK}{VERSION}"})
    weights = sum(tensor.numel() for tensor in tensors.values())
    filled = {
        "format": FORMAT,
        "version": VERSION,
        "law": None,
        "learned": f"All {weights} weights of the network, as meta_training says.",
        "chosen": "The features, the scales, and the update around the network.",
        **card,
        "layers": [list(shape) for shape in shapes_of(layers_of(network))],
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    filled = json.loads(json.dumps(filled))  # as it will be read
    filled["card_sha256"] = card_checksum(filled)
    check_card("card", filled)
    text = json.dumps(filled, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    # A list of numbers or words in one line, where no text within it is changed by that.
    short = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    text = short if json.loads(short) == filled else text
    write_together({path: data, card_path(path): text.encode()})


def load(path: str | os.PathLike[str]) -> tuple[nn.Sequential, dict[str, Any]]:
    """Read a weight file and its card: the network (float32, CPU) and the card.

    Raises:
        FileNotFoundError: the weights or the card are not there.
        ValueError: a file is truncated, changed, of another format or no weight file; the message names it and why.
    """
    path = Path(path)
    card = load_card(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such weight file: {path}")
    most, size = 4 * sum(out * (into + 1) for out, into in card["layers"]) + _LARGEST_HEADER, path.stat().st_size
    if size > most:
        raise ValueError(f"{path}: {size} bytes are too many for the card's layers (at most {most})")
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != card["sha256"]:
        raise ValueError(
            f"{path}: truncated, changed, or not the weights that {card_path(path).name} describes "
            f"(their SHA-256 is {digest[:12]}…, the card's {card['sha256'][:12]}…)"
        )
    try:
        tensors = from_bytes(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: not a safetensors file ({error})") from error
    expected: dict[str, tuple[int, ...]] = {}
    for i, (out, into) in enumerate(card["layers"]):
        expected |= {f"linear_{i}.weight": (out, into), f"linear_{i}.bias": (out,)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected:
        raise ValueError(f"{path}: holds {reprlib.repr(shapes)}, the card's layers need {reprlib.repr(expected)}")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise ValueError(f"{path}: {name} must be finite and float32, got {tensor.dtype}")
    widths = [card["layers"][0][1], *(out for out, _ in card["layers"])]
    network = build_network(widths[0], widths[1:-1], widths[-1], generator=torch.Generator())  # not from torch's own
    network.load_state_dict(tensors)
    return network, card


def load_card(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the card of the weight file ``path``.

    Raises:
        FileNotFoundError, ValueError: as for `load`.
    """
    file = card_path(path)
    if not file.is_file():
        if not Path(path).is_file():
            raise FileNotFoundError(f"no such weight file: {path}")
        raise FileNotFoundError(f"no such card: {file} (it belongs beside {Path(path).name})")
    size = file.stat().st_size
    if size > _LARGEST_CARD:
        raise ValueError(f"{file}: {size} bytes are too many for a card (at most {_LARGEST_CARD})")
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{file}: not a card: it is nested too deeply") from error
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise ValueError(f"{file}: truncated or not JSON ({error})") from error
    try:
        check_card(str(file), card)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if card["card_sha256"] != card_checksum(card):
        raise ValueError(
            f"{file}: the card has changed since it was written (damaged file?): its card_sha256 is not that of its "
            "content. To change a card, load it and save it with its network"
        )
    return card


def card_checksum(card: dict[str, Any]) -> str:
    """The SHA-256 of all that a card says but itself: of its JSON with the keys in order."""
    content = {key: value for key, value in card.items() if key != "card_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shipped_names() -> list[str]:
    """The names of the weights that ship with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.safetensors"))


def shipped_path(name: str) -> Path:
    """The weight file of that name; its card lies beside it.

    Raises:
        ValueError: no shipped weights have that name.
    """
    if name not in shipped_names():
        raise ValueError(f"no shipped weights are named {name!r}; there are {', '.join(shipped_names()) or 'none'}")
    return SHIPPED / f"{name}.safetensors"


def find(name: str | os.PathLike[str]) -> Path:
    """The weight file that ``network=`` means: the name of shipped weights, or the path of a file or a folder.

    Raises:
        ValueError: it is a bare name, and neither shipped weights nor a folder have it.
    """
    if name in shipped_names():
        return shipped_path(str(name))
    if os.path.isdir(name):
        return Path(name) / IN_FOLDER
    if isinstance(name, str) and not name.endswith(".safetensors") and os.path.basename(name) == name:
        return shipped_path(name)
    return Path(name)


def card_fingerprint(card: dict[str, Any]) -> str:
    """A SHA-256 of all that a sampler with this card computes with: weights, rule, features, scales and defaults.

    The card's ``sha256`` is that of the weights alone, which cards with other scales may share; its ``card_sha256`` is
    that of every word in it.
    """
    keys = ("sha256", "sampler", "form", "feature_set", "features", "scales", "defaults")
    content = {key: card[key] for key in keys if key in card}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def resolve(
    network: str | os.PathLike[str] | nn.Module | None, settings: type[LearnedSettings], **asked: str | None
) -> tuple[nn.Module | None, dict[str, Any]]:
    """Return the module and the card that a sampler's ``network=`` means; no card ({}) for a module or None.

    Args:
        network: of the sampler whose settings are ``settings``.
        asked: ``form`` and ``feature_set`` if the user named them.

    Raises:
        TypeError: ``network`` is of another type.
        ValueError: the card is of another sampler, form or feature set than asked for, has settings that the sampler
            has not, or its feature set has changed its meaning since.
        FileNotFoundError, ValueError: as for `load` and `find`.
    """
    if network is None or isinstance(network, nn.Module):
        return network, {}
    if not isinstance(network, str | os.PathLike):
        raise TypeError(
            f"network must be a name, a path, an nn.Module or None, got {network!r} of type {type(network).__name__}"
        )
    path = find(network)
    module, card = load(path)
    for key, value in {"sampler": settings.sampler, **asked}.items():
        if value is not None and card.get(key) != value:
            raise ValueError(f"{path}: weights for {key} {card.get(key)!r}, asked for {value!r}")
    if "form" in settings.names() and card.get("form") is None:
        raise ValueError(f"{path}: form must be named in the card of weights for {settings.sampler}")
    try:
        meaning = list(settings.from_card(card).features)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if meaning != card["features"]:
        raise ValueError(f"{path}: its features {card['features']} are not what {card['feature_set']!r} means here")
    return module, card


def check_card(where: str, card: Any) -> None:
    """Raise ValueError or TypeError, with ``where`` before the message, unless a card has all fields it must have."""
    if not isinstance(card, dict):
        raise TypeError(f"{where}: a card must be a JSON object, got {type(card).__name__}")
    if card.get("format") != FORMAT:
        raise ValueError(f"{where}: not a card of {FORMAT} (its format is {card.get('format')!r})")
    if card.get("version") != VERSION:
        raise ValueError(f"{where}: version {card.get('version')!r} cannot be read, only {VERSION}")
    missing = [key for key in (*CARD_FIELDS, *_FILLED_IN) if key not in card]
    if missing:
        raise ValueError(f"{where}: the card lacks {', '.join(missing)}")
    for key, expected in CARD_FIELDS.items():
        if not isinstance(card[key], expected):
            raise TypeError(f"{where}: the card's {key} must be of type {expected}, got {card[key]!r}")
    _check_defaults(f"{where}: the card's defaults", card["defaults"])
    missing = [key for key in META_TRAINING_FIELDS if key not in card["meta_training"]]
    if missing:
        raise ValueError(f"{where}: the card's meta_training lacks {', '.join(missing)}")
    layers = card["layers"]
    shapes = isinstance(layers, list) and layers and all(_is_shape(shape) for shape in layers)
    if not shapes or any(a[0] != b[1] for a, b in pairwise(layers)):
        raise ValueError(f"{where}: the card's layers must be [out, in] pairs that fit each other, got {layers!r}")
    if len(card["features"]) != layers[0][1]:
        raise ValueError(
            f"{where}: the card names {len(card['features'])} features, the first layer takes {layers[0][1]}"
        )
    if not isinstance(card["sha256"], str):
        raise TypeError(f"{where}: the card's sha256 must be a string, got {card['sha256']!r}")


def _check_defaults(where: str, defaults: dict[str, Any]) -> None:
    checks: dict[str, Any] = {"lr": validation.positive, "momentum_decay": partial(validation.fraction, open_left=True)}
    for name, value in defaults.items():
        if name not in checks:
            raise ValueError(f"{where} must be of {' and '.join(checks)} alone, got {name}={value!r}")
        checks[name](f"{where}: {name}", value)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n < 10_000 for n in value)
