"""Measure what a meta-trained network does and put it, with its card, where the package looks for it.

    python tools/ship.py runs/l2e/weights.safetensors l2e              # writes pretrained/l2e.safetensors and .json
    python tools/ship.py runs/l2e/weights.safetensors l2e --out /tmp   # or elsewhere

The card gets a field "law": `check_sampler` on two Gaussians, and of L2E the violation of Assumption 3.1 and what each
term of a step does (`learned_samplers.learned.law`), at the learning rate that the card recommends. The badge follows
from it: "O(h)" for a sampler that claims an invariant law (KineticL2E, MetaSGMCMC, ScaleAdaptedL2E) whose bias was seen
to vanish with the step size, else "heuristic". Under "meta_training" stands how to get the weights again: "reproduce"
is the command of the training, and "blend" has the other network's training and the command of this tool, as
"carried_over" has of a network that was given another feature set and "with_gate" of one that was given a gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tyro
from experiments.harness.options import at_least, at_least_one, positive
from experiments.harness.output import command_line, explained
from experiments.meta_training.cards import (
    blend,
    carried_over,
    check_same_rule,
    with_gate,
    with_reproduction,
    without_infinities,
)
from experiments.meta_training.law import check_asked, law_of, measured_sampler
from torch import nn

from learned_samplers.base import validation
from learned_samplers.learned import weights
from meta_tasks.training.process import one_core


@dataclass(frozen=True)
class Options:
    """Measure what a meta-trained network does and put it, with its card, where the package looks for it."""

    # Weight file of a meta-training.
    source: tyro.conf.Positional[Path]
    # Name to ship it under.
    name: tyro.conf.Positional[str]
    # Learning rate that the card recommends; by default the one in the card.
    lr: float | None = None
    # ScaleAdaptedL2E only: learning rate up to which its law is measured, by default 8 times the recommended one.
    law_lr: float | None = None
    # ScaleAdaptedL2E only: temperatures between which its law is to stand, by default 1, .1 and .01.
    law_temperatures: tuple[float, ...] | None = None
    # N of the Gaussians.
    num_data: int = 50_000
    # Independent coordinates of each Gaussian (Meta-SGMCMC: ten times as many chains). Standard errors fall with the
    # square root of the number.
    coordinates: int = 2000
    # MetaSGMCMC only: mean loss at the mode of the Gaussians on which it is measured (its networks see the energy), by
    # default 0.
    energy: float | None = None
    # Weight file that the meta-training started from; its command and curve go into the card too.
    first_stage: Path | None = None
    # Another weight file of the same rule and layers: ship a point on the line towards it. Between the start and the
    # end of a meta-training the loss can be lower than at both.
    toward: Path | None = None
    # Position on that line (--toward): 0 is SOURCE, 1 the other file; by default .5, the middle.
    share: float | None = None
    # Feature set to carry the network over to, with as many features as it was learned with: each that is new takes
    # the place of the one before, another direction to move along for instance. Nothing is trained.
    feature_set: str | None = None
    # Weight file of a network whose gate stands beside SOURCE's direction: L2E that learned where to go in one training
    # and how far in another. Nothing is trained.
    gate_of: Path | None = None
    # Folder to write to; by default the package's.
    out: Path = Path(__file__).parents[1] / "pretrained"

    def __post_init__(self) -> None:
        if self.share is not None and self.toward is None:
            raise ValueError(f"share={self.share} is a position on the line to --toward, which is not given")
        if self.share is not None and not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share}")
        changes = {name: getattr(self, name) for name in ("toward", "feature_set", "gate_of")}
        given = [f"{name}={value}" for name, value in changes.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: one after the other, please")
        positive(self, "lr", "law_lr")
        at_least_one(self, "num_data")
        at_least(2, self, "coordinates")
        if self.energy is not None:
            validation.number("energy", self.energy)
        temperatures = self.law_temperatures
        if temperatures is not None and not (temperatures and all(0 < t < math.inf for t in temperatures)):
            raise ValueError(f"law_temperatures must be positive, at least one, got {temperatures}")

    @property
    def of_one_law(self) -> dict[str, Any]:
        """What belongs to the law of one sampler alone, as `law_of` takes it."""
        return {name: getattr(self, name) for name in ("energy", "law_lr", "law_temperatures")}


def law(options: Options, network: nn.Module, card: dict[str, Any], lr: float) -> dict[str, Any]:
    """What stands in the card of the network's law; the weights are read from a file, as a user would."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "weights.safetensors"
        weights.save(source, network, card)
        return law_of(
            source,
            lr,
            num_data=options.num_data,
            coordinates=options.coordinates,
            **options.of_one_law,
        )


def blended(
    options: Options, network: nn.Module, card: dict[str, Any], command: str
) -> tuple[nn.Module, dict[str, Any]]:
    """The network on the way to ``options.toward``, and its card.

    The scores of the source are not the blend's and are left out; its curve stays, marked as the source's.
    """
    assert options.toward is not None
    share = 0.5 if options.share is None else options.share
    other, other_card = weights.load(options.toward)
    check_same_rule((f"toward: {options.source}", str(options.toward)), card, other_card)
    between = {
        "share": share,
        "from": card["sha256"],
        "toward": other_card["sha256"],
        "toward_meta_training": with_reproduction(other_card["meta_training"]),
        "curve": "the source's, not the blend's",
        "command": command,
    }
    if "blend" in card["meta_training"]:
        between["from_blend"] = card["meta_training"]["blend"]
    changed = {"meta_training": {**card["meta_training"], "blend": between}, "metrics": {}}
    return blend(network, other, share), {**card, **changed}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    one_core()
    options = tyro.cli(Options, args=arguments, description=__doc__)
    with explained():
        network: nn.Module
        network, card = weights.load(options.source)
        check_asked(card["sampler"], **options.of_one_law)  # before a folder is made
        lr = card["defaults"]["lr"] if options.lr is None else options.lr
        card = {**card, "meta_training": with_reproduction(card["meta_training"])}
        if options.toward is not None:
            network, card = blended(options, network, card, command_line("ship", arguments))
        if options.feature_set is not None:
            card = carried_over(card, options.feature_set, command_line("ship", arguments))
        if options.gate_of is not None:
            gate = weights.load(options.gate_of)
            network, card = with_gate(network, card, *gate, command_line("ship", arguments))
        if options.first_stage is not None:
            first = weights.load_card(options.first_stage)
            stage = {**with_reproduction(first["meta_training"]), "curve": first["curve"]}
            card = {**card, "meta_training": {**card["meta_training"], "first_stage": stage}}
        options.out.mkdir(parents=True, exist_ok=True)
        found = without_infinities(law(options, network, card, lr))
    measured = {**found, "torch": torch.__version__}
    changed = {"name": options.name, "defaults": {**card["defaults"], "lr": lr}, "law": measured}
    path = options.out / f"{options.name}.safetensors"
    weights.save(path, network, {**card, **changed})
    # The badge is what a user's sampler says of itself with these weights.
    sampler = measured_sampler(path, [torch.zeros(1, requires_grad=True)], lr, options.num_data)
    weights.save(path, network, {**card, **changed, "badge": sampler.badge})
    print(f"{path}: {sampler.badge}; {sampler.badge_reason}")


if __name__ == "__main__":
    main()
