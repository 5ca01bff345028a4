"""The posterior of a network on one-dimensional regression: L2E beside HMC (Appendix G of the L2E paper).

    python tools/regression.py                                # writes runs/regression/regression.png and .json
    python tools/regression.py --network my.safetensors

The data are y = sin(x) + noise on [−5, −1] ∪ [1, 4]. Look at the gap and the ends, where there are no data: HMC,
which samples the posterior itself, shows how uncertain a sampler should be there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import tyro
from experiments.harness.output import command_line, explained
from experiments.toys.regression import Options, Runs, write


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(Options, args=arguments, description=__doc__)
        torch.set_num_threads(1)
        table, acceptance = write(Runs(options), command_line("regression", arguments))
    print(f"HMC accepts {acceptance:.2f} of its proposals. Standard deviation of the function:")
    for name, row in table.items():
        print(
            f"{name:14} at the data {row['std_data']:.3f}  in the gap {row['std_gap']:.3f}  outside "
            f"{row['std_outside']:.3f}  error of the mean {row['rmse_data']:.3f}  {row['seconds']:.0f} s"
        )
    print(f"figure: {options.out / 'regression.png'}")


if __name__ == "__main__":
    main()
