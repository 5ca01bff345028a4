"""Is a chain long enough, and where has it been?

Convergence diagnostics take draws: an array or tensor (chain, draw, ...), an ArviZ ``InferenceData`` as from
``to_arviz``, one :class:`~learned_samplers.PosteriorSamples` or a list of them, one per chain (1,000 evenly spaced
coordinates are taken; choose others by calling ``to_arviz`` yourself; 10,000 coordinates take seconds). Draws need
not be weights: in function space, where the symmetries of networks do no harm, they are
``posterior.predict_samples(x)[None]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from learned_samplers.base import validation
from learned_samplers.posterior.arviz_export import import_arviz, to_arviz
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.prediction import as_inputs, evaluation_mode, normalisation_buffers
from learned_samplers.posterior.storage import chunks

MINIMUM_DRAWS = 4

State = Mapping[str, Tensor]


def _as_draws(draws: Any) -> np.ndarray:
    if isinstance(draws, SampleCollection):
        draws = to_arviz([draws])
    elif isinstance(draws, list | tuple) and draws and all(isinstance(chain, SampleCollection) for chain in draws):
        draws = to_arviz(draws)
    if hasattr(draws, "posterior"):
        draws = draws.posterior["weights"].values
    if isinstance(draws, Tensor):
        draws = draws.detach().double().cpu().numpy()
    try:
        values = np.asarray(draws, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"draws must be an array (chain, draw, ...) or samples, got {type(draws).__name__}") from error
    if values.ndim < 2 or 0 in values.shape:
        raise ValueError(f"draws must have shape (chain, draw, ...), none of them zero; got {values.shape}")
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"draws must be finite, got {values[where]} at {where}")
    return values


def _by_arviz(name: str, values: np.ndarray, method: str) -> np.ndarray:
    """An ArviZ statistic for every coordinate of (chain, draw, ...)."""
    arviz = import_arviz()
    # A coordinate that never moves divides zero by zero: NaN, as our docstrings say.
    with np.errstate(divide="ignore", invalid="ignore"):
        result = getattr(arviz, name)(arviz.convert_to_dataset({"draws": values}), method=method)
    return np.asarray(result["draws"].values)


def _require_draws(values: np.ndarray, minimum: int) -> None:
    if values.shape[1] < minimum:
        raise ValueError(f"draws must hold at least {minimum} draws a chain, got {values.shape[1]}")


def ess(draws: Any, method: str = "mean") -> np.ndarray:
    """Effective sample size of every coordinate, all chains together: n / (1 + 2 Σ_t ρ_t), ρ_t the autocorrelations.

    Estimated by ArviZ with Geyer's initial monotone sequence (Vehtari et al., Bayesian Analysis 2021). An
    autoregressive chain with coefficient ρ has n(1−ρ)/(1+ρ). A coordinate that never moves counts as n.

    Args:
        draws: see the module; at least 4 a chain.
        method: "mean" for the sample size that the mean's error corresponds to, "bulk" for the rank-normalised one.

    Returns:
        An array over the coordinates, of the shape of ``draws`` without its first two axes.
    """
    validation.one_of("method", method, ("mean", "bulk"))
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS)
    return _by_arviz("ess", values, method)


def ess_per_second(draws: Any, seconds: float) -> float:
    """Mean effective sample size over the coordinates, divided by the seconds that all chains took together.

    L2E's Table 4 sums over the parameters instead, and takes one thinning interval as its unit of time.
    """
    validation.positive("seconds", seconds)
    return float(ess(draws).mean() / seconds)


def split_rhat(draws: Any, method: str = "rank") -> np.ndarray:
    """Split R̂ of every coordinate: near 1 if the chains agree with each other and with their own halves.

    R̂² = ((n−1)/n·W + B/n) / W, with W the mean variance within and B/n the variance between the means of the half
    chains of n draws. Above 1.01 is usually taken as not converged (above 1.1 in older work). NaN for a coordinate
    that never moves.

    Args:
        draws: see the module; at least 2 chains of 4 draws.
        method: "rank" for the larger of the rank-normalised R̂ of the draws and of their distances to the median
            (Vehtari et al., Bayesian Analysis 2021), "split" for the plain one (Gelman and Rubin, 1992).

    Returns:
        An array over the coordinates.
    """
    validation.one_of("method", method, ("rank", "split"))
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS)
    if len(values) < 2:
        raise ValueError("draws must hold at least two chains, got 1: see chainwise_rhat for a single one")
    return _by_arviz("rhat", values, method)


def chainwise_rhat(draws: Any, num_splits: int = 2, *, rank_normalize: bool = True) -> np.ndarray:
    """cR̂^(κ): R̂ between κ consecutive pieces of one chain, for every chain and coordinate.

    Chains of a network settle in different, equivalent modes, so that comparing them says nothing; each is compared
    with itself (Sommer et al., ICML 2024; L2E, Appendix L, with κ = 2). NaN for a coordinate that never moves.

    Args:
        draws: see the module; at least 4·κ a chain. The first n mod κ draws of a chain are left out.
        num_splits: κ ≥ 2.
        rank_normalize: replace the draws of a chain by normal scores of their ranks first, as Sommer et al. do.

    Returns:
        An array (chain, ...).
    """
    validation.whole("num_splits", num_splits, least=2)
    values = _as_draws(draws)
    _require_draws(values, MINIMUM_DRAWS * num_splits)
    length = values.shape[1] // num_splits
    pieces = values[:, -length * num_splits :].reshape(len(values), num_splits, length, *values.shape[2:])
    return np.stack([_by_arviz("rhat", chain, "z_scale" if rank_normalize else "identity") for chain in pieces])


def converged_share(draws: Any, num_splits: int = 2, *, threshold: float = 1.1) -> float:
    """Share of the coordinates, over all chains, with cR̂^(κ) < ``threshold``: L2E's Table 4.

    A coordinate that never moves has not converged. For one layer: ``posterior.to_arviz(parameters=["fc.weight"])``.
    """
    validation.positive("threshold", threshold)
    # NaN compares as false.
    return float((chainwise_rhat(draws, num_splits) < threshold).mean())


def cosine_similarity(samples: Iterable[State] | Tensor) -> np.ndarray:
    """Matrix (K, K) of ⟨θ_i, θ_j⟩ / (‖θ_i‖ ‖θ_j‖) between samples, each taken as one vector.

    Args:
        samples: a collection of samples, any sequence of dictionaries of tensors, or a tensor (K, d).

    Raises:
        ValueError: fewer than one sample, different shapes, or a sample of norm zero.
    """
    rows = list(samples)
    if not rows:
        raise ValueError("samples must hold at least one sample, got none")
    vectors = [
        row.detach().double().cpu().flatten()
        if isinstance(row, Tensor)
        else torch.cat([tensor.detach().double().cpu().flatten() for tensor in row.values()])
        for row in rows
    ]
    sizes = [len(vector) for vector in vectors]
    if len(set(sizes)) != 1:
        raise ValueError(f"samples must have the same number of parameters, got {sizes}")
    matrix = torch.stack(vectors)
    norms = matrix.norm(dim=1, keepdim=True)
    if (norms == 0).any():
        raise ValueError(f"samples[{int((norms == 0).nonzero()[0, 0])}] is zero everywhere and has no direction")
    return ((matrix @ matrix.T) / (norms @ norms.T)).clamp(-1, 1).numpy()


@dataclass(frozen=True)
class LossLines:
    """Losses along straight lines between pairs of samples.

    pairs: the P pairs of indices; positions: (T,) from 0 (first of a pair) to 1 (second); losses: (P, T).
    """

    pairs: list[tuple[int, int]]
    positions: np.ndarray
    losses: np.ndarray

    @property
    def barriers(self) -> np.ndarray:
        """(P,) barriers max_t L((1−t)θ + tθ') − ((1−t)L(θ) + tL(θ')): the rise of the loss above its ends, ≥ 0."""
        chord = (1 - self.positions) * self.losses[:, :1] + self.positions * self.losses[:, -1:]
        return (self.losses - chord).max(axis=1)


def loss_lines(
    samples: Sequence[State] | SampleCollection,
    loss: Callable[[dict[str, Tensor]], Any],
    *,
    pairs: str | Sequence[tuple[int, int]] = "consecutive",
    num_points: int = 21,
) -> LossLines:
    """Evaluate a loss on the lines θ(t) = (1−t)·θ + t·θ' between samples (Goodfellow et al., 2015; L2E, Figure 2c).

    Args:
        samples: dictionaries from parameter name to tensor.
        loss: from such a dictionary to a number; :func:`network_loss` makes one.
        pairs: "consecutive", "all", or pairs of indices.
        num_points: T ≥ 3 evenly spaced points a line, its ends among them.

    Raises:
        TypeError, ValueError: an argument that cannot be used, or a loss that is not finite.
    """
    validation.whole("num_points", num_points, least=3)
    count = len(samples)
    if isinstance(pairs, str):
        validation.one_of("pairs", pairs, ("consecutive", "all"))
        chosen = list(combinations(range(count), 2)) if pairs == "all" else [(k, k + 1) for k in range(count - 1)]
    else:
        chosen = [(int(i), int(j)) for i, j in pairs]
        wrong = [pair for pair in chosen if not all(-count <= k < count for k in pair)]
        if wrong:
            raise ValueError(f"pairs must be indices of the {count} samples, got {wrong[0]}")
    if not chosen:
        raise ValueError(f"samples must hold at least two samples to draw a line between, got {count}")
    positions = np.linspace(0, 1, num_points)
    losses = np.empty((len(chosen), num_points))
    for row, (i, j) in enumerate(chosen):
        first, second = samples[i], samples[j]
        if {name: t.shape for name, t in first.items()} != {name: t.shape for name, t in second.items()}:
            raise ValueError(f"samples {i} and {j} have different parameters")
        for column, t in enumerate(positions.tolist()):
            value = float(loss({name: _between(first[name], second[name], t) for name in first}))
            if not np.isfinite(value):
                raise ValueError(f"loss must be finite, got {value} between samples {i} and {j} at t={t:.3f}")
            losses[row, column] = value
    return LossLines(chosen, positions, losses)


def _between(first: Tensor, second: Tensor, t: float) -> Tensor:
    wide = torch.promote_types(first.dtype, torch.float32)
    # (1−t)·a + t·b, and not a lerp, is exact at both ends.
    return first.to(wide) * (1 - t) + second.to(wide) * t


def loss_barrier(
    first: State, second: State, loss: Callable[[dict[str, Tensor]], Any], *, num_points: int = 21
) -> float:
    """Barrier between two sets of weights, as in :attr:`LossLines.barriers`."""
    return float(loss_lines([first, second], loss, num_points=num_points).barriers[0])


def network_loss(
    samples: SampleCollection, x: Any, labels: Tensor, *, kind: str = "nll", batch_size: int = 1024
) -> Callable[[dict[str, Tensor]], float]:
    """A loss for :func:`loss_lines`: the mean of the network over (x, labels) as a function of its weights.

    Args:
        samples: whose network, frozen parameters and fixed buffers are used.
        x: inputs (N, ...), or a tuple of them.
        labels: (N,) integers.
        kind: "nll" for the negative log-likelihood in nats, "error" for the share of wrong predictions.
        batch_size: examples run at once.

    Raises:
        ValueError: an argument that cannot be used, or a network with running statistics.
    """
    validation.one_of("kind", kind, ("nll", "error"))
    validation.whole("batch_size", batch_size)
    inputs, model = as_inputs(x), samples.model
    if len(labels) != len(inputs[0]):
        raise ValueError(f"labels must be as many as the {len(inputs[0])} inputs, got {len(labels)}")
    if normalisation_buffers(model):
        raise ValueError(
            f"samples: {type(model).__name__} has running statistics, which do not fit weights between two samples"
        )
    reference = next(model.parameters())
    fixed = {name: tensor.to(reference.device) for name, tensor in samples._fixed().items()}

    def evaluate(state: dict[str, Tensor]) -> float:
        total = 0.0
        weights = {name: tensor.to(reference.device, reference.dtype) for name, tensor in state.items()}
        with evaluation_mode(model), torch.no_grad():
            for rows in chunks(len(labels), batch_size):
                batch = tuple(item[rows.start : rows.stop].to(reference.device) for item in inputs)
                target = labels[rows.start : rows.stop].to(reference.device)
                logits = functional_call(model, {**fixed, **weights}, batch).float()
                if kind == "nll":
                    total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
                else:
                    total += (logits.argmax(1) != target).sum().item()
        return total / len(labels)

    return evaluate
