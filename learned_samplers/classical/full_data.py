"""Checks of a closure whose loss is random where a step relies on one loss: it is refused.

Some samplers need the full data, and others two evaluations of one minibatch. They compare numbers that a step has at
hand anyway, and evaluate nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import as_number
from learned_samplers.base.protocol import Chain

#: Energies in units of T that differ by less than this share of the larger one, or by less than `NEGLIGIBLE`, are the
#: same: sums over a million losses in another order, atomic additions and TF32 stay below, minibatches far above.
ROUNDING = 1e-4
#: A difference that changes no acceptance probability by more than a tenth of it.
NEGLIGIBLE = 0.1

#: Likely reason of a loss that differs from step to step.
LIKELY = (
    "it draws a fresh minibatch each time it is called, or a dropout layer (or augmentation) is left on. Go through "
    "all data in it, and call model.eval() before (of Chains, sum the losses)"
)
#: Likely reason of two losses of one step that differ.
OTHER_DATA = (
    "the two evaluations of a step saw different data: a minibatch from an iterator (next(batches)) or from a "
    "generator of its own, where only torch's global random numbers are replayed. Take the minibatch before the step, "
    "and let the closure use it"
)
#: Steps that the share of unexplained changes of the energy is averaged over.
MEMORY = 20


def differ(first: Tensor, second: Tensor) -> Tensor:
    """Compare two energies, in units of T, elementwise: True where they differ by more than rounding."""
    return beyond_rounding(first - second, torch.maximum(first.abs(), second.abs()))


def beyond_rounding(difference: Tensor, energy: Tensor) -> Tensor:
    """Compare a difference with the rounding of energies of that size, in units of T: True where it is more."""
    return difference.abs() > (ROUNDING * energy.abs()).clamp(min=NEGLIGIBLE)


def unexplained(change: Tensor, gain: Tensor, energy: Tensor) -> Tensor:
    """(ΔS + ΔK)²/(ΔS² + ΔK²), at most 1: 0 where an energy S changes as its gradients say, which give −ΔK.

    With one energy function it is near 0 also at long steps, of which it is the share that the trapezoidal rule misses;
    where each end has noise of its own, it is near 1.

    Args:
        change, gain: ΔS and ΔK.
        energy: S at the end. What is within its rounding, or is not finite, counts as explained.
    """
    error = change + gain
    counts = beyond_rounding(error, torch.maximum(energy.abs(), (energy - change).abs())) & error.isfinite()
    return torch.where(counts, error.square() / (change.square() + gain.square()), 0.0).clamp(max=1.0)


class OneLoss:
    """Test that the two evaluations of a step, at θ and at θ + δ close by, are those of one function of the weights.

    Its loss changes by ½(g(θ) + g(θ + δ))·δ, but for the third order.
    """

    def __init__(self) -> None:
        self.steps, self.share = 0, 0.0

    def compare(self, sampler: Chain, start_loss: Any, end_loss: Any, along: float) -> None:
        """Take in one more step: the losses at both ends (or None, which says nothing), and ½(g(θ) + g(θ + δ))·δ.

        Raises:
            ValueError: the losses of the last steps do not change as their gradients say.
        """
        if start_loss is None or end_loss is None:
            return
        group = sampler.param_groups[0]
        scale = as_number(group["num_data"]) / (as_number(group["temperature"]) or 1.0)
        start, end, gain = (
            scale * torch.as_tensor(x).detach().double().sum().cpu() for x in (start_loss, end_loss, -along)
        )
        self.steps += 1
        self.share += (unexplained(end - start, gain, end).item() - self.share) / min(self.steps, MEMORY)
        if self.steps >= MEMORY and self.share > 0.9:
            raise ValueError(
                f"the closure is not deterministic: over the last steps {100 * self.share:.0f} % of what the loss "
                f"changed by between the two evaluations of a step of {type(sampler).__name__} was not along its "
                f"gradients. Most likely {OTHER_DATA}. Nothing was changed"
            )


class KnownLoss:
    """The loss where a step has left the chain, which the next step's first evaluation must give again.

    It is known for as long as nothing has moved but this chain: each sampled parameter has the value that the step gave
    it (compared bit by bit, since ``p.data`` may be written to without a trace), a frozen one has not been written to,
    and number of data, temperature and prior are as they were.
    """

    def __init__(self, sampler: Chain, loss: Tensor, values: dict[Tensor, Tensor]):
        self.loss, self.values, self.surroundings = loss.detach().double().cpu(), values, _surroundings(sampler, values)

    def belies(self, sampler: Chain, loss: Tensor) -> tuple[float, float] | None:
        """Return both losses (of the first such chain) if ``loss`` differs though nothing has changed; else None."""
        if _surroundings(sampler, self.values) != self.surroundings:
            return None
        if not all(torch.equal(p, value) for p, value in self.values.items()):
            return None
        now = loss.detach().double().cpu()
        group = sampler.param_groups[0]
        scale = as_number(group["num_data"]) / as_number(group["temperature"])
        if now.shape != self.loss.shape or not (differs := differ(scale * now, scale * self.loss)).any():
            return None
        first = int(differs.reshape(-1).nonzero()[0])
        return self.loss.reshape(-1)[first].item(), now.reshape(-1)[first].item()


def _surroundings(sampler: Chain, values: dict[Tensor, Tensor]) -> list[Any]:
    """Everything that a loss may depend on beside the sampled values, as far as a sampler can see it."""
    keys = ("num_data", "temperature", "prior_precision")
    numbers = [as_number(group[key]) for group in sampler.param_groups for key in keys]
    others: Sequence[Tensor] = [p for group in sampler.param_groups for p in group["params"] if p not in values]
    return [*numbers, *((id(p), None if p.is_inference() else p._version) for p in others)]
