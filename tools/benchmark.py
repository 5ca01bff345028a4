"""Measures how fast the library is on this machine, each thing beside its peers in one sitting.

    python tools/benchmark.py step      # time per step of every sampler
    python tools/benchmark.py inner     # member-steps per second of the meta-trainer's inner loop
    python tools/benchmark.py update    # the same with and without the compiled update, and in another checkout
    python tools/benchmark.py particles # time per step of the particle samplers against particles and tasks
    python tools/benchmark.py memory    # state and peak memory of a step of every sampler
    python tools/benchmark.py constants # bytes and seconds per weight, the constants of docs/scaling.md
    python tools/benchmark.py lenet     # ways to compute the gradients of multi_task.py's particles
    python tools/benchmark.py forms     # forms of a network's gradient: compiled, channels last, bfloat16

Rounds are interleaved; compare the numbers as ratios, within one run.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.benchmarks.constants import ConstantsBenchmark, benchmark_constants
from experiments.benchmarks.forms import FormsBenchmark, benchmark_forms
from experiments.benchmarks.inner import InnerBenchmark, benchmark_inner
from experiments.benchmarks.lenet import LeNetBenchmark, benchmark_lenet
from experiments.benchmarks.memory import MemoryBenchmark, benchmark_memory
from experiments.benchmarks.particles import ParticleBenchmark, benchmark_particles
from experiments.benchmarks.step import StepBenchmark, benchmark_steps
from experiments.benchmarks.update import UpdateBenchmark, benchmark_update
from experiments.harness.options import Action, parse_command
from experiments.harness.output import command_line, explained

COMMANDS: dict[str, tuple[type, Action]] = {
    "step": (StepBenchmark, benchmark_steps),
    "inner": (InnerBenchmark, benchmark_inner),
    "update": (UpdateBenchmark, benchmark_update),
    "particles": (ParticleBenchmark, benchmark_particles),
    "memory": (MemoryBenchmark, benchmark_memory),
    "constants": (ConstantsBenchmark, benchmark_constants),
    "lenet": (LeNetBenchmark, benchmark_lenet),
    "forms": (FormsBenchmark, benchmark_forms),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options, action = parse_command(COMMANDS, arguments, __doc__)
        action(options, command_line("benchmark", arguments))


if __name__ == "__main__":
    main()
