"""Estimators for tables in scikit-learn's conventions: `fit`, `predict`, and an honest spread."""

from learned_samplers.base.optional import require

require("sklearn", "estimators")  # the estimators below are classes of its

from learned_samplers.estimators.classifier import BayesianMLPClassifier  # noqa: E402
from learned_samplers.estimators.regressor import SEARCH, BayesianMLPRegressor  # noqa: E402

__all__ = ["SEARCH", "BayesianMLPClassifier", "BayesianMLPRegressor"]
