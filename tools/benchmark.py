"""Measures how fast the library is on this machine, each thing beside its peers in one sitting.

    python tools/benchmark.py step      # time per step of every sampler
    python tools/benchmark.py inner     # member-steps per second of the meta-trainer's inner loop
    python tools/benchmark.py particles # time per step of the particle samplers against particles and tasks
    python tools/benchmark.py memory    # peak memory of a step of the particle samplers
    python tools/benchmark.py lenet     # ways to compute the gradients of multi_task.py's particles

Rounds are interleaved; compare the numbers as ratios, within one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.benchmarks.inner import InnerBenchmark, benchmark_inner
from experiments.benchmarks.lenet import LeNetBenchmark, benchmark_lenet
from experiments.benchmarks.memory import MemoryBenchmark, benchmark_memory
from experiments.benchmarks.particles import ParticleBenchmark, benchmark_particles
from experiments.benchmarks.step import StepBenchmark, benchmark_steps

COMMANDS = {
    "step": (StepBenchmark, benchmark_steps),
    "inner": (InnerBenchmark, benchmark_inner),
    "particles": (ParticleBenchmark, benchmark_particles),
    "memory": (MemoryBenchmark, benchmark_memory),
    "lenet": (LeNetBenchmark, benchmark_lenet),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    kinds = {name: kind for name, (kind, _) in COMMANDS.items()}
    options = tyro.extras.subcommand_cli_from_dict(kinds, args=arguments, description=__doc__)
    next(action for kind, action in COMMANDS.values() if type(options) is kind)(options)


if __name__ == "__main__":
    main()
