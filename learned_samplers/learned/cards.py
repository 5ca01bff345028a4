"""What the card of a weight file must say, and its validation."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from learned_samplers.base import validation

FORMAT = "learned-samplers network weights"
VERSION = 1

#: What a card must say, and of what type. ``sampler`` is the name of its class, ``feature_set`` that of the network's
#: inputs, and ``features`` are these in order; where the sampler has forms, ``form`` stands beside them. ``scales`` are
#: the sampler's arguments that the weights were trained with, ``defaults`` the ``lr`` and ``momentum_decay`` that are
#: recommended with them, or one of the two or neither.
#: ``law`` is what was measured of the invariant law, None before it was; ``badge`` is its summary for readers, which
#: no program believes (see `learned_samplers.learned.badge`).
CARD_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
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
_FILLED_IN = ("format", "version", "layers", "sha256")


def brought_up_to_date(card: Any) -> Any:
    """A card as it would be written today: samplers that have one form do not name it, and ``law`` is always there."""
    if not isinstance(card, dict):
        return card
    card = {**card, "law": card.get("law")}
    if (card.get("sampler"), card.get("form")) in (("KineticL2E", "kinetic"), ("PrecondL2E", "preconditioner")):
        del card["form"]
    return card


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
    for key, kind in CARD_FIELDS.items():
        if not isinstance(card[key], kind):
            raise TypeError(f"{where}: the card's {key} must be of type {kind}, got {card[key]!r}")
    _check_defaults(f"{where}: the card's defaults", card["defaults"])
    missing = [key for key in META_TRAINING_FIELDS if key not in card["meta_training"]]
    if missing:
        raise ValueError(f"{where}: the card's meta_training lacks {', '.join(missing)}")
    layers = card["layers"]
    whole = isinstance(layers, list) and layers and all(_is_shape(shape) for shape in layers)
    if not whole or any(a[0] != b[1] for a, b in pairwise(layers)):
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
