"""L2E with a linear direction and a linear gate: a dozen or thirty meta-parameters, which a small network carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.network import GATE_BOUND, flatten, layers_of, shapes_of, unflatten
from learned_samplers.learned.weights import load
from meta_tasks.rules.subspace import L2ESubspaceRule

__all__ = ["L2ELinearRule"]


class L2ELinearRule(L2ESubspaceRule):
    """L2E that learns where to move as a linear function of each weight's features, and how far as one of its tensor's.

    β = −gain·(x_f + s·w·x)·exp(c·y + c₀), where x_f is the feature it starts at, x the signed ones of a coordinate
    (gradient, parameter, momentum, averages, their ratios to √v̂, the orthogonal factor) and y its tensor's context;
    the meta-parameters are (w, c, c₀), zero at the start.

    The network has three units in each hidden layer, two for the direction's parts of either sign and one for the gate;
    γ ≥ −6 there. It is a start for a wider network (``--start-weights``). With ``normalise_output`` in the settings
    there is no gate, and nothing is learned but the direction: its size is 1 over every tensor, however long
    u = e_f + s·w is, so that `constrained` keeps ‖u‖ = 1. A u that grew would hardly turn any more, nor be perturbed.

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
        depth: number of hidden layers.
        tell_horizon: as for `L2ERule`.
        origin: weight file that this rule gave, with the same feature, gain and settings, whose meta-parameters are the
            first, whatever its ``direction_share``, but for features that are left out now.
        settings: of the sampler, in the residual form; the gate is added to them, unless they normalise the output.

    Raises:
        ValueError, FileNotFoundError: the feature set has no such feature, the share is not positive, the sparsity is
            not in [0, .1] or has no direction of held length, the settings are of another form, or ``origin`` is not of
            this rule.
    """

    def __init__(
        self,
        feature: str,
        gain: float = 1.0,
        *,
        direction_share: float = 0.3,
        sparsity: float = 0.0,
        without: Sequence[str] = (),
        depth: int = 2,
        tell_horizon: float = 0.0,
        settings: L2ESettings,
        origin: Path | None = None,
    ) -> None:
        if not (0 < direction_share < float("inf")):
            raise ValueError(f"direction_share must be greater than 0, got {direction_share}")
        gated = not settings.normalise_output
        if not (0 <= sparsity <= 0.1) or (sparsity and gated):
            need = " where outputs are not normalised: no length is held" if gated else ""
            raise ValueError(f"sparsity must be {'0' if gated else 'between 0 and .1'}{need}, got {sparsity}")
        self.learned = "direction and gate" if gated else "direction of length 1"
        settings = replace(settings, gated=gated)
        super().__init__(
            hidden=(2 + gated,) * depth, start=(feature, gain), tell_horizon=tell_horizon, settings=settings
        )
        named = feature_set_named(settings.feature_set)
        assert self.start is not None
        layers = unflatten(self.start(torch.zeros(self.num_weights)), self._shapes)
        if gated:
            for number, (weight, _) in enumerate(layers[:-1]):
                weight[2] = 0.0
                weight[2, 2] = float(number > 0)
            layers[0][1][2], layers[-1][0][2, 2], layers[-1][1][2] = GATE_BOUND, 1.0, -GATE_BOUND
        inputs, coordinates = named.size, named.size - len(named.context)
        signed = [i for i, name in enumerate(named.names[:coordinates]) if not name.startswith("log_")]
        if (begun := named.names.index(feature)) not in signed and not gated:
            raise ValueError(f"feature must be a signed one of a weight where outputs are normalised, got {feature!r}")
        if unknown := [name for name in without if name == feature or name not in (named.names[i] for i in signed)]:
            raise ValueError(f"without: {', '.join(unknown)}: not among the features that {feature!r} is mixed with")
        omitted = torch.tensor([named.names.index(name) for name in without], dtype=torch.long)
        signed = [i for i in signed if named.names[i] not in without]
        rest = list(range(coordinates, inputs)) if gated else []
        up, down = torch.tensor(signed), torch.tensor(signed) + inputs
        gate = torch.tensor([*(2 * inputs + i for i in rest), 3 * inputs + 2] if gated else [], dtype=torch.long)
        w, c = len(signed), len(gate)
        shares = torch.tensor([direction_share] * w + [-direction_share] * w + [1.0] * c)
        numbers = torch.tensor([*range(w), *range(w), *range(w, w + c)])
        self._span(flatten(layers), torch.cat([up, down, gate]), numbers, shares)
        self._first, self._share, self._without = torch.zeros(self.num_weights), direction_share, list(without)
        self._sparsity = sparsity
        #: u/s at the start, of a direction whose length is held.
        self._begun = torch.tensor([float(i == begun) for i in signed]) / direction_share
        if origin is not None:
            loaded, card = load(origin)
            ours = replace(settings, total_steps=None)
            if (
                card["sampler"] != "L2E"
                or shapes_of(layers_of(loaded)) != self._shapes
                or (L2ESettings.from_card(card) != ours)
            ):
                raise ValueError(f"origin: {origin} is not of this rule with these settings")
            given = nn.utils.parameters_to_vector(loaded.parameters()).detach()
            given[torch.cat([omitted, omitted + inputs])] = 0.0
            self._first[numbers] = ((given - self._base)[self._places]) / shares
            if not torch.allclose(self.whole(self._first), given, atol=1e-5):
                raise ValueError(f"origin: {origin} is not linear, or starts at another feature or gain")
            self._first = self._of_length_1(self._first) if settings.normalise_output else self._first
        #: A name for each meta-parameter.
        self.names = tuple(named.names[i] for i in signed)
        if gated:
            self.names += (*(f"gate {name}" for name in named.context), "gate")

    def initial_weights(self, seed: int) -> Tensor:
        return self._first.clone()

    def constrained(self, weights: Tensor) -> Tensor:
        if not self.settings.normalise_output:
            return weights
        if not self._sparsity:
            return self._of_length_1(weights)
        # Of length 1 and a dozen components, one at least is above .25: it cannot be shrunk to nothing.
        begun = self._begun.to(weights)
        direction = nn.functional.normalize(begun + weights, dim=0)
        return self._of_length_1(nn.functional.softshrink(direction, self._sparsity) - begun)

    def sparser(self, weights: Tensor) -> tuple[list[tuple[str, ...]], Tensor]:
        """The direction's largest components alone, one to all that are not zero, each choice of length 1.

        Returns:
            The features that are kept, largest first, of each of k choices, and their meta-parameters (k, num_weights).

        Raises:
            ValueError: the settings do not normalise the output: such a direction's length is learned with it.
        """
        if not self.settings.normalise_output:
            raise ValueError("sparser: only of a direction of length 1, whose output is normalised")
        begun = self._begun.to(weights)
        direction = begun + weights
        order = direction.abs().argsort(descending=True, stable=True)[: int(direction.count_nonzero())]
        kept = torch.zeros(len(order), len(direction)).to(weights)
        for count in range(1, len(order) + 1):
            kept[count - 1, order[:count]] = direction[order[:count]]
        names = [self.names[i] for i in order.tolist()]
        choices = torch.stack([self._of_length_1(each - begun) for each in kept])
        return [tuple(names[:count]) for count in range(1, len(order) + 1)], choices

    def _of_length_1(self, weights: Tensor) -> Tensor:
        begun = self._begun.to(weights)
        return nn.functional.normalize(begun + weights, dim=0) / self._share - begun

    def specification(self) -> dict[str, Any]:
        # Checkpoints from before there was a choice have none.
        more: dict[str, Any] = {} if self._share == 0.3 else {"direction_share": self._share}
        more |= {"sparsity": self._sparsity} if self._sparsity else {}
        more |= {"without": self._without} if self._without else {}
        more |= {"origin": self._first.tolist()} if self._first.any() else {}
        return {**super().specification(), **more}
