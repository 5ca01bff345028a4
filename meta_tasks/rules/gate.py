"""A gate on a trained network of L2E: a few meta-parameters in the place of a thousand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.network import GATE_BOUND, flatten, unflatten
from learned_samplers.learned.weights import load_card
from meta_tasks.rules.subspace import L2ESubspaceRule

__all__ = ["L2EGateRule"]


class L2EGateRule(L2ESubspaceRule):
    """L2E with a trained network, of which only a gate is learned: how far each tensor moves, and when.

    β·exp(γ) stands in the place of β, with γ = c·x + c₀ over the context x of a tensor (the logarithms of its kick,
    weights, momentum and displacement, its gradients' coherence, its size, time, N, and how much of the run is over);
    the meta-parameters are (c, c₀). At zero the sampler is that of the trained network.

    The gated network is an ordinary one with one more unit in each hidden layer, which carries γ through the ReLUs;
    γ ≥ −6 there.

    Args:
        gate_of: weight file of a network of L2E in the residual form, whose features ``feature_set`` has; or of one
            that this rule gave, whose gate is then where the meta-parameters count from.
        feature_set: what the gated network sees.
        tell_horizon: as for `L2ERule`.

    Raises:
        ValueError, FileNotFoundError: the weights cannot be read, are of another sampler or form, or have another gate.
    """

    learned = "gate"

    def __init__(self, gate_of: Path, feature_set: str = "adaptive_run", *, tell_horizon: float = 0.0) -> None:
        card = load_card(gate_of)
        gated = card["scales"].get("gated", False)
        if (card["sampler"], card.get("form")) != ("L2E", "residual"):
            raise ValueError(
                f"gate_of: {gate_of} must be a network of L2E in the residual form, got {card['sampler']}, "
                f"{card.get('form')}"
            )
        settings = replace(L2ESettings.from_card({**card, "feature_set": feature_set}), gated=True)
        hidden = [width + (not gated) for width in self.hidden_of(card["layers"])]
        super().__init__(hidden=hidden, start=gate_of, tell_horizon=tell_horizon, settings=settings)
        assert self.start is not None
        base = self.start(super().initial_weights(0))
        opened = self._with_open_gate(base)
        # Places of the gate's weights in the flat network: the context of the first layer's last unit, and its bias.
        (units, inputs), context = self._shapes[0], len(feature_set_named(feature_set).context)
        places = torch.tensor([*range(units * inputs - context, units * inputs), units * inputs + units - 1])
        if gated:
            opened[places] = base[places]
            if not torch.equal(opened, base):
                raise ValueError(f"gate_of: {gate_of} has a gate of its own that is not linear in the context")
        self._span(opened, places, torch.arange(len(places)), torch.ones(len(places)))

    def _with_open_gate(self, weights: Tensor) -> Tensor:
        """The start, with γ = 0 carried by each hidden layer's last unit."""
        layers = [(w.clone(), b.clone()) for w, b in unflatten(weights, self._shapes)]
        for number, (weight, bias) in enumerate(layers):
            weight[-1], bias[-1] = 0.0, 0.0
            if number:
                weight[-1, -1] = 1.0
        layers[0][1][-1], layers[-1][1][-1] = GATE_BOUND, -GATE_BOUND
        return flatten(layers)
