"""Is each coordinate of a simulation Gaussian, and has it forgotten where it began? For `check_sampler`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Blocks of a run whose means give the error of its time average.
_BLOCKS = 10


def error_over_time(series: Tensor) -> Tensor:
    """Standard error of the mean over the first axis, from the scatter of ten block means."""
    blocks = torch.stack([block.mean(0) for block in series.chunk(_BLOCKS)])
    return blocks.std(0) / math.sqrt(len(blocks))


def error_over_chains(means: Tensor) -> Tensor:
    """Standard error of the mean of independent coordinates' own time averages."""
    return means.std() / math.sqrt(means.numel())


class Kurtosis:
    """E[x⁴]/E[x²]² of the coordinates of one tensor, 3 where they are normal: the mean over the steps of a run.

    It is taken at each step by itself, so that a variance which changes in time (with the place in an epoch, or with a
    thermostat that all share) does not count.
    """

    def __init__(self, like: Tensor):
        self.series: list[float] = []
        self.influence = torch.zeros(like.shape, dtype=torch.float64)

    def see(self, x: Tensor) -> None:
        """The state after one more step."""
        square = (x - x.mean()).square_()
        square /= square.mean()
        fourth = square.square()
        # Of n normal numbers whose own mean is taken off, the expectation is 3(n − 1)/(n + 1).
        n = x.numel()
        self.series.append(fourth.mean().item() * (n + 1) / max(1, n - 1))
        self.influence += fourth.sub_(square, alpha=6.0)  # of one coordinate on the ratio, where it is 3

    def result(self) -> tuple[float, float]:
        """The kurtosis and its standard error: over chains or over time, whichever is more."""
        series = torch.tensor(self.series, dtype=torch.float64)
        error = torch.maximum(error_over_time(series), error_over_chains(self.influence / len(series)))
        return series.mean().item(), error.item()


def remembered(start: Tensor, states: Sequence[Tensor]) -> float:
    """The share of the variance of ``start`` that is left in ``states``, whose mean is taken; of one tensor.

    It is c², with c(t) = Cov(x(t), x(0))/Var(x(0)), less four standard errors of a covariance that is none, squared. A
    chain that is linear and begins with the target's variance v₀ has v₀ + (1 − c²)(v − v₀) at t, with v the stationary
    one: a bias shows without this share.
    """
    x0 = (start - start.mean()).float()
    square = x0.square().sum()
    left = torch.stack([(x @ x0 / square).square() - 16 * x.var() / square for x in states])
    return max(0.0, left.mean().item())
