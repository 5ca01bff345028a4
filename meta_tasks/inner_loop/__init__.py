"""The inner loop: many samplers run side by side on one task, and their collected states judged.

- `Unroll` runs P members in groups that share all randomness (antithetic pairs), and reads a meta-objective.
- `unrolls_of` puts runs on several tasks into as few unrolls as their networks allow.
- `ChainUnroll` runs parallel chains and gives the gradient of a loss of their states by back-propagation.
- `Schedule` says for how many steps a loop runs and which states it collects; `Horizon` draws schedules.
"""

from meta_tasks.inner_loop.batching import Run, unrolls_of
from meta_tasks.inner_loop.chains import ChainUnroll
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.inner_loop.unroll import Unroll

__all__ = ["ChainUnroll", "Horizon", "Run", "Schedule", "Unroll", "unrolls_of"]
