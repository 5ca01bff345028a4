"""Classifier for tables that samples eight small networks side by side."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from learned_samplers.estimators.base import BayesianMLP
from learned_samplers.estimators.module import Classes
from learned_samplers.estimators.tables import as_before_on_error, columns_named, is_missing, weighted


class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):
    """Predicts classes from a table with honest probabilities: `fit`, then ``predict_proba(X)``.

    As `BayesianMLPRegressor`, whose arguments (but noise, likelihood and calibration_fraction) and attributes it has;
    ``classes_`` holds the labels in the order of the probabilities.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Sample the posterior of the network's weights given these rows.

        Args:
            X: (rows, features) numbers, finite.
            y: (rows,) labels of two classes at least, numbers or words.
            sample_weight: (rows,) numbers ≥ 0; a weight of 2 counts a row twice in the likelihood.
        """
        self._validate_settings()
        if y is not None and any(map(is_missing, np.ravel(np.asarray(y, dtype=object)))):
            raise ValueError("y has missing labels (None, NaN): leave these rows out")
        with as_before_on_error(self):
            with columns_named(X):
                x, y = validate_data(self, X, y, reset=not self._goes_on, dtype=np.float64, ensure_min_samples=2)
            try:
                check_classification_targets(y)
                classes, numbers = np.unique(y, return_inverse=True)
            except TypeError as error:
                raise TypeError("y has labels of several types, which have no order: make all of them words") from error
            if len(classes) < 2:
                raise ValueError(f"y must hold at least two classes, got one class: {classes.tolist()}")
            continued = self._continued(len(classes), x)
            if continued and not np.array_equal(continued["classes_"], classes):
                raise ValueError(
                    f"warm_start=True goes on with the classes {continued['classes_'].tolist()}, not with "
                    f"{classes.tolist()}: set warm_start=False"
                )
            self.classes_ = classes
            x, numbers, weights = weighted(sample_weight, x, numbers)
            self._sample(x, torch.as_tensor(numbers), len(classes), weights=weights, continued=continued)
        return self

    def _head(self) -> nn.Module:
        return Classes()

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logs = outputs.log_softmax(-1)
        return -logs.gather(-1, targets.expand(logs.shape[:-1])[..., None])[..., 0]

    def _predictions(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = outputs.softmax(-1)
        return probabilities, probabilities.mean((0, 1)).clamp(min=1e-3)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (rows, classes): the average over the samples."""
        return torch.cat([outputs.softmax(-1).mean(0) for _, outputs in self._new(X)]).numpy()

    def predict_samples(self, X: Tensor) -> Tensor:
        """Probabilities of every sample's network, (samples, rows, classes), in the dtype of ``X``.

        Gradients pass to ``X``, a tensor (rows, features), if it requires one.
        """
        return self._outputs_of_tensor(X).softmax(-1).to(X.dtype)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)  # which refuses one that is not fitted
        return self.classes_[probabilities.argmax(1)]
