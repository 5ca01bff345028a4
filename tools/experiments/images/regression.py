"""The scores of a regression's samples."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments.harness.run_store import RunStore
from experiments.images.effective_size import median_ess
from experiments.images.likelihood import Regression
from experiments.images.result import Result
from learned_samplers import metrics
from learned_samplers.metrics.regression import mixture_log_density
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ImageData

_LEVEL = 0.9  # of the intervals whose coverage is measured


def moments(samples: SampleCollection, x: Tensor, likelihood: Regression) -> tuple[Tensor, Tensor]:
    """Every sample's means and variances, (K, n, k) each."""
    found = samples.predict_samples(x, output=likelihood.moments)
    mean, variance = found.unbind(-1)
    return mean, variance


def nll(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """−log of the mixture's density of each example, (n,), in nats; its targets are independent under each sample."""
    return -mixture_log_density(mean, variance, y, joint=1)


def score_regression(
    result: Result, samples: SampleCollection, data: ImageData, likelihood: Regression, store: RunStore
) -> None:
    """Fill in the test scores of the samples, and save their predictions.

    NLL is that of the mixture of the samples' Gaussians; CRPS and the coverage of its central 90 % are those of the
    Gaussian with the mixture's mean and variance. A run whose scores are not finite has diverged.
    """
    means, variances = moments(samples, data.test_x, likelihood)
    if not (means.isfinite().all() and variances.isfinite().all()):
        result.diverged, result.validation_nll = "the predictions are not finite", None
        return
    mean, variance = means.mean(0), variances.mean(0) + means.var(0, unbiased=False)
    half = NormalDist().inv_cdf(0.5 + _LEVEL / 2) * variance.sqrt()
    each = nll(means, variances, data.test_y)
    scores = {
        "nll": each.mean().item(),
        "rmse": (mean - data.test_y).square().mean().sqrt().item(),
        "crps": metrics.gaussian_crps(mean, variance, data.test_y),
        "coverage": metrics.coverage(mean - half, mean + half, data.test_y),
    }
    counts = range(1, len(means) + 1)
    curve = [nll(means[:k], variances[:k], data.test_y).mean().item() for k in counts]
    if not all(map(math.isfinite, (*scores.values(), *curve))):  # of a target out of all proportion, for one
        result.diverged, result.validation_nll = "the test scores are not finite", None
        return
    result.scores, result.nll_curve = scores, curve
    result.ess = median_ess(means.flatten(1), samples.chains)
    saved = {"test": mean, "test_variance": variance, "test_nll": each, "test_labels": data.test_y}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in saved.items()},
        store.path(result.name, "predictions", ".safetensors"),
    )


def validation_nll(samples: SampleCollection, data: ImageData, likelihood: Regression) -> float:
    """NLL on the validation examples, in nats."""
    return torch.as_tensor(nll(*moments(samples, data.val_x, likelihood), data.val_y)).mean().item()
