"""Bayesian networks for tables: a regressor and a classifier that sample eight small networks side by side."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.estimators.sampling import begin_with_means, equalise, flatten, sample, warm_up
from learned_samplers.estimators.tables import (
    as_before_on_error,
    columns_named,
    is_missing,
    location_and_scale,
    refuse_dates,
    rounding,
)
from learned_samplers.estimators.verdict import verdict
from learned_samplers.posterior import Chains

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}
#: With more rows than this gradients are of minibatches of `BATCH` rows.
FULL_ROWS, BATCH = 20_000, 1000
#: Rows whose predictions the verdict looks at.
JUDGED_ROWS = 200
#: Smallest standard deviation of the noise, in standard deviations of the targets.
FLOOR = 0.001
#: Degrees of freedom of the Student likelihood.
FREEDOM = 4.0


class SharedNoise(nn.Module):
    """Appends one number, the same for all rows, to the outputs (N, 1): noise that does not depend on the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(1, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.raw.expand(x.shape[0], 1)], 1)


class BayesianMLP(BaseEstimator):
    """What the regressor and the classifier share: the settings, the fit, and the samples' outputs."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (32, 32),
        activation: str = "tanh",
        *,
        n_chains: int = 8,
        n_samples: int = 50,
        n_steps: int = 1500,
        tuning_steps: int = 1000,
        warmup_steps: int = 3000,
        prior_precision: float = 1.0,
        batch_size: int | str | None = "auto",
        validation_fraction: float = 0.15,
        n_jobs: int | None = 1,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_chains = n_chains
        self.n_samples = n_samples
        self.n_steps = n_steps
        self.tuning_steps = tuning_steps
        self.warmup_steps = warmup_steps
        self.prior_precision = prior_precision
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _validate_settings(self) -> None:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str) or not isinstance(sizes, Sequence):
            raise TypeError(f"hidden_layer_sizes must be a sequence of integers, got {sizes!r}")
        for size in sizes:
            validation.integer("hidden_layer_sizes", size)
        validation.one_of("activation", self.activation, ACTIVATIONS)
        for name in ("n_chains", "n_samples", "n_steps", "tuning_steps", "warmup_steps"):
            validation.integer(name, getattr(self, name))
        if self.n_steps < self.n_samples:
            raise ValueError(f"n_steps must be at least n_samples={self.n_samples}, got {self.n_steps}")
        validation.positive("prior_precision", self.prior_precision)
        validation.fraction("validation_fraction", self.validation_fraction, open_right=True)
        if self.batch_size not in (None, "auto"):
            validation.integer("batch_size", self.batch_size)
        if self.n_jobs not in (None, -1):
            validation.integer("n_jobs", self.n_jobs)

    def _sample(self, x: np.ndarray, targets: Tensor, outputs: int, *tail: type[nn.Module]) -> None:
        """Set the samples and the verdict; ``tail`` are layers after the last linear one."""
        self._mean, self._scale = location_and_scale(x)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with _threads(self.n_jobs), torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            inputs = self._inputs(x)
            sizes = [inputs.shape[1], *self.hidden_layer_sizes, outputs]
            networks = [_network(sizes, self.activation, tail) for _ in range(self.n_chains)]
            chains = Chains(networks, prior_precision=float(self.prior_precision))

            def losses(rows: Tensor | None) -> Tensor:
                some, aims = (inputs, targets) if rows is None else (inputs[rows], targets[rows])
                return self._nll(chains(some), aims).mean(1)

            count = len(inputs)
            order = torch.randperm(count)
            held = int(self.validation_fraction * count)
            held_out, rest = (order[:held], order[held:]) if held >= 5 else (order[:0], order)
            batch: Any = self.batch_size
            if batch == "auto":
                batch = BATCH if count > FULL_ROWS else None
            elif batch is not None and batch >= count:
                batch = None
            fresh = flatten(chains).detach().clone()
            warmed = warm_up(chains, losses, rest, held_out, count, steps=self.warmup_steps)
            if len(held_out) and getattr(self, "noise", None) == "heteroscedastic":

                def squares(rows: Tensor | None) -> Tensor:
                    assert rows is not None
                    return (targets[rows] - chains(inputs[rows])[..., 0]).square().mean(1)

                warmed += begin_with_means(
                    chains, losses, squares, fresh, rest, held_out, count, steps=self.warmup_steps
                )
            equalise(chains, losses, count, float(self.prior_precision))
            self.posterior_, trace = sample(
                chains,
                losses,
                count,
                networks[0],
                tuning_steps=self.tuning_steps,
                steps=self.n_steps,
                samples=self.n_samples,
                batch_size=batch,
                seed=seed,
            )
            judged = self._outputs(x[order[:JUDGED_ROWS].numpy()])
        self.n_iter_ = warmed + self.tuning_steps + self.n_steps
        by_chain = self._judged(judged).reshape(self.n_chains, -1, len(judged[0]))
        self.verdict_ = verdict(by_chain, trace.temperature)
        if not self.verdict_.settled:
            warnings.warn(self.verdict_.text, ConvergenceWarning, stacklevel=3)

    def _inputs(self, x: np.ndarray) -> Tensor:
        inputs = torch.as_tensor((x - self._mean) / self._scale, dtype=torch.float32)
        if not inputs.isfinite().all():
            raise ValueError("X has numbers that are too far from those of fit for single precision")
        return inputs

    def _outputs(self, x: np.ndarray) -> Tensor:
        """The outputs of every sample's network, (samples, rows, outputs)."""
        with _threads(self.n_jobs):
            chunk = len(self.posterior_)
            return self.posterior_.predict_samples(
                self._inputs(x), output="regression", sample_chunk=chunk, vectorize=True, batch_size=1024
            )

    def _new(self, X: Any) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the rows of a new table, each with its outputs, in pieces that fit into memory."""
        check_is_fitted(self, "posterior_")
        with columns_named(X):
            x = validate_data(self, X, reset=False, dtype=np.float64)
        step = max(1, 2_000_000 // len(self.posterior_))
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            yield rows, self._outputs(x[rows])

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood (..., row) of outputs (..., row, output)."""
        raise NotImplementedError

    def _judged(self, outputs: Tensor) -> np.ndarray:
        """One number a sample and row, whose settling the verdict looks at."""
        raise NotImplementedError


