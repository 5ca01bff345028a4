"""Draw what a learned sampler's network does: contours of its outputs over its inputs.

python tools/contours.py l2e --out contours.png
python tools/contours.py meta-sgmcmc-mnist --energy 2.5 --gradient 2 --out contours.png

Of L2E (and PrecondL2E) both outputs over gradient, parameter and momentum; of Meta-SGMCMC the curl and the friction
over energy, momentum and gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from experiments.harness.output import explained
from matplotlib.figure import Figure

from learned_samplers.learned import weights
from learned_samplers.learned.network import layers_of
from meta_tasks.rules.contours import meta_contours, output_contours
from meta_tasks.rules.learned import L2ERule, MetaSGMCMCRule, PrecondL2ERule, rule_from_card


@dataclass(frozen=True)
class Options:
    """Contours of a learned sampler's network."""

    # Weights: a path or the name of shipped ones.
    network: tyro.conf.Positional[str]
    # End of the energy's axis, in the units of the networks' inputs (Meta-SGMCMC); by default 5.
    energy: float | None = None
    # End of the gradient's axis, in the units of the networks' inputs; for L2E the end of all axes.
    gradient: float = 3.0
    # File for the figure.
    out: Path = Path("contours.png")

    def __post_init__(self) -> None:
        for argument in ("energy", "gradient"):
            value = getattr(self, argument)
            if value is not None and not value > 0:
                raise ValueError(f"{argument} must be positive, got {value}")


def draw(options: Options) -> Figure:
    """The figure.

    Raises:
        ValueError, FileNotFoundError: there are no such weights, or none that can be drawn, or not over the energy.
    """
    network, card = weights.load(weights.find(options.network))
    rule, phi = rule_from_card(card), layers_of(network)
    if isinstance(rule, MetaSGMCMCRule):
        energy = 5.0 if options.energy is None else options.energy
        return meta_contours(phi, rule.settings, largest_energy=energy, largest_gradient=options.gradient)
    if not isinstance(rule, L2ERule | PrecondL2ERule):
        raise ValueError(f"network={options.network!r} is of {rule.name}, not of L2E, PrecondL2E or MetaSGMCMC")
    if options.energy is not None:
        raise ValueError(f"energy={options.energy}: the network of {rule.name} does not see the energy")
    settings = rule.settings
    return output_contours(
        phi, settings.feature_set, settings.output_bound, extent=options.gradient, names=rule.output_names
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        draw(options).savefig(options.out, dpi=110)
    print(options.out)


if __name__ == "__main__":
    main()
