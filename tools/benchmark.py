"""Measures how fast the library is on this machine, each thing beside its peers in one sitting.

    python tools/benchmark.py step      # time per step of every sampler
    python tools/benchmark.py inner     # member-steps per second of the meta-trainer's inner loop
    python tools/benchmark.py particles # time per step of the particle samplers against particles and tasks
    python tools/benchmark.py memory    # peak memory of a step of the particle samplers

Rounds are interleaved; compare the numbers as ratios, within one run.
"""

from __future__ import annotations

import tyro
from experiments.benchmarks.inner import InnerBenchmark, benchmark_inner
from experiments.benchmarks.memory import MemoryBenchmark, benchmark_memory
from experiments.benchmarks.particles import ParticleBenchmark, benchmark_particles
from experiments.benchmarks.step import StepBenchmark, benchmark_steps


def main() -> None:
    options = tyro.extras.subcommand_cli_from_dict(
        {
            "step": StepBenchmark,
            "inner": InnerBenchmark,
            "particles": ParticleBenchmark,
            "memory": MemoryBenchmark,
        },
        description=__doc__,
    )
    if isinstance(options, InnerBenchmark):
        benchmark_inner(options)
    elif isinstance(options, ParticleBenchmark):
        benchmark_particles(options)
    elif isinstance(options, MemoryBenchmark):
        benchmark_memory(options)
    else:
        benchmark_steps(options)


if __name__ == "__main__":
    main()
