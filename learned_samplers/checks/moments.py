"""Moments of a simulation: are its coordinates Gaussian, independent, and clear of where they began?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Blocks of a run whose means give the error of its time average.
_BLOCKS = 10
# Standard errors within which a correlation is none. It is the largest of some 100,000 that are looked at.
_OF_CORRELATIONS = 6.0
# And the variance of a sum, over few coordinates or few relaxation times: one of a χ² distribution with a long tail.
_OF_SUMS = 10.0
# States of a run that are kept, and coordinates of each: enough for a correlation of a per cent.
STATES = 100
COORDINATES = 2**15


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


@dataclass(frozen=True)
class JointMoment:
    """A moment of several coordinates that is zero where they are independent, and its error if they are."""

    #: Where it was looked at, with a place for the number.
    text: str
    value: float
    error: float
    errors: float

    def bound(self, tolerance: float) -> float:
        """Largest absolute value that independent coordinates may have."""
        return max(tolerance, self.errors * self.error)

    def exceeds(self, tolerance: float) -> bool:
        """True if the moment is more than independent coordinates leave to chance."""
        return abs(self.value) > self.bound(tolerance)

    def __str__(self) -> str:
        if self.errors == _OF_CORRELATIONS:
            return "coordinates are correlated: " + self.text.format(f"{self.value:+.1%} ± {self.error:.1%}")
        return "coordinates are correlated: " + self.text.format(f"{1 + self.value:,.2f} ± {self.error:.2f} times")


class JointLaw:
    """The states of a run, some of them kept, and their correlations; one tensor for each curvature."""

    def __init__(self, steps: int, curvatures: Sequence[float]):
        self.every, self.count = math.ceil(steps / STATES), 0
        self.curvatures = curvatures
        self.kept: list[list[Tensor]] = [[] for _ in curvatures]

    def see(self, params: Sequence[Tensor]) -> None:
        """The state after one more step."""
        if self.count % self.every == 0:
            for kept, p in zip(self.kept, params, strict=True):
                kept.append(p.detach().flatten()[:COORDINATES].to(torch.float32, copy=True))
        self.count += 1

    def moments(self) -> list[JointMoment]:
        """Correlations at all distances within a tensor and between two, and variances of sums over neighbours.

        Errors are those under independence. With Q(t, t') the mean over n coordinates of z(t)·z(t'), z of unit
        variance, the mean over n pairs and all kept states of a product of two coordinates has the variance
        mean(Q²)/n, and the mean square of a sum over b coordinates, divided by b, of n/b such sums 2b·mean(Q²)/n.
        """
        unit = [z for kept in self.kept if (z := _standardised(torch.stack(kept))) is not None]
        if len(unit) < len(self.kept):
            return []
        n = unit[0].shape[1]
        overlaps = [z.double() @ z.double().T / n for z in unit]
        waves = [torch.fft.rfft(z) for z in unit]
        moments = []
        for i, k in enumerate(self.curvatures):
            spread = float(overlaps[i].square().mean())
            errors = torch.full((n,), math.sqrt(spread / n))
            if n % 2 == 0:
                errors[n // 2] *= math.sqrt(2)  # half as many pairs, each of them twice
            far, value, error = _largest(_products(waves[i], waves[i], n), errors, 1)
            text = f"{{}} between those {far} apart, at the curvature {k:g}"
            moments.append(JointMoment(text, value, error, _OF_CORRELATIONS))
            for size in _sizes(n):
                sums = unit[i][:, : n // size * size].unflatten(1, (-1, size)).sum(2)
                excess = float(sums.double().square().mean()) / size - 1
                text = f"sums over {size:,} neighbours have {{}} the variance that they should, at the curvature {k:g}"
                moments.append(JointMoment(text, excess, math.sqrt(2 * spread * size / n), _OF_SUMS))
            for j in range(i):
                spread = float((overlaps[i] * overlaps[j]).mean())
                errors = torch.full((n,), math.sqrt(max(spread, 0.0) / n))
                far, value, error = _largest(_products(waves[j], waves[i], n), errors, 0)
                where = f"at places {far} apart" if far else "at the same place"
                text = f"{{}} between those {where} of the tensors of curvatures {self.curvatures[j]:g} and {k:g}"
                moments.append(JointMoment(text, value, error, _OF_CORRELATIONS))
        return moments


def correlated(
    moments: Sequence[JointMoment], refined: Sequence[JointMoment] | None, tolerance: float, refinement: float
) -> JointMoment | None:
    """The worst moment that is no accident, or None; ``refined`` are those of a run at a smaller lr.

    One that vanishes with lr, as a bias of the variance may, is not told.
    """
    worst = None
    for i, moment in enumerate(moments):
        if refined and abs(refined[i].value) <= max(refined[i].bound(tolerance), 2 * abs(moment.value) / refinement):
            continue
        clear = abs(moment.value) / moment.bound(tolerance)
        if moment.exceeds(tolerance) and (worst is None or clear > abs(worst.value) / worst.bound(tolerance)):
            worst = moment
    return worst


def _standardised(states: Tensor) -> Tensor | None:
    """States (t, n) with the mean over both axes taken off, of unit mean square; None where they do not move."""
    states = states - states.mean()
    size = float(states.square().mean().sqrt())
    return states / size if math.isfinite(size) and size > 0 else None


def _products(first: Tensor, second: Tensor, n: int) -> Tensor:
    """Mean over all states and pairs (j, j + L modulo n) of their product, for every distance L, (n,)."""
    return torch.fft.irfft((first.conj() * second).mean(0), n) / n


def _largest(values: Tensor, errors: Tensor, first: int) -> tuple[int, float, float]:
    """Distance, value and error of the correlation that is the most errors off, from distance ``first`` on."""
    at = first + int((values / errors)[first:].abs().argmax())
    n = len(values)
    return min(at, n - at), float(values[at]), float(errors[at])


def _sizes(n: int) -> list[int]:
    """4, 16, 64, … neighbours, and all of them."""
    return [*(4**i for i in range(1, 16) if 2 * 4**i <= n), n]