class BayesianMLPRegressor(RegressorMixin, BayesianMLP):
    r"""Predicts numbers from a table with an honest spread: `fit`, then ``predict(X, return_std=True)``.

    Eight networks start from different weights, are trained by Adam until held-out rows say stop, and then sample the
    posterior side by side (`MCLMC` on all rows; beyond 20,000 rows `BAOA` on minibatches). Step size, momentum length
    and burn-in are found meanwhile; `verdict_` says whether the chains have settled. Inputs and targets are
    standardised inside, missing values are refused. The prior is N(0, 1/``prior_precision``) on every weight::

        model = BayesianMLPRegressor(random_state=0).fit(X_train, y_train)
        mean, std = model.predict(X_test, return_std=True)
        low, high = model.predict_interval(X_test, 0.9)

    Args:
        hidden_layer_sizes: units of the hidden layers.
        activation: "tanh", "relu" or "silu".
        noise: "heteroscedastic": the network gives the mean and the spread of the targets, for each row;
            "homoscedastic": one spread for all rows, a weight like any other.
        likelihood: "gaussian", or "student" with four degrees of freedom, for targets with outliers: one that is far
            off then costs the logarithm of its distance and not the square. The noise of either is at least a
            thousandth of the targets' standard deviation, and where targets are on a grid (integers, say) at least
            what rounding adds.
        n_chains: networks side by side.
        n_samples: samples kept of each, less those of the burn-in (half at most).
        n_steps: steps that samples are kept from; raise it where the verdict says so.
        tuning_steps: steps before, in which step size and momentum length are found.
        warmup_steps: of Adam at most, before these. A sixth more where ``noise`` is "heteroscedastic", and twice as
            many where held-out rows then say that rows were explained away by a wide noise: the networks begin again,
            from a fit of the means alone.
        prior_precision: λ > 0.
        batch_size: rows a step of the sampler, None for all, or "auto".
        validation_fraction: of the rows, that stop the warm-up; the sampler has them too.
        n_jobs: threads of torch, None or -1 for as many as it has.
        random_state: an integer for the same samples each time, a ``RandomState``, or None.

    Attributes:
        posterior_: the samples, a `SampleCollection` over one network (for standardised inputs and targets).
        verdict_: `settled`, R̂, effective samples, temperature, and ``text``, one line of them that says what to do.
        n_features_in_, feature_names_in_, n_iter_: as in scikit-learn.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name, from `fit`.

    Warns:
        ConvergenceWarning: the verdict, where the chains have not settled.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (32, 32),
        activation: str = "tanh",
        *,
        noise: str = "heteroscedastic",
        likelihood: str = "gaussian",
        n_chains: int = 8,
        n_samples: int = 50,
        n_steps: int = 1500,
        tuning_steps: int = 1000,
        warmup_steps: int = 3000,
        prior_precision: float = 1.0,
        batch_size: int | str | None = "auto",
        validation_fraction: float = 0.15,
        n_jobs: int | None = 1,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation,
            n_chains=n_chains,
            n_samples=n_samples,
            n_steps=n_steps,
            tuning_steps=tuning_steps,
            warmup_steps=warmup_steps,
            prior_precision=prior_precision,
            batch_size=batch_size,
            validation_fraction=validation_fraction,
            n_jobs=n_jobs,
            random_state=random_state,
        )
        self.noise = noise
        self.likelihood = likelihood

    def fit(self, X: Any, y: Any) -> Self:
        """Sample the posterior of the network's weights given these rows.

        Args:
            X: (rows, features) numbers, finite.
            y: (rows,) numbers, finite.
        """
        self._validate_settings()
        validation.one_of("noise", self.noise, ("heteroscedastic", "homoscedastic"))
        validation.one_of("likelihood", self.likelihood, ("gaussian", "student"))
        with as_before_on_error(self):
            with columns_named(X, y):
                x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
                y = np.asarray(y, dtype=np.float64)
                if not np.isfinite(y).all():  # of an object array, which scikit-learn lets through
                    raise ValueError("y has missing values")
            self._student = self.likelihood == "student"
            self._y_mean, self._y_scale = (float(v) for v in location_and_scale(y))
            if np.ptp(y) == 0 and self._y_mean:
                self._y_scale = abs(self._y_mean)
            self._floor = max(FLOOR, rounding(y) / self._y_scale)
            targets = torch.as_tensor((y - self._y_mean) / self._y_scale, dtype=torch.float32)
            own = self.noise == "heteroscedastic"
            self._sample(x, targets, 2 if own else 1, *(() if own else (SharedNoise,)))
        return self

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, scale = self._mean_and_scale(outputs)
        z = (targets - mean) / scale
        if self._student:
            constant = math.lgamma(FREEDOM / 2) - math.lgamma((FREEDOM + 1) / 2) + 0.5 * math.log(math.pi * FREEDOM)
            return scale.log() + 0.5 * (FREEDOM + 1) * torch.log1p(z.square() / FREEDOM) + constant
        return scale.log() + 0.5 * z.square() + 0.5 * math.log(2 * math.pi)

    def _mean_and_scale(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return outputs[..., 0], nn.functional.softplus(outputs[..., 1]) + self._floor

    def _judged(self, outputs: Tensor) -> np.ndarray:
        return outputs[..., 0].double().numpy()

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the predictive distribution, (rows,), and with ``return_std`` its standard deviation too."""
        means, spreads = [], []
        for _, outputs in self._new(X):
            widening = FREEDOM / (FREEDOM - 2) if self._student else 1.0
            mean, scale = self._mean_and_scale(outputs.double())
            means.append(mean.mean(0))
            spreads.append((widening * scale.square().mean(0) + mean.var(0, correction=0)).sqrt())
        predicted = torch.cat(means).numpy() * self._y_scale + self._y_mean
        return (predicted, torch.cat(spreads).numpy() * self._y_scale) if return_std else predicted

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where a target lies with this probability: quantiles (1 ∓ ``coverage``)/2 of the predictive mixture."""
        validation.fraction("coverage", coverage, open_left=True, open_right=True)
        lows, highs = [], []
        for _, outputs in self._new(X):
            mean, scale = self._mean_and_scale(outputs.double())
            lows.append(self._quantile(mean, scale, (1 - coverage) / 2))
            highs.append(self._quantile(mean, scale, (1 + coverage) / 2))
        low, high = (torch.cat(each).numpy() * self._y_scale + self._y_mean for each in (lows, highs))
        return low, high

    def _quantile(self, mean: Tensor, scale: Tensor, share: float) -> Tensor:
        """The number below which ``share`` of the mixture over samples (sample, row) lies, by bisection."""
        low, high = (mean - 40 * scale).min(0).values, (mean + 40 * scale).max(0).values
        for _ in range(50):
            middle = (low + high) / 2
            z = (middle - mean) / scale
            if self._student:  # Student's distribution function at four degrees of freedom
                w = 1 + z.square() / 4
                below = 0.5 + 0.375 * z / w.sqrt() * (1 - z.square() / (12 * w))
            else:
                below = torch.special.ndtr(z)
            less = below.mean(0) < share
            low, high = torch.where(less, middle, low), torch.where(less, high, middle)
        return (low + high) / 2

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """log p(y | x, data) of every row, in the targets' own units: the score that rewards mean and spread."""
        check_is_fitted(self, "posterior_")
        refuse_dates("y", y)
        y = column_or_1d(y, dtype=np.float64)
        if not np.isfinite(y).all():
            raise ValueError("y must be finite numbers, got missing or infinite ones")
        check_consistent_length(X, y)
        y = (y - self._y_mean) / self._y_scale
        found = [
            torch.logsumexp(-self._nll(outputs.double(), torch.as_tensor(y[rows])), 0) - math.log(len(outputs))
            for rows, outputs in self._new(X)
        ]
        return torch.cat(found).numpy() - math.log(self._y_scale)


