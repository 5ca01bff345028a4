"""What a Meta-SGMCMC network has learned: contours of the curl and the friction over energy, momentum and gradient.

python tools/contours.py meta-sgmcmc-mnist --energy 2.5 --gradient 2 --out contours.png
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from learned_samplers import weights
from learned_samplers.l2e_network import layers_of
from meta_tasks.figures import meta_contours


@dataclass(frozen=True)
class Options:
    """Contours of a Meta-SGMCMC network's curl and friction."""

    # Weights: a path or the name of shipped ones.
    network: tyro.conf.Positional[str]
    # End of the energy's axis, in the units of the networks' inputs.
    energy: float = 5.0
    # End of the gradient's axis, likewise.
    gradient: float = 3.0
    # File for the figure.
    out: Path = Path("contours.png")

    def __post_init__(self) -> None:
        for argument in ("energy", "gradient"):
            if not getattr(self, argument) > 0:
                raise ValueError(f"{argument} must be positive, got {getattr(self, argument)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    try:
        options = tyro.cli(Options, args=arguments, description=__doc__)
        network, card = weights.load(weights.find(options.network))
        if card["sampler"] != "MetaSGMCMC":
            raise ValueError(f"network={options.network!r} is of {card['sampler']}, not of MetaSGMCMC")
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    scales = {key: card["scales"][key] for key in ("curl_clip", "friction_scale") if key in card["scales"]}
    meta_contours(
        layers_of(network), largest_energy=options.energy, largest_gradient=options.gradient,
        absolute=card["form"] == "absolute", **scales,
    ).savefig(options.out, dpi=110)  # fmt: skip
    print(options.out)


if __name__ == "__main__":
    main()
