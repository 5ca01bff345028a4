"""A benchmark of samplers against known posteriors, which others can enter: ``python -m learned_samplers.benchmark``.

`targets` holds the five posteriors and their references, `run` what a sampler does on one, `references` the command
that made the two references that ship as a file. (``tools/benchmark.py`` is another thing: it measures time.)
"""

from learned_samplers.benchmark.run import RATES, benchmark, row
from learned_samplers.benchmark.targets import TARGETS, Target

__all__ = ["RATES", "TARGETS", "Target", "benchmark", "row"]
