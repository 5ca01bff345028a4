"""Bayesian optimisation over posterior samples: a BoTorch model whose ensemble they are."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.optional import require

require("botorch", "botorch")
from botorch.models.ensemble import EnsembleModel  # noqa: E402  (after the line that says how to install it)


class SampledFunctions(EnsembleModel):
    """BoTorch model of the functions that posterior samples stand for, one a sample, in equal shares.

    Acquisition functions by Monte Carlo optimise over it as over a Gaussian process; its posterior is an
    ``EnsemblePosterior``::

        model = SampledFunctions(regressor.predict_samples)  # a fitted BayesianMLPRegressor
        acquisition = qLogExpectedImprovement(model, best_f=y.max())
        candidate, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)

    Of any `PosteriorSamples`: ``SampledFunctions(partial(posterior.predict_samples, output="regression"))``.

    The functions are without noise, which is what expected improvement over the best of noisy observations asks for.

    Args:
        draws: function of inputs (N, d) to the values of every sample, (K, N) or (K, N, m), with gradients.
        num_outputs: m.
        maximize: False negates the values, because BoTorch maximises.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name; from ``posterior``, values of another shape.
    """

    def __init__(self, draws: Callable[[Tensor], Tensor], *, num_outputs: int = 1, maximize: bool = True) -> None:
        super().__init__()
        if not callable(draws):
            raise TypeError(f"draws must be a function of inputs (N, d), got {type(draws).__name__}")
        validation.integer("num_outputs", num_outputs)
        validation.truth("maximize", maximize)
        self._draws, self._num_outputs, self._sign = draws, num_outputs, 1.0 if maximize else -1.0

    def forward(self, X: Tensor) -> Tensor:
        """Return values (..., K, q, m) at inputs (..., q, d)."""
        rows = X.reshape(-1, X.shape[-1])
        values = self._draws(rows)
        shape = tuple(values.shape)
        if values.ndim == 2:
            values = values.unsqueeze(-1)
        if values.ndim != 3 or values.shape[1:] != (len(rows), self._num_outputs):
            raise ValueError(
                f"draws must give (samples, {len(rows)}, {self._num_outputs}) for {len(rows)} inputs and "
                f"num_outputs={self._num_outputs}, got {shape}"
            )
        values = values.unflatten(1, X.shape[:-1]).movedim(0, -3)
        return self._sign * values.to(X.dtype)
