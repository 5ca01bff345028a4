"""Meta-training: the outer loop that turns a rule with random meta-parameters into a learned sampler.

- `Trainer` composes a task family, a rule and an estimator under `TrainerSettings`; `Trainer.run` trains, writes
  checkpoints, resumes, and stops cleanly at Ctrl-C. An `Iteration` is what one step of it showed.
- `SerialExecutor`, `ProcessExecutor` and `RankExecutor` run the jobs: here, in worker processes, on torchrun's ranks.
- `HeldOutEvaluation` scores the sampler on tasks that it is not trained on, beside hand-designed samplers.
- `Checkpoints` and `Monitor` write checkpoint files and TensorBoard logs.
"""

from meta_tasks.training.checkpoint import Checkpoints
from meta_tasks.training.evaluation import HeldOutEvaluation, Score
from meta_tasks.training.monitoring import Iteration, Monitor
from meta_tasks.training.settings import TrainerSettings
from meta_tasks.training.trainer import Trainer
from meta_tasks.training.workers import Executor, ProcessExecutor, RankExecutor, SerialExecutor

__all__ = [
    "Checkpoints",
    "Executor",
    "HeldOutEvaluation",
    "Iteration",
    "Monitor",
    "ProcessExecutor",
    "RankExecutor",
    "Score",
    "SerialExecutor",
    "Trainer",
    "TrainerSettings",
]
