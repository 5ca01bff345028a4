"""From collections of samples to ArviZ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.optional import import_arviz


def to_arviz(
    chains: Sequence[Any],
    *,
    parameters: Sequence[str] | None = None,
    max_parameters: int | None = 1000,
    inputs: Any = None,
    log_likelihood: Callable[[Tensor], Tensor] | None = None,
) -> Any:
    """Several chains of weights as one ArviZ ``InferenceData`` (with ArviZ 1 a ``DataTree``, which reads alike).

    Group ``posterior`` holds one float64 variable, ``weights``, with dimensions (chain, draw, parameter); the
    coordinate ``parameter`` says which, as in ``"0.weight[3,1]"``. Group ``sample_stats`` holds ``step`` and ``cycle``.
    With ``log_likelihood`` group ``log_likelihood`` holds ``y``, (chain, draw, row), for ``arviz.loo`` and others::

        def log_likelihood(logits):
            return torch.distributions.Categorical(logits=logits).log_prob(y_train)

        arviz.loo(posterior.to_arviz(inputs=x_train, log_likelihood=log_likelihood))

    Args:
        chains: `SampleCollection`s over the same network with the same number of samples; one that was merged counts
            as the chains that it was merged from.
        parameters: names of the parameter tensors to take; None for all.
        max_parameters: take so many evenly spaced coordinates of them, since a network has too many to look at;
            None for all.
        inputs: rows whose log-likelihood is wanted, as `predict` takes them.
        log_likelihood: from the network's outputs of one sample, (row, ...), to log p(y | x, θ) of each row, (row,).

    Raises:
        ValueError: no chain or no sample, chains that differ in length or parameters, an unknown name, ``inputs``
            without ``log_likelihood`` or the other way round, or one that does not give a finite number for each row.
    """
    if (inputs is None) != (log_likelihood is None):
        lacking = "inputs" if inputs is None else "log_likelihood"
        raise ValueError(f"inputs and log_likelihood must be given together, got None for {lacking}")
    chains = [part for chain in chains for part in (getattr(chain, "split", list)() or [chain])]
    if not chains or not len(chains[0]):
        raise ValueError(f"chains must hold at least one sample each, got {list(chains)}")
    lengths = [len(chain) for chain in chains]
    if len(set(lengths)) != 1:
        raise ValueError(f"chains must hold the same number of samples, got {lengths}")
    shapes = {name: tuple(tensor.shape) for name, tensor in chains[0][0].items()}
    for number, chain in enumerate(chains):
        other_shapes = {name: tuple(tensor.shape) for name, tensor in chain[0].items()}
        if other_shapes != shapes:
            raise ValueError(
                f"chains[{number}] has other parameters than chains[0]: {other_shapes} instead of {shapes}"
            )
    names = list(shapes) if parameters is None else list(parameters)
    unknown = [name for name in names if name not in shapes]
    if unknown or not names:
        raise ValueError(f"parameters must be among {list(shapes)}, got {names}")

    sizes = [int(np.prod(shapes[name], dtype=np.int64)) for name in names]
    total = sum(sizes)
    if max_parameters is not None:
        validation.integer("max_parameters", max_parameters)
    count = total if max_parameters is None else min(total, max_parameters)
    chosen = (np.arange(count) * total) // count
    starts = np.concatenate([[0], np.cumsum(sizes)])
    values = np.empty((len(chains), lengths[0], count))
    coordinates: list[str] = []
    picks = []
    for name, start, stop in zip(names, starts[:-1], starts[1:], strict=True):
        inside = chosen[(chosen >= start) & (chosen < stop)] - start
        picks.append((name, inside))
        for flat in inside:
            where = ",".join(str(int(i)) for i in np.unravel_index(int(flat), shapes[name]))
            coordinates.append(f"{name}[{where}]" if where else name)
    for c, chain in enumerate(chains):
        for k, sample in enumerate(chain):
            parts = [sample[name].double().cpu().numpy().ravel()[inside] for name, inside in picks]
            values[c, k] = np.concatenate(parts)
    groups = {
        "posterior": {"weights": values},
        "sample_stats": {
            "step": np.array([chain.steps for chain in chains]),
            "cycle": np.array([chain.cycles for chain in chains]),
        },
    }
    if log_likelihood is not None:
        groups["log_likelihood"] = {"y": np.stack([_log_likelihood(chain, inputs, log_likelihood) for chain in chains])}
    arviz = import_arviz()
    labels: dict[str, Any] = {"coords": {"parameter": coordinates}, "dims": {"weights": ["parameter"]}}
    # ArviZ 1 takes the groups in a dictionary, earlier ones by keyword.
    takes_dictionary = int(arviz.__version__.partition(".")[0]) >= 1
    return arviz.from_dict(groups, **labels) if takes_dictionary else arviz.from_dict(**groups, **labels)


def _log_likelihood(chain: Any, inputs: Any, function: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Log-likelihoods (draw, row) of a chain."""
    outputs = chain.predict_samples(inputs, output=_as_they_are)
    with torch.no_grad():
        values = [torch.as_tensor(function(rows)) for rows in outputs]
    shape = tuple(values[0].shape)
    if shape != (outputs.shape[1],):
        raise ValueError(f"log_likelihood must return a number for each row, ({outputs.shape[1]},), got {shape}")
    numbers = torch.stack(values).double().cpu().numpy()
    if not np.isfinite(numbers).all():
        raise ValueError(f"log_likelihood must be finite, got {numbers[~np.isfinite(numbers)][0]}")
    return numbers


def _as_they_are(outputs: Tensor) -> Tensor:
    return outputs
