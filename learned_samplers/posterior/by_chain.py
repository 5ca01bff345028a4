"""Predictions of several chains, each with a weight: how the chains disagree, and which weights predict best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from learned_samplers.posterior.inputs import Inputs
from learned_samplers.posterior.options import Options
from learned_samplers.posterior.outputs import OutputFormat
from learned_samplers.posterior.predict import Predictive
from learned_samplers.posterior.spread import Entropies, Uncertainty, Variances, entropy, require_moments


class ChainUncertainty(NamedTuple):
    """The prediction of several chains, and its uncertainty split in three: total = aleatoric + within + between.

    mean, total, aleatoric: as in `Uncertainty`; within: the disagreement of the samples of a chain, averaged over
    chains; between: the disagreement of the chains' averages. ``within + between`` is its ``epistemic``.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    within: Tensor
    between: Tensor


class ByChain(Predictive):
    """Predictions that know which chain a sample is from."""

    def by_chain(self, x: Inputs, weights: Any = None, **options: Unpack[Options]) -> ChainUncertainty:
        """The average of the chains' predictions by their weights, and the uncertainty within and between them.

        Args:
            x, options: as in `predict`; ``output`` must not be a function.
            weights: one number ≥ 0 a chain, as :meth:`stack` gives them; they are divided by their sum. None counts
                each sample alike, as `predict` does.

        Returns:
            `ChainUncertainty`, whose ``mean`` is the prediction.
        """
        form, complete = self._validated(options, "by_chain")
        is_regression = form.output == "regression"
        run = self._run_samples(x, form, complete, form.moments if is_regression else form.prediction)
        chains = [entry.chain for entry in run.entries]
        names = list(dict.fromkeys(chains))
        shares = _validated_weights(weights, [chains.count(name) for name in names])
        parts: list[ChainUncertainty] = []
        run.sums = math.inf
        for group in run.groups():
            sums = [{name: Variances() if is_regression else Entropies(form) for name in names} for _ in group]
            places = {rows.start: k for k, (rows, _) in enumerate(group)}
            for samples, rows, part in run.pieces(group):
                for name, prediction in zip(chains[samples], part, strict=True):
                    sums[places[rows.start]][name].add(prediction[None])
            parts += [_mixture([s.result() for s in by_name.values()], shares, form) for by_name in sums]
            group.clear()
        return ChainUncertainty(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def stack(self, x: Inputs, y: Tensor, **options: Unpack[Options]) -> Tensor:
        """Weights of the chains whose mixture gives held-out targets the highest density, (chains,), of sum 1.

        Stacking of predictive distributions: w maximises Σ_n log Σ_k w_k p_k(y_n | x_n), where p_k is the average over
        chain k (Yao et al., Bayesian Analysis 2018). Take rows that no chain was trained on, and no scores are to be
        taken on: some hundred, or the weights are noise. They are those of :meth:`by_chain`.

        Args:
            x, options: as in `predict`; a regression needs ``noise``.
            y: the targets: classes, or real numbers of the shape of the predictions.

        Raises:
            ValueError: ``y`` does not fit the predictions; a regression without ``noise``.
        """
        return stacking_weights(self._log_densities(x, y, options))

    def _log_densities(self, x: Inputs, y: Tensor, options: Options) -> Tensor:
        """Return the log density of each target under the average over each chain, (chains, N)."""
        form, complete = self._validated(options, "stack")
        if form.output == "regression" and form.noise is None:
            raise ValueError("noise must be given to stack regressions, got None: their densities depend on it")
        run = self._run_samples(x, form, complete, form.log_prediction if form.has_classes else form.moments)
        chains = [entry.chain for entry in run.entries]
        names = list(dict.fromkeys(chains))
        try:
            y = torch.as_tensor(y).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"y must be a tensor or an array, got {type(y).__name__} ({error})") from error
        if not y.ndim:
            raise ValueError(f"y must have a target for each row of x, got the number {y.item()}")
        densities = torch.full((len(names), len(y)), -torch.inf, dtype=torch.float64)
        end = 0
        for samples, rows, part in run.all_pieces():
            terms, end = _log_density(form, part.cpu().double(), y[rows].cpu()), max(end, rows.stop)
            for name, term in zip(chains[samples], terms, strict=True):
                row = densities[names.index(name)]
                row[rows] = torch.logaddexp(row[rows], term)
        if end != len(y):
            raise ValueError(f"y must have a target for each of {end} rows of x, got {len(y)}")
        return densities - torch.tensor([chains.count(name) for name in names]).log()[:, None]


