"""Measure what a meta-trained network does and put it, with its card, where the package looks for it.

    python tools/ship.py runs/l2e/weights.safetensors l2e              # writes pretrained/l2e.safetensors and .json
    python tools/ship.py runs/l2e/weights.safetensors l2e --out /tmp   # or elsewhere
    python tools/ship.py runs/l2e/weights.safetensors l2e --replaces pretrained/l2e.safetensors --data ~/data

The card gets a field "law": `check_sampler` on two Gaussians, and of L2E the violation of Assumption 3.1 and what each
term of a step does, at the learning rate that the card recommends. The badge follows from it: "O(h)" for a sampler that
claims an invariant law (KineticL2E, MetaSGMCMC) whose bias was seen to vanish with the step size, else "heuristic".
Under "meta_training" stands how to get the weights again: "reproduce" is the command of the training. "learned" and
"chosen" say in a sentence each what training found and what a person decided.

With --replaces both networks are run on held-out tasks of the new one's training, at its horizon and the best of its
learning rates. Where the new one's mean NLL is higher by more than two standard errors of the difference, nothing is
written; else the card has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import tyro
from experiments.harness.options import at_least, positive
from experiments.harness.output import explained
from experiments.meta_training.law import given_rate, law_of
from experiments.meta_training.replaced import difference
from experiments.meta_training.training import without_infinities

from learned_samplers.base import validation
from learned_samplers.learned import weights
from learned_samplers.learned.cards import sampler_from_card
from meta_tasks.training.process import one_core


@dataclass(frozen=True)
class Options:
    """Measure what a meta-trained network does and put it, with its card, where the package looks for it."""

    source: tyro.conf.Positional[Path]  # Weight file of a meta-training.
    name: tyro.conf.Positional[str]  # Name to ship it under.
    # One sentence: what was learned (how many numbers, on what, for how long); by default the card's.
    learned: str | None = None
    chosen: str | None = None  # One sentence: what a person chose; by default the card's.
    lr: float | None = None  # Learning rate that the card recommends; by default the one in the card.
    num_data: int = 50_000  # N of the Gaussians.
    # Independent coordinates of each Gaussian (Meta-SGMCMC: ten times as many chains). Standard errors fall with the
    # square root of the number.
    coordinates: int = 2000
    # MetaSGMCMC only: mean loss at the mode of the Gaussians on which it is measured (its networks see the energy), by
    # default 0.
    energy: float | None = None
    # Weight file that the meta-training started from; its command and curve go into the card too.
    first_stage: Path | None = None
    replaces: Path | None = None  # Weight file that it replaces, to be measured against.
    tasks: int = 24  # Held-out tasks of that measurement.
    # Folder of the data files; by default LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers.
    data: str | None = None
    out: Path = Path(__file__).parents[1] / "pretrained"  # Folder to write to; by default the package's.

    def __post_init__(self) -> None:
        positive(self, "lr")
        at_least(1, self, "num_data")
        at_least(2, self, "coordinates", "tasks")
        if self.energy is not None:
            validation.number("energy", self.energy)


def ship(options: Options) -> Path:
    """Measure and write; returns the weight file.

    Raises:
        ValueError, OSError: the weights cannot be read, are of no learned sampler, or are worse than those that they
            replace; nothing is written.
    """
    network, card = weights.load(options.source)
    lr = given_rate(card, options.lr)
    training = dict(card["meta_training"])
    if options.first_stage is not None:
        first = weights.load_card(options.first_stage)
        training["first_stage"] = {**first["meta_training"], "curve": first["curve"]}
    sentences = {name: text for name in ("learned", "chosen") if (text := getattr(options, name)) is not None}
    if options.replaces is not None:
        replaced = difference(options.source, options.replaces, options.tasks, options.data)
        print(replaced)
        if replaced.worse:
            raise ValueError(f"replaces={options.replaces}: the new weights are worse, {replaced}")
        card["metrics"] = {**card.get("metrics", {}), "replaced": asdict(replaced)}
    card = {
        **card,
        **sentences,
        "name": options.name,
        "meta_training": training,
        "defaults": {**card["defaults"], "lr": lr},
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        weights.save(file, network, card)
        law = law_of(file, lr, num_data=options.num_data, coordinates=options.coordinates, energy=options.energy)
        measured = {**card, "law": {**without_infinities(law), "torch": torch.__version__}}
        weights.save(file, network, measured)
        # The badge is what a user's sampler says of itself with these weights.
        sampler = sampler_from_card(file, [torch.zeros(1, requires_grad=True)], lr, options.num_data)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.safetensors"
    weights.save(path, network, {**measured, "badge": sampler.badge})
    print(f"{path}: {sampler.badge}; {sampler.badge_reason}")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    one_core()
    with explained():
        ship(tyro.cli(Options, args=arguments, description=__doc__))


if __name__ == "__main__":
    main()
