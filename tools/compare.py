"""Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets.

    python tools/compare.py --preset digits                              # needs no file; minutes of one core
    python tools/compare.py --preset cifar10 --data ~/data --networks L2E=my.safetensors
    python tools/compare.py --model mlp --sampler SGD SGHMC --lr 0.1     # given settings: nothing is tuned

Tuning is by validation NLL over several seeds and never by test images, with equally many settings for every method: at
the smallest budget a balanced choice of learning rates and of what else a method tunes, then a few near the best; at
every larger budget its best settings again in full (successive halving), and a few more. The winner runs over all
seeds, which the tuning has not seen. A seed has the same initial weights and minibatches for every method. With --lr or
--given-settings nothing is tuned.

Runs are kept, and the states of unfinished ones (--state): a command that was interrupted goes on where it was. After
each method the tables are written, so that a command that is stopped leaves them.

Under --out: table.md, results.json, the figures of each budget, and steps_<budget>/ with every run, its samples and its
predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.compare.comparison import Comparison
from experiments.compare.options import parse_compare
from experiments.harness.output import command_line, counted, explained
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.training import gradient_seconds
from experiments.harness.study import carry_out


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse_compare(arguments, f"{__doc__}\nMethods: {', '.join(METHODS)}.")
        options = replace(options, out=options.folder())
        comparison = Comparison(options)
        data = comparison.images
        options.check(data)
    total, seconds = options.planned_gradients(data), gradient_seconds(options.settings, data)
    print(
        f"{options.describe(data)}; budgets of {', '.join(map(str, options.all_budgets(data)))} minibatch gradients\n"
        f"{total:,} gradients in all: {counted(max(1, round(total * seconds / 60)), 'minute')} or more on this machine "
        "(runs that are kept cost nothing); a command that is stopped leaves its table, and goes on when it is repeated"
    )
    with explained(options.out):
        carry_out(comparison, options, command_line("compare", arguments))


if __name__ == "__main__":
    main()