def stacking_weights(log_densities: Tensor) -> Tensor:
    """Return the w ≥ 0 of sum 1 that maximises the mean over n of log Σ_k w_k exp(log_densities[k, n])."""
    values = log_densities.double()
    densities = (values - values.amax(0)).exp().numpy()
    count = len(densities)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        mixture = np.maximum(weights @ densities, 1e-300)
        return -float(np.log(mixture).mean()), -(densities / mixture).mean(1)

    start, sums_to_one = np.full(count, 1 / count), {"type": "eq", "fun": lambda w: w.sum() - 1}
    options = {"ftol": 1e-10, "maxiter": 500}
    # SciPy's stubs know no tuple of value and slope.
    from scipy.optimize import minimize  # when used: it takes long to load

    answer = minimize(
        loss, start, jac=True, method="SLSQP", bounds=[(0, 1)] * count, constraints=sums_to_one, options=options
    )
    if not answer.success:
        raise RuntimeError(f"no stacking weights: {answer.message}")
    weights = torch.from_numpy(answer.x).clamp_min(0)
    return weights / weights.sum()


def _log_density(form: OutputFormat, part: Tensor, y: Tensor) -> Tensor:
    """Return log p(y | x, θ) of samples and rows, (k, n); the last axis of ``part`` has log classes, or moments."""
    if y.numel() != part[0, ..., 0].numel():
        shapes = f"{tuple(y.shape)} for {len(part[0])} rows, whose predictions are shaped {tuple(part.shape[2:-1])}"
        raise ValueError(f"y must have a number for each prediction, got {shapes}")
    targets = y.reshape(part.shape[1:-1]).expand(part.shape[:-1])
    if form.has_classes:
        classes = part.shape[-1]
        if not bool(((y == y.long()) & (y >= 0) & (y < classes)).all()):
            raise ValueError(f"y must have classes from 0 to {classes - 1}, got values from {y.min()} to {y.max()}")
        logs = part.gather(-1, targets.long()[..., None])[..., 0]
    else:
        require_moments(part)
        if not bool(y.isfinite().all()):
            raise ValueError("y must be finite, got a target that is not")
        means, variances = part.unbind(-1)
        logs = torch.distributions.Normal(means, variances.sqrt()).log_prob(targets.double())
    return logs.reshape(*part.shape[:2], -1).sum(-1)


def _validated_weights(weights: Any, counts: Sequence[int]) -> Tensor:
    if weights is None:
        weights = counts
    values = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if values.shape != (len(counts),) or not bool((values.isfinite() & (values >= 0)).all()) or not values.sum() > 0:
        raise ValueError(f"weights must be a number ≥ 0 for each of {len(counts)} chains, not all 0, got {weights}")
    return values / values.sum()


def _mixture(parts: Sequence[Uncertainty], weights: Tensor, form: OutputFormat) -> ChainUncertainty:
    """Return the mixture of the chains' predictions for one batch."""

    def average(values: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(values)).double()
        return torch.tensordot(weights.to(stacked), stacked, dims=1)

    means, _, aleatoric, epistemic = zip(*parts, strict=True)
    mean, noise, within = average(means), average(aleatoric), average(epistemic)
    if form.output == "regression":
        between = average([(m.double() - mean).square() for m in means])
    else:
        axis = form.axis(mean.ndim)
        between = (entropy(mean, axis) - average([entropy(m.double(), axis) for m in means])).clamp_min(0)
    values = (mean, noise + within + between, noise, within, between)
    return ChainUncertainty(*(value.to(means[0].dtype) for value in values))
