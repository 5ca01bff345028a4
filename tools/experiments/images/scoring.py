"""The scores of a finished run's samples."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from experiments.harness.run_store import RunStore
from experiments.images.effective_size import median_ess
from experiments.images.likelihood import Likelihood, Regression
from experiments.images.regression import moments, score_regression, validation_nll
from experiments.images.result import CURVES, Result
from learned_samplers import metrics
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ImageData


def validate(
    result: Result, samples: SampleCollection, data: ImageData, store: RunStore, likelihood: Likelihood
) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y) and isinstance(likelihood, Regression):
        result.validation_nll = validation_nll(samples, data, likelihood)
        if not math.isfinite(result.validation_nll):
            result.diverged, result.validation_nll = "the predictions are not finite", None
            return
    elif len(data.val_y):
        probabilities = samples.predict(data.val_x)
        if not probabilities.isfinite().all():
            result.diverged = "the predictions are not finite"
            return
        result.validation_nll = metrics.nll(probabilities, data.val_y)
        try:
            result.scaling = metrics.fit_temperature(probabilities, data.val_y)
        except ValueError:  # none fits, as where all these images are classified right: left as they are
            result.scaling = 1.0
    result.num_samples = len(samples)
    samples.save(store.path(result.name, "samples", ".safetensors"))


def score(
    result: Result,
    samples: SampleCollection,
    data: ImageData,
    ood: Mapping[str, ImageData],
    store: RunStore,
    likelihood: Likelihood,
) -> None:
    """Fill in the test scores of the samples, and save their predictions."""
    if isinstance(likelihood, Regression):
        score_regression(result, samples, data, likelihood, store)
        return
    single = samples.predict_samples(data.test_x)
    test = running_means(single)[-1]
    others = {name: samples.predict(each.test_x) for name, each in ood.items()}
    if not all(each.isfinite().all() for each in (test, *others.values())):
        result.diverged, result.validation_nll = "the predictions are not finite", None
        return
    first = next(iter(others.values()), None)
    result.scores = metrics.summary(test, data.test_y, first)
    result.ood = {
        name: {"auroc": metrics.ood_auroc(test, each), "mean_entropy": mean_entropy(each)}
        for name, each in others.items()
    }
    if result.scaling is not None:
        result.scaled_nll = metrics.nll(metrics.with_temperature(test, result.scaling), data.test_y)
    if len(single) > 1:
        result.pairwise_kld = metrics.pairwise_kld(single)
    result.ess = median_ess(_label_log_probabilities(single, data.test_y), samples.chains)
    fill_curves(result, single, data.test_y)
    tensors = {"test": test, "test_labels": data.test_y, **{f"ood_{name}": each for name, each in others.items()}}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
        store.path(result.name, "predictions", ".safetensors"),
    )


def predicted_numbers(samples: SampleCollection, data: ImageData, likelihood: Likelihood) -> Tensor:
    """A number for each sample and test example, (K, n): the true label's log-probability, or a regression's mean."""
    if isinstance(likelihood, Regression):
        return moments(samples, data.test_x, likelihood)[0].flatten(1)
    return _label_log_probabilities(samples.predict_samples(data.test_x), data.test_y)


def _label_log_probabilities(single: Tensor, labels: Tensor) -> Tensor:
    labels = labels.expand(len(single), -1).unsqueeze(-1)
    return single.gather(2, labels).squeeze(-1).clamp_min(metrics.FLOOR).log()


def mean_entropy(probabilities: Tensor) -> float:
    """Entropy of each row (n, classes), in nats, averaged."""
    return float(torch.special.entr(probabilities.double()).sum(1).mean())


def running_means(single: Tensor) -> Tensor:
    """Means over the first 1, 2, … samples of their predictions (K, n, classes)."""
    return single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]


def fill_curves(result: Result, single: Tensor, labels: Tensor) -> None:
    """Compute a run's curves from its samples' predictions (K, n, classes)."""
    averages = running_means(single)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        setattr(result, f"{metric.__name__}_curve", [metric(average, labels) for average in averages])
    result.kld_curve = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]


def write_curves(result: Result, writer: SummaryWriter) -> None:
    """Test scores against the number of samples, for TensorBoard."""
    for name, first in CURVES.items():
        for count, value in enumerate(getattr(result, f"{name}_curve"), start=first):
            writer.add_scalar(f"model_average/{name}", value, count)
