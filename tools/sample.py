"""Sample the posterior of a network on real images, beside ordinary training with the same budget.

    python tools/sample.py                                              # handwritten digits, a minute
    python tools/sample.py --dataset fashion_mnist --data ~/data --sampler SGD SGHMC --epochs 50 --tune

Every method gets the same number of gradient evaluations. With --chains 4 it runs four chains of each and averages over
all of them; torchrun --nproc_per_node 4 spreads them over processes. Prints a table and writes results.json, table.md,
results.png, tensorboard/, samples/ and predictions/ under --out. Finished runs are read back, not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import tyro
from experiments.harness.options import FLAGS
from experiments.harness.output import command_line, counted, explained, tensorboard_hint, write_outputs
from experiments.harness.runs.methods import METHODS
from experiments.harness.tables import markdown
from experiments.sample.chains import Chains, processes
from experiments.sample.report import content, figure, rows
from experiments.sample.sampling import SampleOptions, Sampling


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
        if options.chains is None:
            runs, tuning = Sampling(options, data, ood).all()
            table = markdown(rows(runs, out, reference))
        else:
            with processes() as group:
                chains = Chains(options, data, ood, group)
                runs, tuning = chains.all()
            if group.rank:
                return
            table = f"{markdown(rows(runs, out, reference))}\n\n{markdown(chains.rows)}"
    write_outputs(out, command_line("sample", arguments), table, content(runs, tuning))
    figure(out / "results.png", runs, f"{settings.dataset}, {settings.model}, {steps} gradients", out)
    over = f"mean ± standard deviation over {counted(options.seeds, 'seed')}"
    if options.chains is not None:
        over = f"{counted(options.chains, 'chain')} together; R̂ of the true labels' log-probabilities and of weights"
    print(f"\n{table}\n\n{over}; ECE in 15 bins; seconds of training alone")
    named = {"table": "table.md", "results": "results.json", "figure": "results.png", "posterior samples": "samples"}
    for what, name in {**named, "predictions": "predictions"}.items():
        if not (out / name).exists():  # a regression has no figure, chains have folders of samples
            continue
        print(f"{what + ':':20}{out / name}")
    print(f"{tensorboard_hint(out / 'tensorboard')}\ndone in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
