"""Measures how fast the library is on this machine, each thing beside its peers in one sitting.

    python tools/benchmark.py step      # time per step of every sampler

Rounds are interleaved; compare the numbers as ratios, within one run.
"""

from __future__ import annotations

import tyro
from _benchmark_step import StepBenchmark

BENCHMARKS = {"step": StepBenchmark}


def main() -> None:
    tyro.extras.subcommand_cli_from_dict(BENCHMARKS, description=__doc__).run()


if __name__ == "__main__":
    main()
