"""Do samples lie in different modes, and do they predict differently? All pairs of them, against their separation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.diagnostics.landscape import LossLines, State, cosine_similarity, loss_lines
from learned_samplers.diagnostics.network_loss import network_loss
from learned_samplers.metrics.arrays import FLOOR, class_labels, probabilities
from learned_samplers.posterior import SampleCollection


@dataclass(frozen=True, repr=False)
class Exploration:
    """Differences of the P pairs of samples. Each field has shape (P,), in the order of ``pairs``.

    Attributes:
        pairs: P pairs of indices.
        separation: steps between the two samples; infinite between different chains.
        cosine: of the angle between their weights, after the origin is taken off.
        kl: mean of the two divergences between their predictions, in nats.
        disagreement: share of the examples with different most probable classes.
        ambiguity: mean loss of the two less that of their average, in nats.
        barrier: rise of the loss on the line between them above its ends, in nats; NaN where it was not evaluated.
        lines: the lines that were.
    """

    pairs: list[tuple[int, int]]
    separation: np.ndarray
    cosine: np.ndarray
    kl: np.ndarray
    disagreement: np.ndarray
    ambiguity: np.ndarray
    barrier: np.ndarray
    lines: LossLines

    def by_separation(self) -> dict[float, dict[str, float]]:
        """The median of every measure over the pairs of each separation, from the nearest to the furthest."""
        medians = {}
        for steps in np.unique(self.separation):
            chosen = self.separation == steps
            medians[float(steps)] = {name: _median(getattr(self, name)[chosen]) for name in MEASURES}
        return medians

    def summary(self) -> dict[str, float]:
        """The median of every measure over all pairs."""
        return {name: _median(getattr(self, name)) for name in MEASURES}

    def __repr__(self) -> str:
        medians = ", ".join(f"{name} {value:.3g}" for name, value in self.summary().items())
        return f"Exploration of {len(self.pairs)} pairs, {len(self.lines.pairs)} of them with lines; medians: {medians}"


#: The measures of an `Exploration`, by the names of its attributes.
MEASURES = tuple(field.name for field in fields(Exploration) if field.name not in ("pairs", "separation", "lines"))


def exploration(
    samples: SampleCollection,
    x: Any,
    labels: Tensor,
    *,
    origin: State | None = None,
    num_points: int = 11,
    max_lines: int | None = None,
    **how: Any,
) -> Exploration:
    """Do samples of a classifier lie in different modes? Compare all pairs: loss between them, angle, predictions.

    Neighbours in a chain are always alike. Pairs that lie far apart show whether the chain has reached another region.

    Args:
        samples: two or more.
        x, labels: examples, best of validation, and their classes (N,).
        origin: what the weights are measured from, see `cosine_similarity`; by default zero.
        num_points: T ≥ 3 points on each line.
        max_lines: evaluate the loss on so many lines, chosen at random with a fixed seed; by default on all.
        how: ``batch_size``, ``output`` and ``select``, as in `SampleCollection.predict`.

    Raises:
        TypeError, ValueError: an argument that cannot be used.
        OwnBuffers: samples with different buffers, none of which belong to weights between two samples.
    """
    if not isinstance(samples, SampleCollection):
        raise TypeError(
            f"samples must be a SampleCollection, got {type(samples).__name__}: SampleCollection.from_samples(model, "
            "states) makes one"
        )
    if max_lines is not None:
        validation.integer("max_lines", max_lines)
    loss: Callable[[dict[str, Tensor]], float] = network_loss(samples, x, labels, **how)
    pairs = list(combinations(range(len(samples)), 2))
    if not pairs:
        raise ValueError(f"samples must hold at least two samples, got {len(samples)}")
    first, second = np.array(pairs).T
    chosen = np.arange(len(pairs))
    if max_lines is not None and max_lines < len(pairs):
        chosen = np.sort(np.random.default_rng(0).choice(len(pairs), max_lines, replace=False))
    lines = loss_lines(samples, loss, pairs=[pairs[k] for k in chosen], num_points=num_points)
    barrier = np.full(len(pairs), np.nan)
    barrier[chosen] = lines.barriers
    steps, chains = np.array(samples.steps), np.array(samples.chains)
    apart = np.where(chains[first] == chains[second], abs(steps[first] - steps[second]), np.inf)
    probs = samples.predict_samples(x, **how)
    if probs.ndim == 2:  # the probability of class 1 of two
        probs = probs.unsqueeze(-1)
    matrices = (cosine_similarity(samples, origin), *_predictions(probs, labels))
    cosine, kl, differ, ambiguity = (matrix[first, second] for matrix in matrices)
    return Exploration(pairs, apart, cosine, kl, differ, ambiguity, barrier, lines)


def _predictions(probs: Tensor, labels: Tensor) -> list[np.ndarray]:
    """KL (of both directions, the mean), disagreement and ambiguity of every two samples, (K, K) each."""
    p = probabilities("output", probs, ndim=3).clamp_min(FLOOR)
    flat, count = p.flatten(1), p.shape[1]
    cross = flat @ flat.log().T / count  # Σ p_i·log p_j, the mean over examples
    entropy = -cross.diagonal()
    kl = (-entropy[:, None] - entropy[None, :] - cross - cross.T) / 2
    best = p.argmax(-1)
    target = class_labels(labels, p[0])
    true = p.gather(2, target.expand(len(p), -1).unsqueeze(-1)).squeeze(-1)
    loss = -true.log().mean(1)
    differ, together = torch.empty_like(cross), torch.empty_like(cross)
    for k in range(len(p)):
        differ[k] = (best != best[k]).double().mean(1)
        together[k] = -((true + true[k]) / 2).log().mean(1)
    ambiguity = (loss[:, None] + loss[None, :]) / 2 - together
    return [matrix.cpu().numpy() for matrix in (kl.clamp_min(0), differ, ambiguity.clamp_min(0))]


def _median(values: np.ndarray) -> float:
    measured = values[~np.isnan(values)]
    return float(np.median(measured)) if len(measured) else float("nan")
