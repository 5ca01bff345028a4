"""Estimators of the meta-gradient: how a sampler's meta-parameters should change to lower the meta-objective.

- `AntitheticES`: evolution strategies over whole inner loops; only loss values are needed.
- `NoiseReuseES`: evolution strategies that update after every window of an inner loop.
- `TruncatedBackpropagation`: back-propagation through the last steps of parallel chains.

An `Estimator` lists the work of an iteration (`jobs`), names the `Evaluator` that runs it (here or in workers), and
makes a gradient of the results (`estimate`). `Shaping` says how evolution strategies weigh losses of different tasks.
"""

from meta_tasks.estimators.base import Episodes, Estimator, Evaluator, Job, JobResult, antithetic_members, perturbation
from meta_tasks.estimators.evolution import AntitheticES, EvolutionStrategies, NoiseReuseES, Shaping
from meta_tasks.estimators.truncated import ChainEvaluator, TruncatedBackpropagation

__all__ = [
    "AntitheticES",
    "ChainEvaluator",
    "Episodes",
    "Estimator",
    "Evaluator",
    "EvolutionStrategies",
    "Job",
    "JobResult",
    "NoiseReuseES",
    "Shaping",
    "TruncatedBackpropagation",
    "antithetic_members",
    "perturbation",
]
