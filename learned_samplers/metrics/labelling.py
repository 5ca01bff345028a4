"""Choosing what to label next, by what the samples disagree about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.metrics.arrays import probabilities
from learned_samplers.metrics.classification import mutual_information

#: Labellings of the chosen examples whose joint probabilities are computed one by one; beyond them they are drawn.
ENUMERATED = 1000
#: Numbers that are held at once.
HELD = 2**22


def batch_bald(
    sample_probs: Any,
    count: int,
    *,
    num_labellings: int = ENUMERATED,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Choose examples to label together: those whose labels jointly tell most about the weights (BatchBALD).

    `mutual_information` scores each example by itself (BALD), so that the best of them may be copies of one. This
    maximises I(y₁, …, y_b; θ) = H(y₁, …, y_b) − Σ E H(yᵢ | θ), greedily, which reaches 63 % of the best at least
    (Kirsch et al., NeurIPS 2019). The joint entropy is exact while the chosen examples have ``num_labellings``
    labellings at most; beyond that it is an average over as many draws of their labels.

    Args:
        sample_probs: (K, N, C), as for `mutual_information`.
        count: examples to choose, N at most.
        num_labellings: limit of the enumeration, and number of the draws.
        generator: source of the draws, on the CPU; None for torch's global one.

    Returns:
        (count,) indices of examples, the most telling first.
    """
    p = probabilities("sample_probs", sample_probs, ndim=3)
    samples, examples, classes = p.shape
    validation.integer("count", count)
    validation.integer("num_labellings", num_labellings)
    if count > examples:
        raise ValueError(f"count must be at most the {examples} examples, got {count}")
    of_noise = torch.special.entr(p).sum(-1).mean(0)
    chosen = [int(mutual_information(p).argmax())]
    while len(chosen) < count:
        if classes ** len(chosen) <= num_labellings:
            joint = p.new_ones(1, samples)
            for example in chosen:
                joint = (joint[:, None] * p[:, example].T).reshape(-1, samples)
            weights = joint.mean(1)
        else:
            joint = _drawn(p[:, chosen], num_labellings, generator)
            weights = p.new_full((num_labellings,), 1 / num_labellings)
        scores = _conditional_entropies(joint, weights, p) - of_noise
        scores[chosen] = -torch.inf
        chosen.append(int(scores.argmax()))
    return torch.tensor(chosen, device=p.device)


def _drawn(p: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Probabilities (labelling, sample) of labellings drawn from the average over samples, scaled by their largest."""
    samples, examples, _ = p.shape
    source = torch.randint(samples, (count,), generator=generator)
    labels = torch.stack(
        [torch.multinomial(p[source, k].cpu(), 1, generator=generator)[:, 0] for k in range(examples)], 1
    ).to(p.device)
    logs = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    joint = torch.stack([logs[:, k, labels[:, k]] for k in range(examples)]).sum(0).T
    return (joint - joint.amax(1, keepdim=True)).exp()


def _conditional_entropies(joint: Tensor, weights: Tensor, p: Tensor) -> Tensor:
    """Entropy (N,) of each example's label, given those of the chosen: weights (L,) of labellings (L, sample)."""
    posterior = joint / joint.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    size = max(1, HELD // (len(joint) * p.shape[2]))
    parts = [
        torch.einsum("l,lnc->n", weights, torch.special.entr(torch.einsum("lk,knc->lnc", posterior, part)))
        for part in p.split(size, 1)
    ]
    return torch.cat(parts)
