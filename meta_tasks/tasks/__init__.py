"""Tasks, on which samplers run, and task families, from which tasks are drawn.

- `TaskConfig` describes an image-classification task (data set, network, settings of the sampler); `ImageTask` is the
  task itself. `Task` lists what an inner loop needs of any task.
- `ImageTaskFamily` is a distribution over image tasks; `family_named` gives the presets in `FAMILIES`, of which
  "digits" needs no download.
- `TaskStack` is several image tasks of one network in one batch.
- `GaussianFamily` draws `GaussianTask`s: posteriors of known moments, for toy experiments.
"""

from meta_tasks.tasks.family import ImageTaskFamily, TaskFamily
from meta_tasks.tasks.gaussians import GaussianFamily, GaussianTask
from meta_tasks.tasks.presets import FAMILIES, family_named
from meta_tasks.tasks.stack import TaskStack
from meta_tasks.tasks.task import ImageTask, Task, TaskConfig

__all__ = [
    "FAMILIES",
    "GaussianFamily",
    "GaussianTask",
    "ImageTask",
    "ImageTaskFamily",
    "Task",
    "TaskConfig",
    "TaskFamily",
    "TaskStack",
    "family_named",
]
