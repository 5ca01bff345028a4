"""Loss of a network on labelled examples, as a function of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.metrics.arrays import FLOOR, as_tensor, class_labels, probabilities
from learned_samplers.posterior import SampleCollection


def network_loss(
    samples: SampleCollection,
    x: Any,
    labels: Tensor,
    *,
    kind: str = "nll",
    batch_size: int = 256,
    output: str | Callable[[Any], Tensor] = "softmax",
    class_axis: int | None = None,
    select: int | str | None = None,
) -> Callable[[dict[str, Tensor]], float]:
    """A loss for :func:`loss_lines`: the network's mean loss over (x, labels) as a function of its weights.

    At a sample's weights it is the loss of that sample's prediction. It refuses what `SampleCollection.predict`
    refuses, when the loss is first computed.

    Args:
        samples: whose network, frozen parameters and buffers are used.
        x: inputs (N, ...), or a tuple or a dictionary of them.
        labels: integers, one for each prediction: (N,), or (N, ...) with ``class_axis``.
        kind: "nll" for the negative log-likelihood in nats, "error" for the share of wrong predictions.
        batch_size: examples run at once.
        output, class_axis, select: how the network's output is read, as in `SampleCollection.predict`. A function gives
            probabilities, (N, C), or (N,) of class 1 of two. "regression" has no classes.

    Raises:
        RuntimeError: there is no sample yet.
        OwnBuffers: a network with running statistics, or samples with different buffers.
        TypeError, ValueError: an argument that cannot be used.
    """
    if not isinstance(samples, SampleCollection):
        raise TypeError(f"samples must be a SampleCollection, got {type(samples).__name__}")
    validation.one_of("kind", kind, ("nll", "error"))
    if output == "regression":
        raise ValueError(f"output must say where the classes are for kind={kind!r}, got 'regression', which has none")
    classes = as_tensor("labels", labels)
    first = next(iter(x.values() if isinstance(x, Mapping) else x), None) if isinstance(x, Mapping | tuple) else x
    count = len(as_tensor("x", first))
    if classes.shape[:1] != (count,):
        number = len(classes) if classes.ndim else "one number"
        raise ValueError(f"labels must have one entry for each of {count} inputs, got {number}")
    is_function = callable(output)
    predict = samples.function_of_weights(
        x,
        log=not is_function,
        batch_size=batch_size,
        output=output,
        class_axis=class_axis,
        select=select,
        vectorize=False,
    )

    def evaluate(state: dict[str, Tensor]) -> float:
        logs = predict(state)
        if is_function:
            logs = probabilities("output", logs).clamp_min(FLOOR).log()
        return _mean_loss(logs, classes, kind)

    return evaluate


def _mean_loss(logs: Tensor, labels: Tensor, kind: str) -> float:
    """Mean over all labels (N, ...), given (N, ..., C) log-probabilities: "nll" in nats, or "error", a share.

    Raises:
        TypeError, ValueError: labels of another shape, no integers, or not among the classes.
    """
    if labels.shape != logs.shape[:-1]:
        raise ValueError(
            f"labels must have shape {tuple(logs.shape[:-1])}, one for each prediction; got {tuple(labels.shape)}"
        )
    rows = logs.flatten(0, -2)
    target = class_labels(labels.flatten(), rows)
    if kind == "nll":
        losses = -rows.gather(1, target.unsqueeze(1))
    else:
        # No class is the largest of NaNs.
        losses = (rows.argmax(1) != target).float().masked_fill(rows.isnan().any(1), torch.nan)
    return losses.cpu().double().mean().item()
