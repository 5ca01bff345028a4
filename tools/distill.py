"""Make one network of L2E of two: one that was learned on few training data, one on many.

    python tools/distill.py runs/few/weights.safetensors runs/many/weights.safetensors --folder runs/distilled

What evolution strategies gain on small data sets they lose on large ones, and a network that does not see N cannot do
both. Here both networks run on tasks of a family; the features x that they meet are kept; and a network that sees
log₁₀(N)/3 − 1 (feature set "adaptive_data", "adaptive" and one more; the two may have either) is fitted by least
squares to

    (1 − w)·many(x) + w·few(x),    w = clamp(log(N₁/N) / log(N₁/N₀), 0, 1),

both outputs, each over the variance of its target (or a hundredth of the other's, if that is more). It takes minutes,
and no gradient of any task. The folder gets weights.safetensors and its card, as from `tools/meta_train.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.harness.output import command_line, explained
from experiments.meta_training.distillation import Options, run

from meta_tasks.training.process import one_core


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    one_core()
    with explained():
        print(run(tyro.cli(Options, args=arguments, description=__doc__), command_line("distill", arguments)))


if __name__ == "__main__":
    main()
