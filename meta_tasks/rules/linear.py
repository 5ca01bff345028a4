"""L2E as one linear layer: a dozen or thirty meta-parameters, a direction and how far each tensor goes along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.learned.features import feature_set_named
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import Phi, layers_of, shapes_of
from learned_samplers.learned.weights import load
from meta_tasks.rules.learned import L2ERule

__all__ = ["L2ELinearRule"]


class L2ELinearRule(L2ERule):
    """L2E that learns where to move as a linear function of each weight's features, and how far as one of its tensor's.

    β = −gain·(x_f + s·w·x)·exp(c·y + c₀), where x_f is the feature it starts at, x the signed ones of a coordinate
    (gradient, parameter, momentum, averages, their ratios to √v̂, the matrix direction) and y its tensor's context;
    the meta-parameters are (w, c, c₀), zero at the start. Evolution strategies estimate a gradient in some dozens of
    directions far more quietly than in a thousand.

    The network is one linear layer, with a row for α, which is zero, one for the direction and one for the gate. With
    ``normalise_output`` in the settings there is no gate, and nothing is learned but the direction: its size is 1 over
    every tensor, however long u = e_f + s·w is, so that `constrained` keeps ‖u‖ = 1. A u that grew would hardly turn
    any more, nor be perturbed.

    Args:
        feature, gain: of the start.
        direction_share: s, what a unit of the direction's meta-parameters is worth beside the gate's, for one size of
            perturbation serves both. A larger one goes to another direction sooner.
        sparsity: τ; after each step of the outer loop the components of a direction whose length is held are brought
            nearer to zero by τ, u ← sign(u)·max(|u| − τ, 0), and its length is 1 again. A feature stays only while its
            meta-gradient says more than its noise does: one whose ratio of first to root second moment in Adam is below
            τ/(s·learning rate) dies out, and what it was mixed in by is exactly zero (in a running average, after a
            while, nearly). 0: none is shrunk.
        without: features that the direction leaves out, such as "parameter": to go along the weight itself is to change
            the prior, and on tasks of few steps nothing shows what that does later.
        tell_horizon: as for `L2ERule`.
        origin: weight file that this rule gave, with the same settings, whose meta-parameters are the first, whatever
            its feature, gain and ``direction_share``, but for features that are left out now.
        settings: of the sampler, in the residual form; the gate is added to them, unless they normalise the output.

    Raises:
        ValueError, FileNotFoundError: the feature set has no such feature, the share is not positive, the sparsity is
            not in [0, 0.1] or has no direction of held length, the settings are of another form, or ``origin`` is not
            of this rule.
    """

    def __init__(
        self,
        feature: str,
        gain: float = 1.0,
        *,
        direction_share: float = 0.3,
        sparsity: float = 0.0,
        without: Sequence[str] = (),
        tell_horizon: float = 0.0,
        settings: L2ESettings,
        origin: Path | None = None,
    ) -> None:
        if not (0 < direction_share < float("inf")):
            raise ValueError(f"direction_share must be greater than 0, got {direction_share}")
        gated = not settings.normalise_output
        if not (0 <= sparsity <= 0.1) or (sparsity and gated):
            need = " where outputs are not normalised: no length is held" if gated else ""
            raise ValueError(f"sparsity must be {'0' if gated else 'between 0 and 0.1'}{need}, got {sparsity}")
        settings = replace(settings, gated=gated, alpha_scale=0.0)
        super().__init__(hidden=(), start=(feature, gain), tell_horizon=tell_horizon, settings=settings)
        named = feature_set_named(settings.feature_set)
        coordinates = named.size - len(named.context)
        signed = [i for i, name in enumerate(named.names[:coordinates]) if not name.startswith("log_")]
        begun = named.names.index(feature)
        if begun not in signed and not gated:
            raise ValueError(f"feature must be a signed one of a weight where outputs are normalised, got {feature!r}")
        if unknown := [name for name in without if name == feature or name not in (named.names[i] for i in signed)]:
            raise ValueError(f"without: {', '.join(unknown)}: not among the features that {feature!r} is mixed with")
        signed = [i for i in signed if named.names[i] not in without]
        #: A name for each meta-parameter.
        self.names = tuple(named.names[i] for i in signed)
        self._signed, self._context, self._gain = signed, slice(coordinates, named.size), gain
        if gated:
            self.names += (*(f"gate {name}" for name in named.context), "gate")
        self.num_weights = len(self.names)
        self._share, self._sparsity, self._without = direction_share, sparsity, list(without)
        #: u at the start.
        self._begun = torch.tensor([float(i == begun) for i in signed])
        self._first = torch.zeros(self.num_weights)
        if origin is not None:
            self._first = self._read(origin)

    def _read(self, origin: Path) -> Tensor:
        """The meta-parameters of a weight file."""
        loaded, card = load(origin)
        ours = replace(self.settings, total_steps=None)
        same = card["sampler"] == "L2E" and shapes_of(layers_of(loaded)) == self._shapes
        if not same or L2ESettings.from_card(card) != ours:
            raise ValueError(f"origin: {origin} is not of this rule with these settings")
        weight, bias = (tensor.detach().clone() for tensor in layers_of(loaded)[0])
        names = feature_set_named(self.settings.feature_set).names
        weight[1, [names.index(name) for name in self._without]] = 0.0
        weights = (weight[1, self._signed] / -self._gain - self._begun) / self._share
        if self.settings.gated:
            weights = torch.cat([weights, weight[2, self._context], bias[2:]])
        network = torch.cat([weight.flatten(), bias])
        if not torch.allclose(self.whole(weights), network, atol=1e-5):
            raise ValueError(f"origin: {origin} has an α, or features of other kinds in its direction or gate")
        return self._of_length_1(weights) if self.settings.normalise_output else weights

    def whole(self, weights: Tensor) -> Tensor:
        """The network's weights (..., n) of the meta-parameters (..., num_weights)."""
        (outputs, inputs), n = self._shapes[0], len(self._signed)
        weight = weights.new_zeros(*weights.shape[:-1], outputs, inputs)
        bias = weights.new_zeros(*weights.shape[:-1], outputs)
        weight[..., 1, self._signed] = -self._gain * (self._begun.to(weights) + self._share * weights[..., :n])
        if self.settings.gated:
            weight[..., 2, self._context], bias[..., 2] = weights[..., n:-1], weights[..., -1]
        return torch.cat([weight.flatten(-2), bias], -1)

    def initial_weights(self, seed: int) -> Tensor:
        return self._first.clone()

    def prepare(self, weights: Tensor) -> Phi:
        return super().prepare(self.whole(weights))

    def network(self, weights: Tensor) -> nn.Module:
        return super().network(self.whole(weights.detach().cpu()))

    def constrained(self, weights: Tensor) -> Tensor:
        if not self.settings.normalise_output:
            return weights
        if not self._sparsity:
            return self._of_length_1(weights)
        # Of length 1 and a dozen components, one at least is above 0.25: it cannot be shrunk to nothing.
        begun = self._begun.to(weights)
        direction = nn.functional.normalize(begun + self._share * weights, dim=0)
        return self._of_length_1((nn.functional.softshrink(direction, self._sparsity) - begun) / self._share)

    def _of_length_1(self, weights: Tensor) -> Tensor:
        begun = self._begun.to(weights)
        return (nn.functional.normalize(begun + self._share * weights, dim=0) - begun) / self._share

    def specification(self) -> dict[str, Any]:
        return {
            **super().specification(),
            "learned": "direction and gate" if self.settings.gated else "direction of length 1",
            "direction_share": self._share,
            "sparsity": self._sparsity,
            "without": self._without,
            "origin": self._first.tolist(),
        }
