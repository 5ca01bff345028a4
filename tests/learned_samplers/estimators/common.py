"""Small estimators, whose fits take a second, and a table with noise that depends on a column."""

import numpy as np

from learned_samplers.estimators import BayesianMLPRegressor

SMALL = {"n_chains": 2, "n_samples": 5, "n_steps": 40, "tuning_steps": 20, "warmup_steps": 150, "random_state": 0}
SMALL |= {"hidden_layer_sizes": (8,)}


def table(rows=200, seed=0):
    """y = x₀ + (0.1 + 0.4·[x₁ > 0])·ξ."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (rows, 2))
    return x, 10 + 3 * (x[:, 0] + (0.1 + 0.4 * (x[:, 1] > 0)) * random.standard_normal(rows))


def regressor(**settings):
    return BayesianMLPRegressor(**{**SMALL, "n_steps": 300, "tuning_steps": 200, "n_samples": 20, **settings})
