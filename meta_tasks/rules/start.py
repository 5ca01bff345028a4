"""Starts of meta-training besides at an untrained network: at weights from a file, or at a known optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from learned_samplers.learned.network import flatten, layers_of, unflatten
from learned_samplers.learned.settings import LearnedSettings
from learned_samplers.learned.weights import load as load_weights

__all__ = ["FeatureStart", "WeightStart"]


class FeatureStart:
    """Start of L2E at a known optimizer: β = −gain·feature exactly, α = 0.

    Called with fresh meta-parameters (n,), it makes those that training starts from.

    Args:
        feature, gain: of the start.
        features: names of the network's inputs.
        shapes: (out, in) of its layers.

    Raises:
        ValueError: there is no such feature, or fewer than two units in a hidden layer.
    """

    def __init__(self, feature: str, gain: float, features: Sequence[str], shapes: Sequence[tuple[int, int]]) -> None:
        if feature not in features:
            raise ValueError(f"start: {feature!r} is not a feature of the network, which sees {', '.join(features)}")
        hidden = [out for out, _ in shapes[:-1]]
        if min(hidden, default=2) < 2:
            raise ValueError(f"start needs two units in every hidden layer, got hidden={hidden}")
        self.feature, self.gain = feature, gain
        self._row, self._shapes = features.index(feature), shapes

    def __call__(self, fresh: Tensor) -> Tensor:
        layers = [(weight.clone(), bias.clone()) for weight, bias in unflatten(fresh, self._shapes)]
        if len(layers) == 1:
            weight, bias = layers[0]
            weight.zero_(), bias.zero_()
            weight[1, self._row] = -self.gain
            return flatten(layers)
        # The first two units of each layer carry the feature's positive and negative part through the ReLUs.
        (first, bias), *middle, (last, last_bias) = layers
        first[:2], bias[:2] = 0.0, 0.0
        first[0, self._row] = 1.0
        first[1] = -first[0]
        for weight, bias in middle:
            weight[:2], bias[:2] = 0.0, 0.0
            weight[0, 0] = weight[1, 1] = 1.0
        last.zero_(), last_bias.zero_()
        last[1, 0], last[1, 1] = -self.gain, self.gain
        return flatten(layers)

    def specification(self) -> Any:
        return [self.feature, self.gain]


class WeightStart:
    """Start at the weights of a file; inputs and units that it lacks start without effect.

    Called with fresh meta-parameters (n,), it makes those that training starts from.

    Args:
        path: of the weight file.
        settings: of the rule that starts.
        shapes: (out, in) of its layers.

    Raises:
        ValueError, FileNotFoundError: the weights cannot be read, or are of another sampler or form, with other scales,
            or with features or units that this rule has not.
    """

    def __init__(self, path: Path, settings: LearnedSettings, shapes: Sequence[tuple[int, int]]) -> None:
        network, card = load_weights(path)
        for name in ("sampler", "form"):
            if card.get(name) != (expected := getattr(settings, name, None)):
                raise ValueError(f"start: {path} has {name} {card.get(name)}, here it is {expected}")
        names = settings.features
        if missing := [name for name in card["features"] if name not in names]:
            raise ValueError(f"start: {path} sees {', '.join(missing)}, which {settings.feature_set!r} has not")
        units, ours = ([shape[0] for shape in layers[:-1]] for layers in (card["layers"], shapes))
        if len(units) != len(ours) or any(a > b for a, b in zip(units, ours)):
            raise ValueError(f"start: {path} has hidden layers of {units} units, which do not fit into {ours}")
        theirs, scales = (s.to_card()["scales"] for s in (type(settings).from_card(card), settings))
        # A second stage may add a gate, which starts without effect.
        added = set() if theirs.get("gated") else {"gated"}
        if differ := [name for name in scales if theirs[name] != scales[name] and name not in added]:
            theirs, scales = ({name: values[name] for name in differ} for values in (theirs, scales))
            raise ValueError(f"start: {path} was trained with the scales {theirs}, here they are {scales}")
        self.digest = card["sha256"]
        self._layers = [(weight.detach(), bias.detach()) for weight, bias in layers_of(network)]
        self._inputs = [names.index(name) for name in card["features"]]
        self._shapes = shapes

    def __call__(self, fresh: Tensor) -> Tensor:
        inputs, layers = self._inputs, [(w.clone(), b.clone()) for w, b in unflatten(fresh, self._shapes)]
        for (weight, bias), (old_weight, old_bias) in zip(layers, self._layers, strict=True):
            units = len(old_bias)
            weight[:units], bias[:units] = 0.0, old_bias
            weight[:units, inputs] = old_weight
            inputs = list(range(units))
        return flatten(layers)

    def specification(self) -> Any:
        return f"weights with SHA-256 {self.digest}"
