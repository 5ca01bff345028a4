"""Sample the posterior of a network on real images, beside ordinary training with the same budget.

    python tools/sample.py                                              # handwritten digits, a minute
    python tools/sample.py --dataset fashion_mnist --data ~/data --sampler SGD SGHMC --epochs 50 --lr 0.1

Every method gets the same number of gradient evaluations; rates are tuned by compare.py. Prints a table and writes
results.json, table.md, results.png, tensorboard/, samples/ and predictions/ under --out. Finished runs are read back,
not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import tyro
from experiments.harness.options import FLAGS
from experiments.harness.output import command_line, counted, explained, tensorboard_hint, write_outputs
from experiments.harness.runs.methods import METHODS
from experiments.harness.tables import markdown
from experiments.sample.report import content, figure, rows
from experiments.sample.sampling import SampleOptions, all_runs


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    start = time.perf_counter()
    with explained():
        description = f"{__doc__}\nMethods: {', '.join(METHODS)}."
        options = tyro.cli(SampleOptions, args=arguments, description=description, config=(FLAGS,))
        data, ood = options.load()
        reference = options.load_reference(data)
    settings, out = options.settings, options.folder()
    steps = settings.budget(data.num_data)
    others = ", ".join(each.name for each in ood.values()) or "none"
    print(f"{options.describe(data)}; budget of {steps} minibatch gradients a run; out of distribution: {others}")
    with explained(out):
        runs = all_runs(options, data, ood)
        table = markdown(rows(runs, out, reference))
    write_outputs(out, command_line("sample", arguments), table, content(runs))
    figure(out / "results.png", runs, f"{settings.dataset}, {settings.model}, {steps} gradients", out)
    print(f"\n{table}\n\nmean ± standard deviation over {counted(options.seeds, 'seed')}; ECE in 15 bins")
    print(f"in {out}: table.md, results.json, results.png, samples/ and predictions/")
    print(f"{tensorboard_hint(out / 'tensorboard')}\ndone in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