class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):
    """Predicts classes from a table with honest probabilities: `fit`, then ``predict_proba(X)``.

    As `BayesianMLPRegressor`, whose arguments (but noise and likelihood) and attributes it has; ``classes_`` holds the
    labels in the order of the probabilities.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Sample the posterior of the network's weights given these rows.

        Args:
            X: (rows, features) numbers, finite.
            y: (rows,) labels of two classes at least, numbers or words.
        """
        self._validate_settings()
        if y is not None and any(map(is_missing, np.ravel(np.asarray(y, dtype=object)))):
            raise ValueError("y has missing labels (None, NaN): leave these rows out")
        with as_before_on_error(self):
            with columns_named(X):
                x, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
            check_classification_targets(y)
            self.classes_, numbers = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError(f"y must hold at least two classes, got one class: {self.classes_.tolist()}")
            self._sample(x, torch.as_tensor(numbers), len(self.classes_))
        return self

    def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logs = outputs.log_softmax(-1)
        return -logs.gather(-1, targets.expand(logs.shape[:-1])[..., None])[..., 0]

    def _judged(self, outputs: Tensor) -> np.ndarray:
        # Of the class that the average makes most probable: whether that is settled matters whatever the labels' order.
        probs = outputs.double().softmax(-1)
        top = probs.mean(0).argmax(-1)
        return probs[:, torch.arange(len(top)), top].numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (rows, classes): the average over the samples."""
        return torch.cat([outputs.double().softmax(-1).mean(0) for _, outputs in self._new(X)]).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)  # which refuses one that is not fitted
        return self.classes_[probabilities.argmax(1)]


def _network(sizes: Sequence[int], activation: str, tail: Sequence[type[nn.Module]]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, dtype=torch.float32), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1], *(layer() for layer in tail))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads of torch within it: for small networks several wait for each other.

    glibc returns memory to the system, and gets it back page by page at each step, until a large block was freed.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)
    before = torch.get_num_threads()
    torch.set_num_threads(before if count in (None, -1) else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
