"""The scores of a run: of the average of its samples' predictions, on validation and on test data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from experiments.harness.run_store import RunStore
from experiments.harness.runs.result import Result
from learned_samplers import diagnostics, metrics
from learned_samplers.posterior.collect import SampleCollection
from meta_tasks.datasets import ImageData


def validate(result: Result, samples: SampleCollection, data: ImageData, store: RunStore) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y):
        probabilities = samples.predict(data.val_x)
        if not probabilities.isfinite().all():
            return _diverged(result)
        result.validation_nll = metrics.nll(probabilities, data.val_y)
    result.num_samples = len(samples)
    samples.save(store.path(result.name, "samples", ".safetensors"))


def _diverged(result: Result) -> None:
    result.diverged, result.validation_nll = "the predictions are not finite", None


#: Test images of each half.
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}


def score(
    result: Result,
    samples: SampleCollection,
    data: ImageData,
    ood: Mapping[str, ImageData],
    store: RunStore,
    half: str = "all",
) -> None:
    """Fill in the scores of the samples on a half of the test images, and save their predictions of these; what is not
    finite is divergence."""
    single, labels = samples.predict_samples(data.test_x[HALVES[half]]), data.test_y[HALVES[half]]
    result.scored_on = half
    # The averages over the first 1, 2, … samples.
    averages = single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]
    test = averages[-1]
    singles = {name: samples.predict_samples(images.test_x) for name, images in ood.items()}
    means = {name: probabilities.mean(0) for name, probabilities in singles.items()}
    if not all(probabilities.isfinite().all() for probabilities in (test, *means.values())):
        return _diverged(result)
    result.scores = metrics.summary(test, labels, next(iter(means.values()), None))
    result.ood = {
        name: {
            "auroc": metrics.ood_auroc(test, mean),
            "mean_entropy": float(torch.special.entr(mean.double()).sum(1).mean()),
        }
        for name, mean in means.items()
    }
    if len(single) > 1:
        for name, probabilities in singles.items():
            result.ood[name]["information_auroc"] = metrics.information_auroc(single, probabilities)
        result.pairwise_kld = metrics.pairwise_kld(single)
        result.ambiguity = metrics.ambiguity(single, labels)
    result.ess = median_ess(single, labels)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        result.curves[metric.__name__] = [metric(average, labels) for average in averages]
    result.curves["kld"] = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]
    saved = {"test": test, "test_labels": labels, **{f"ood_{name}": mean for name, mean in means.items()}}
    store.write_tensors(result.name, "predictions", saved)


def median_ess(single: Tensor, labels: Tensor) -> float | None:
    """Effective sample size of one chain's log-probability of the true label, the median over test examples."""
    if len(single) < diagnostics.MINIMUM_DRAWS:
        return None
    true = single.gather(2, labels.expand(len(single), -1).unsqueeze(-1)).squeeze(-1)
    draws = true.clamp_min(metrics.FLOOR).log().cpu().numpy()
    return float(np.median(diagnostics.ess(draws[None])))
