"""Measures how fast the library is on this machine, each thing beside its peers in one sitting.

    python tools/benchmark.py step      # time per step of every sampler, and of training steps
    python tools/benchmark.py memory    # state and peak memory of a step of every sampler
    python tools/benchmark.py chains    # eight small networks side by side, beside one alone

Rounds are interleaved; compare the numbers as ratios, within one run. `step` takes a quarter of an hour and says of
each part how long it takes; the others take minutes. Tables of the parts that are finished are left when it
is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.benchmarks.memory import MemoryBenchmark, benchmark_memory
from experiments.benchmarks.step import ChainsBenchmark, StepBenchmark, benchmark_chains, benchmark_steps
from experiments.harness.options import parse_command
from experiments.harness.output import command_line, explained

COMMANDS: dict[str, tuple[type, Callable[[Any, str], None]]] = {
    "step": (StepBenchmark, benchmark_steps),
    "memory": (MemoryBenchmark, benchmark_memory),
    "chains": (ChainsBenchmark, benchmark_chains),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, action = parse_command(COMMANDS, arguments, __doc__)
        action(options, command_line("benchmark", arguments))


if __name__ == "__main__":
    main()
