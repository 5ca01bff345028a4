"""A figure: which features of a table matter to a network, by the precisions that `Relevance` samples.

friedman1 of scikit-learn: 500 rows, ten features, of which the first five enter the target, with noise of deviation 1.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from learned_samplers.estimators import BayesianMLPRegressor
from learned_samplers.priors import Relevance


def figure(out: Path) -> list[str]:
    """Fit the estimator, draw its ``feature_relevance_``, and return the numbers as lines."""
    x, y = make_friedman1(500, n_features=10, noise=1.0, random_state=0)
    model = BayesianMLPRegressor(prior_precision=Relevance(), random_state=0).fit(x, y)
    relevance = model.feature_relevance_
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    colours = ["tab:blue"] * 5 + ["tab:gray"] * 5
    axes.bar(range(1, 11), relevance, color=colours)
    axes.set_xticks(range(1, 11))
    axes.set_xlabel("feature: the first five enter the target, the others are noise")
    axes.set_ylabel("feature_relevance_")
    file = out / "relevance.png"
    figure.savefig(file, dpi=150)
    plt.close(figure)
    numbers = ", ".join(f"{value:.2f}" for value in relevance)
    return [f"feature_relevance_: {numbers}", f"{model.verdict_.text}", f"written to {file}"]
