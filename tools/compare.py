"""Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets.

    python tools/compare.py --preset digits                              # needs no file; minutes of one core
    python tools/compare.py --preset cifar10 --data ~/data --networks L2E=my.safetensors

Tuning is by validation NLL over several seeds and never by test images, with equally many settings for every method: at
the smallest budget a balanced choice of learning rates and of what else a method tunes, then a few near the best; at
every larger budget its best settings again in full (successive halving), and a few more. The winner runs over all
seeds, which the tuning has not seen. A seed has the same initial weights and minibatches for every method. Runs are
kept: a command that was interrupted goes on where it was.

Under --out: table.md, results.json, the figures of each budget, and steps_<budget>/ with every run, its samples and its
TensorBoard curves.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.compare.comparison import Comparison
from experiments.compare.figures import draw_all
from experiments.compare.options import parse_compare
from experiments.compare.report import BudgetReport, write_results
from experiments.harness.output import command_line, explained, tensorboard_hint
from experiments.harness.runs.methods import METHODS

from meta_tasks.progress import progress


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse_compare(arguments, f"{__doc__}\nMethods: {', '.join(METHODS)}.")
        data, ood = options.load()
        reference = options.load_reference(data)
    out, budgets = options.folder(), options.all_budgets(data)
    print(f"{options.describe(data)}; budgets of {', '.join(map(str, budgets))} minibatch gradients a run")
    reports: list[BudgetReport] = []
    text = ""
    with explained(out), progress(unit="grad", smoothing=0.05) as bar:
        comparison = Comparison(options, data, bar, ood, reference)
        for budget in budgets:
            reports.append(comparison.report(budget))
            text = write_results(out, reports, command_line("compare", arguments))
            draw_all(reports[-1], out)
    print(f"\n{text}\n\nin {out}: table.md, results.json, the figures, and every run under steps_<budget>/")
    print(tensorboard_hint(out))


if __name__ == "__main__":
    main()
