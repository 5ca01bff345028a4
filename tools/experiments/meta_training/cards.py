"""What the tools do with weight cards: whether two networks may be mixed, and the command that repeats a training."""

from __future__ import annotations

import math
import shlex
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learned_samplers.learned.registry import settings_from_card

#: The entries of a card that say how a network is used; two networks can be mixed only where all of them agree.
RULE = ("sampler", "form", "feature_set", "features", "scales", "layers")


def check_same_rule(
    names: tuple[str, str], card: dict[str, Any], other: dict[str, Any], keys: tuple[str, ...] = RULE
) -> None:
    """Raise ValueError unless two cards are of networks of one sampler, with the same inputs, scales and layers.

    They may differ in the decay time, a schedule over the run and not a unit of the outputs.
    """
    for key in keys:
        ours, theirs = (_compared(each, key) for each in (card, other))
        if ours != theirs:
            raise ValueError(f"{names[0]} and {names[1]} are networks of different rules: {key} is {ours} and {theirs}")


def _compared(card: dict[str, Any], key: str) -> Any:
    """An entry of a card; of the scales all that the sampler has, also those that the card leaves at their defaults."""
    if key != "scales":
        return card.get(key)
    scales = settings_from_card(card).to_card()["scales"]
    return {name: value for name, value in scales.items() if name != "decay_time"}


def blend(network: nn.Module, other: nn.Module, share: float) -> nn.Module:
    """(1 − share)·network + share·other, weight by weight, in ``network``; for networks of one rule."""
    with torch.no_grad():
        for p, q in zip(network.parameters(), other.parameters(), strict=True):
            p.lerp_(q, share)
    return network


def carried_over(card: dict[str, Any], feature_set: str, command: str) -> dict[str, Any]:
    """The card of the same network with another feature set, whose features take the places of those before.

    What a network has learned of one direction may hold for another: the orthogonal factor of whitened momentum in the
    place of that of the momentum, for instance. The scores of before are not those of the new rule and are left out.

    Raises:
        ValueError: there is no such feature set of this sampler, it is the card's own, or it has another number of
            features.
    """
    if feature_set == card["feature_set"]:
        raise ValueError(f"feature_set={feature_set!r} is what the weights have already")
    features = list(settings_from_card({**card, "feature_set": feature_set}).features)
    before = card["features"]
    if len(features) != len(before):
        raise ValueError(
            f"feature_set={feature_set!r} has {len(features)} features, the network was learned with {len(before)}"
        )
    carried = {
        "from": card["sha256"],
        "from_feature_set": card["feature_set"],
        "replaced": {old: new for old, new in zip(before, features, strict=True) if old != new},
        "curve": "that of the feature set before",
        "command": command,
    }
    return {
        **card,
        "feature_set": feature_set,
        "features": features,
        "meta_training": {**card["meta_training"], "carried_over": carried},
        "metrics": {},
    }


def with_gate(
    network: nn.Module, card: dict[str, Any], gated: nn.Module, gated_card: dict[str, Any], command: str
) -> tuple[nn.Module, dict[str, Any]]:
    """The direction of one network of L2E with the gate that another has learned, and the card of both together.

    Its size is no longer held where the first network normalised it, for the gate has to say how far to go. The scores
    and the curve of before are not those of the new network.

    Args:
        network, card: whose direction it is, without a gate or with one that is dropped.
        gated, gated_card: whose gate it is.

    Raises:
        ValueError: the second network has no gate, or the two differ in more than the gate; or a gate has not one unit
            of its own, the last of each hidden layer, that no other sees: then it cannot be told from the direction.
    """
    if not gated_card["scales"].get("gated", False):
        raise ValueError(f"gate_of: {gated_card['name']!r} has no gate")
    check_same_rule(("the network", "gate_of"), card, gated_card, ("sampler", "form", "feature_set", "features"))
    size = {"gated", "normalise_output"}
    ours, theirs = (
        {k: v for k, v in _compared(each, "scales").items() if k not in size} for each in (card, gated_card)
    )
    if ours != theirs:
        raise ValueError(f"the network and gate_of have different scales: {ours} and {theirs}")
    both, own = deepcopy(gated), int(card["scales"].get("gated", False))  # units of its own gate
    places, layers = ([each for each in net.modules() if isinstance(each, nn.Linear)] for net in (both, network))
    wanted = [
        [layer.out_features - own + 1, layer.in_features + (1 - own) * (number > 0)]
        for number, layer in enumerate(layers)
    ]
    if wanted != gated_card["layers"]:
        raise ValueError(f"gate_of: its layers are {gated_card['layers']}, beside this direction {wanted}")
    for name, linear in (("gate_of", places), *([("the network", layers)] if own else [])):
        if any(each.weight[:-1, -1].any() or each.weight[-1, :-1].any() for each in linear[1:]):
            raise ValueError(f"{name}: its gate is not a unit of its own")
    with torch.no_grad():
        for number, (place, layer) in enumerate(zip(places, layers, strict=True)):
            rows, columns = layer.out_features - own, layer.in_features - own * (number > 0)
            place.weight[:rows, :columns] = layer.weight[:rows, :columns]
            place.bias[:rows] = layer.bias[:rows]
    made = {
        "direction_of": card["sha256"],
        "gate_of": gated_card["sha256"],
        "gate_meta_training": with_reproduction(gated_card["meta_training"]),
        "curve": "that of the direction",
        "command": command,
    }
    changed = {"meta_training": {**card["meta_training"], "with_gate": made}, "metrics": {}}
    return both, {**card, "scales": gated_card["scales"], "layers": gated_card["layers"], **changed}


def without_infinities(value: Any) -> Any:
    """Plain values with None in the place of NaN and infinities, which JSON has not; a sampler that fails has them."""
    if isinstance(value, dict):
        return {key: without_infinities(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def commit() -> str | None:
    """The commit that these tools are at, None outside a repository."""
    found = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def reproducing(command: str, iterations: int) -> str:
    """The command that gives a meta-training's weights again, from the one that ended it and the iterations it did.

    The limit on the time is left out, because another machine would stop after another number of iterations. Where no
    iteration was done the command has a limit of zero minutes.
    """
    kept, words = [], iter(shlex.split(command))
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("--minutes", "--iterations"):
            kept.append(word)
        elif not value:
            next(words)
    ended = ["--iterations", str(iterations)] if iterations else ["--minutes", "0"]
    return shlex.join([*kept, *ended])


def with_reproduction(meta_training: dict[str, Any]) -> dict[str, Any]:
    """The ``meta_training`` of a card, with the command that repeats it where the run said how it was made."""
    if "reproduce" in meta_training or meta_training["command"] is None or "iterations" not in meta_training:
        return meta_training
    return {**meta_training, "reproduce": reproducing(meta_training["command"], meta_training["iterations"])}
