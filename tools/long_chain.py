"""Run a long chain of Meta-SGMCMC on MNIST: does its law drift, do numbers become non-finite, does memory grow?

    python tools/long_chain.py --network meta-sgmcmc-mnist --epochs 20

Runs one chain on 784-20-10 (--hidden for another network) and prints a table with a row for each block of epochs. The
chain itself stops with the parameter's name where a gradient or the energy is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import tyro
from experiments.harness.output import explained
from experiments.images.settings import Settings
from experiments.meta_training.long_chain import Options, chain, table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    torch.set_num_threads(1)
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        data = Settings(dataset="mnist").load_data(options.data)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
        found = table(chain(options, data))
        print(found)
        if options.out is not None:
            options.out.write_text(found + "\n")


if __name__ == "__main__":
    main()
