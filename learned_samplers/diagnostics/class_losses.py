"""How wrong a network's output is about known classes; the output is read as `SampleCollection.predict` reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from learned_samplers.metrics.arrays import FLOOR, as_tensor, class_labels, probabilities
from learned_samplers.posterior.outputs import Reading


def log_probabilities(raw: Any, reading: Reading) -> Tensor:
    """Logarithms of the probabilities of the classes, with their axis last: (N, ..., C).

    Raises:
        TypeError, ValueError: the output cannot be read so, in the words of `predict`.
    """
    prediction = reading.prediction(raw)  # refuses what does not fit
    if callable(reading.output):
        return probabilities("output", prediction).clamp_min(FLOOR).log()
    # Of the logits, and not of the prediction, in which a small probability has become zero.
    logits = reading.tensor(raw)
    axis = reading.axis(logits.ndim)
    if axis is None:
        logits, axis = logits.flatten().unsqueeze(1), -1
    logits = logits.movedim(axis, -1)
    return logsigmoid(torch.cat([-logits, logits], -1)) if reading.output == "binary" else logits.log_softmax(-1)


def mean_loss(logs: Tensor, labels: Any, kind: str) -> float:
    """Mean over all labels (N, ...), given (N, ..., C) log-probabilities: "nll" in nats, or "error", a share.

    Raises:
        TypeError, ValueError: labels of another shape, no integers, or not among the classes.
    """
    given = as_tensor("labels", labels)
    if given.shape != logs.shape[:-1]:
        raise ValueError(
            f"labels must have shape {tuple(logs.shape[:-1])}, one for each prediction; got {tuple(given.shape)}"
        )
    rows = logs.flatten(0, -2)
    target = class_labels(given.flatten(), rows)
    if kind == "nll":
        losses = -rows.gather(1, target.unsqueeze(1))
    else:
        # No class is the largest of NaNs.
        losses = (rows.argmax(1) != target).float().masked_fill(rows.isnan().any(1), torch.nan)
    return losses.cpu().double().mean().item()
