"""How many gradients to HMC's predictions? By the protocol of experiments/distance: a table and a figure.

    python tools/distance.py                             # digits and a regression: an hour of one core
    python tools/distance.py --parts digits --rows SGHMC L2E "AdaptedSGHMC(warmup=L2E)"

Under --out: table.md, results.json, distance.png and every run: the same command goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from experiments.distance.experiment import DistanceOptions, Experiment
from experiments.distance.report import figure, table
from experiments.harness.output import command_line, explained, settings_of, write_outputs


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(DistanceOptions, args=arguments, description=__doc__)
        options = replace(options, out=options.out or Path("runs/distance"))
        torch.set_num_threads(options.threads)
    out, findings, text = Path(str(options.out)), dict[str, Any](), ""
    with explained(out):
        for name in options.parts:
            for part in Experiment(options, name).all():
                findings[name] = part
                text = table(findings)
                content = {"settings": settings_of(options), "parts": findings}
                write_outputs(out, command_line("distance", arguments), text, content)
                figure(findings, out / "distance.png")
    print(f"{text}\n\nwritten to {out}")


if __name__ == "__main__":
    main()
