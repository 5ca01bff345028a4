"""Meta-objectives: how good the states are that a sampler collects in an inner loop.

- `BMALoss` ("bma"): negative log-likelihood of the Bayesian model average on validation data, the default.
- `CELoss` ("ce"): mean negative log-likelihood of the single states.
- `SteinKL` ("stein_kl"): KL divergence from the posterior; it has a gradient only, for `TruncatedBackpropagation`.

An objective accumulates what it needs of one state after another and never keeps the states' predictions.
`objective_named` finds one by its name. To add one: subclass `Objective` in a file of this folder and put the class
into `OBJECTIVES`.
"""

from learned_samplers.base import validation
from meta_tasks.objectives.base import Objective
from meta_tasks.objectives.predictive import BMALoss, CELoss
from meta_tasks.objectives.stein import SteinKL, stein_score

__all__ = ["OBJECTIVES", "BMALoss", "CELoss", "Objective", "SteinKL", "objective_named", "stein_score"]

#: Every objective by its name, which options and checkpoints use.
OBJECTIVES: dict[str, type[Objective]] = {objective.name: objective for objective in (BMALoss, CELoss, SteinKL)}


def objective_named(name: str) -> type[Objective]:
    """The class of the objective of that name.

    Raises:
        ValueError: there is none.
    """
    validation.one_of("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
