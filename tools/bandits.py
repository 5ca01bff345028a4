"""Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC.

    python tools/bandits.py                                       # 5,000 rounds: about a quarter of an hour of one core
    python tools/bandits.py --problem mushroom --method FSVGD SGHMC --seeds 1
    python tools/bandits.py --preset paper                        # 40,000 rounds, larger networks: hours

Mushrooms (data root: mushroom/agaricus-lepiota.data) and the wheel with several radii. A network predicts what every
arm pays; in every round a member of the posterior is drawn, and the arm that it thinks best is taken. What counts is
the cumulative regret in percent of that of uniform choice.

Under --out: table.md, results.json, figure.png and every run: after an interruption the same command continues.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from experiments.bandits.experiment import Runs, parse
from experiments.bandits.report import report
from experiments.harness.output import command_line, explained


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse(arguments, __doc__)
        experiment = Runs(options)
    torch.set_num_threads(options.threads)
    out = options.folder()
    with explained(out):
        text = report(options, experiment.all(), command_line("bandits", arguments))
    print(f"\n{text}\nwritten to {out}")


if __name__ == "__main__":
    main()
