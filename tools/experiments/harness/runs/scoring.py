"""The scores of a run: of the average of its samples' predictions, on validation and on test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from experiments.harness.run_store import RunStore
from experiments.harness.runs.likelihood import Likelihood, Regression
from experiments.harness.runs.result import CURVES, Result
from learned_samplers import diagnostics, metrics
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ImageData

_LEVEL = 0.9  # of the intervals whose coverage is measured
_NOT_FINITE = "the predictions are not finite"


def validate(
    result: Result, samples: SampleCollection, data: ImageData, store: RunStore, likelihood: Likelihood
) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y) and isinstance(likelihood, Regression):
        mean, variance = moments(samples, data.val_x, likelihood)
        result.validation_nll = mixture_nll(mean, variance, data.val_y).mean().item()
        if not math.isfinite(result.validation_nll):
            return _diverged(result, _NOT_FINITE)
    elif len(data.val_y):
        probabilities = samples.predict(data.val_x)
        if not probabilities.isfinite().all():
            return _diverged(result, _NOT_FINITE)
        result.validation_nll = metrics.nll(probabilities, data.val_y)
    result.num_samples = len(samples)
    samples.save(store.path(result.name, "samples", ".safetensors"))


def _diverged(result: Result, why: str) -> None:
    result.diverged, result.validation_nll = why, None


def score(
    result: Result,
    samples: SampleCollection,
    data: ImageData,
    ood: Mapping[str, ImageData],
    store: RunStore,
    likelihood: Likelihood,
) -> None:
    """Fill in the test scores of the samples, and save their predictions; scores that are not finite are divergence."""
    if isinstance(likelihood, Regression):
        saved = _score_regression(result, samples, data, likelihood)
    else:
        saved = _score_classes(result, samples, data, ood)
    if result.diverged is None:
        store.write_tensors(result.name, "predictions", saved)


def _score_classes(
    result: Result, samples: SampleCollection, data: ImageData, ood: Mapping[str, ImageData]
) -> dict[str, Tensor]:
    single, labels = samples.predict_samples(data.test_x), data.test_y
    # The averages over the first 1, 2, … samples.
    averages = single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]
    test = averages[-1]
    singles = {name: samples.predict_samples(each.test_x) for name, each in ood.items()}
    others = {name: each.mean(0) for name, each in singles.items()}
    saved = {"test": test, "test_labels": labels, **{f"ood_{name}": each for name, each in others.items()}}
    if not all(each.isfinite().all() for each in (test, *others.values())):
        _diverged(result, _NOT_FINITE)
        return saved
    result.scores = metrics.summary(test, labels, next(iter(others.values()), None))
    result.ood = {
        name: {
            "auroc": metrics.ood_auroc(test, each),
            "mean_entropy": float(torch.special.entr(each.double()).sum(1).mean()),
        }
        for name, each in others.items()
    }
    if len(single) > 1:
        for name, each in singles.items():
            result.ood[name]["information_auroc"] = metrics.information_auroc(single, each)
        result.pairwise_kld = metrics.pairwise_kld(single)
    result.ess = median_ess(_label_log_probabilities(single, labels), samples.chains)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        result.curves[metric.__name__] = [metric(average, labels) for average in averages]
    result.curves["kld"] = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]
    return saved


def _score_regression(
    result: Result, samples: SampleCollection, data: ImageData, likelihood: Regression
) -> dict[str, Tensor]:
    """NLL is that of the mixture of the samples' Gaussians; CRPS and the coverage of its central 90 % are those of the
    Gaussian with the mixture's mean and variance."""
    means, variances = moments(samples, data.test_x, likelihood)
    mean, variance = means.mean(0), variances.mean(0) + means.var(0, unbiased=False)
    each = mixture_nll(means, variances, data.test_y)
    saved = {"test": mean, "test_variance": variance, "test_nll": each, "test_labels": data.test_y}
    if not (means.isfinite().all() and variances.isfinite().all()):
        _diverged(result, _NOT_FINITE)
        return saved
    half = NormalDist().inv_cdf(0.5 + _LEVEL / 2) * variance.sqrt()
    scores = {
        "nll": each.mean().item(),
        "rmse": (mean - data.test_y).square().mean().sqrt().item(),
        "crps": metrics.gaussian_crps(mean, variance, data.test_y),
        "coverage": metrics.coverage(mean - half, mean + half, data.test_y),
    }
    counts = range(1, len(means) + 1)
    curve = [mixture_nll(means[:k], variances[:k], data.test_y).mean().item() for k in counts]
    if not all(map(math.isfinite, (*scores.values(), *curve))):  # of a target out of all proportion, for one
        _diverged(result, "the test scores are not finite")
        return saved
    result.scores, result.curves = scores, {"nll": curve}
    result.ess = median_ess(means.flatten(1), samples.chains)
    return saved


def moments(samples: SampleCollection, x: Tensor, likelihood: Regression) -> tuple[Tensor, Tensor]:
    """Every sample's means and variances, (K, n, k) each."""
    mean, variance = samples.predict_samples(x, output=likelihood.moments).unbind(-1)
    return mean, variance


def mixture_nll(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """−log of the mixture's density of each example, (n,), in nats; its targets are independent under each sample."""
    return -mixture_log_density(mean, variance, y, joint=1)


def predicted_numbers(samples: SampleCollection, data: ImageData, likelihood: Likelihood) -> Tensor:
    """A number for each sample and test example, (K, n): the true label's log-probability, or a regression's mean."""
    if isinstance(likelihood, Regression):
        return moments(samples, data.test_x, likelihood)[0].flatten(1)
    return _label_log_probabilities(samples.predict_samples(data.test_x), data.test_y)


def _label_log_probabilities(single: Tensor, labels: Tensor) -> Tensor:
    labels = labels.expand(len(single), -1).unsqueeze(-1)
    return single.gather(2, labels).squeeze(-1).clamp_min(metrics.FLOOR).log()


def median_ess(draws: Tensor, chains: Sequence[int]) -> float | None:
    """Median over coordinates of the effective sample size of draws (K, n), the k-th of chain ``chains[k]``.

    Of chains of different lengths the latest draws that all of them have; None where those are too few.
    """
    values, of = draws.cpu().numpy(), np.asarray(chains)
    each = [values[of == chain] for chain in dict.fromkeys(chains)]
    common = min(map(len, each))
    if common < diagnostics.MINIMUM_DRAWS:
        return None
    return float(np.median(diagnostics.ess(np.stack([chain[-common:] for chain in each]))))


def write_curves(result: Result, writer: SummaryWriter) -> None:
    """Test scores against the number of samples, for TensorBoard."""
    for name, curve in result.curves.items():
        for count, value in enumerate(curve, start=CURVES[name]):
            writer.add_scalar(f"model_average/{name}", value, count)
