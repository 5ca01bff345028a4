"""Leave out of a learned direction what fresh tasks cannot tell from noise.

    # the options of the tasks and of the rule are those of the training; see its card, "reproduce"
    python tools/prune.py --folder runs/pruned --family direction --linear --normalise-output True \\
        --direction-share 1 --start-feature average_0.9_to_rms --start-weights pretrained/l2e-sparse.safetensors \\
        --feature-set orthogonal_whitened --beta-scale 10 --friction-scale 0 --reference-data 50000 \\
        --horizon 300 1000 --burn-in .8

The direction's largest components alone, one, two and so on to all, run side by side on the same fresh tasks, which no
meta-training draws. The sparsest direction that is within one standard error of the best, by paired differences, is
written to the folder with its card. The losses of tasks that are done are kept there: the same command goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.harness.output import command_line, explained
from experiments.meta_training.pruned import Options, run

from meta_tasks.training.process import one_core


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    one_core()
    with explained():
        print(run(tyro.cli(Options, args=arguments, description=__doc__), command_line("prune", arguments)))


if __name__ == "__main__":
    main()
