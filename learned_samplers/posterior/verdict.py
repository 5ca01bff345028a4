"""Has the chain settled? What its samples' predictions say, and one line of what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.temperatures import kinetic_temperature
from learned_samplers.classical.restarts import Restarts
from learned_samplers.posterior.settling import effective_size, rhat
from learned_samplers.posterior.store import Entry

#: Draws of a chain, or of a cycle, from which it is judged.
ENOUGH = 8
#: R̂ between the halves of a chain beyond which it drifts, if few samples are effective: of 0.9 of the coordinates it
#: is smaller. Chains of 30 samples that had settled, 13 of them effective, had up to 1.36.
LARGEST_RHAT = 1.2
#: Draws of a chain from which twice that excess alone says that it drifts.
MANY = 100
#: Effective samples of a chain that its average needs at least.
FEWEST = 5.0
#: Standard deviations of the last half between its mean and that of the first tenth.
FARTHEST = 4.0
#: Rows, and coordinates of their predictions, that are compared.
ROWS, COORDINATES = 64, 256
#: Temperatures below it are named where a chain has not settled.
COLD = 0.01
#: Times the temperature that was asked for: more of the momenta's says that minibatches heat the chain.
HOT = 1.5
#: Relative difference of temperatures that are taken for one.
SAME = 0.01
#: Logarithms of smaller probabilities are rounding.
SMALLEST = 1e-30


class Unsettled(UserWarning):
    """Predictions average over a chain that has not settled, or that is no sample of a proper posterior."""


@dataclass(frozen=True)
class Origin:
    """The chain that samples come from, as it was when collecting began.

    sampler: the class; samples: False of an optimizer of ``torch.optim``; temperature: the largest of its groups, for
    samples that have none recorded; flat_prior: whether ``prior_precision`` is 0 in all of them, and the network has no
    prior of its own (`Chains`).
    """

    sampler: str
    samples: bool
    temperature: float
    flat_prior: bool

    @staticmethod
    def of(sampler: Optimizer, model: torch.nn.Module) -> Origin:
        """Return the origin of the samples that this sampler makes of this model."""
        sampler = sampler.current if isinstance(sampler, Restarts) else sampler
        samples = isinstance(sampler, Sampler)
        precisions = [as_number(group.get("prior_precision", 0.0)) for group in sampler.param_groups]
        network_prior = getattr(model, "prior_precision", None)
        has_prior = isinstance(network_prior, Tensor) and bool((network_prior > 0).any())
        flat = not any(precisions) and not has_prior
        temperature = temperature_of(sampler)
        return Origin(type(sampler).__name__, samples, 1.0 if temperature is None else temperature, samples and flat)


def temperature_of(sampler: Optimizer | None) -> float | None:
    """Return the largest temperature of an optimizer's groups, None without any."""
    groups = [] if sampler is None else sampler.param_groups
    return max((as_number(group["temperature"]) for group in groups if "temperature" in group), default=None)


def kinetic_of(sampler: Optimizer | None) -> float | None:
    """Return the mean of r² over all momenta of a sampler; None where it has none, or it is not finite."""
    sampler = sampler.current if isinstance(sampler, Restarts) else sampler
    kinetic = kinetic_temperature(sampler, sampler.param_groups) if isinstance(sampler, Sampler) else math.nan
    return kinetic if math.isfinite(kinetic) else None


class Verdict(NamedTuple):
    """The judgement on a collection.

    Attributes:
        settled: True where every number is where it has to be, False where one is not, and None where there are too few
            samples to tell: short chains that have settled may look as if they drifted, and the other way round.
        within: R̂ between the halves of a chain, the 0.9 quantile over coordinates of the mean over chains.
        across: split R̂ over chains; NaN of one chain. Networks that settle in different modes do not agree, and the
            average over them is the better for it.
        effective: effective samples, of all chains together; the median over coordinates.
        draws: samples of all chains.
        remarks: what is wrong with it and what to change, in words; empty if nothing is.
        text: one line of all that.
    """

    settled: bool | None
    within: float
    across: float
    effective: float
    draws: int
    remarks: tuple[str, ...]
    text: str


class Probe:
    """Takes the predictions of all samples for the first rows as they pass by.

    Args:
        probabilities: whether they are probabilities, of which the logarithms are judged.
    """

    def __init__(self, *, probabilities: bool) -> None:
        self._probabilities, self._parts = probabilities, list[Tensor]()
        #: Of the predictions of a sample, (n, ...).
        self.shape: tuple[int, ...] = ()

    def add(self, rows: slice, part: Tensor) -> None:
        """Take predictions (k, n, ...) of k more samples for these rows."""
        if rows.start == 0:
            rows_seen = part[:, :ROWS].detach()
            first, self.shape = rows_seen.flatten(1), tuple(rows_seen.shape[1:])
            self._parts.append(first[:, :: -(-first.shape[1] // COORDINATES)].clone().cpu())

    def values(self) -> np.ndarray:
        """Return what is judged, (sample, coordinate)."""
        values = torch.cat(self._parts).real.double()
        if self._probabilities:
            values = values.clamp_min(SMALLEST).log()
        return values.numpy()

    def names(self, what: str) -> list[str]:
        """Return the names of the coordinates, as in "log p[row 3, 1]"; ``what`` is predicted."""
        size = math.prod(self.shape)
        places = [np.unravel_index(flat, self.shape) for flat in range(0, size, -(-size // COORDINATES))]
        return [f"{what}[row {', '.join(str(int(i)) for i in place)}]" for place in places]


def judge(values: np.ndarray | None, entries: Sequence[Entry], origin: Origin | None) -> Verdict:
    """Judge samples by their predictions, (sample, coordinate), which should be stationary.

    Each cycle of a chain is judged as a chain.

    Args:
        values: the predictions; None if there are none to judge by.
        entries: the records of the samples.
        origin: what is known of the chain, if anything is.
    """
    positions: dict[tuple[int, int], list[int]] = {}
    for position, entry in enumerate(entries):
        positions.setdefault((entry.chain, entry.cycle), []).append(position)
    length = min(map(len, positions.values()))
    remarks, numbers = _remarks_on_origin(origin, [entry.temperature for entry in entries]), Numbers()
    if values is None:
        unknown = "nothing has been predicted to judge a chain by: call verdict(x) with a batch of inputs"
    elif not np.isfinite(values).all():
        unknown = "predictions are not finite"
        remarks.append("the chain has diverged: lower lr")
    elif length < ENOUGH:
        unknown = f"{length} samples are too few to judge a chain by"
    else:
        # The last ones of each, so that they are of one length.
        chains = np.stack([values[indices[-length:]] for indices in positions.values()])
        numbers = Numbers.of(chains)
        unsettled = _remarks_on_settling(chains, numbers)
        remarks += unsettled + _remarks_on_heat(entries)
        temperatures = [entry.temperature for entry in entries if entry.temperature is not None]
        if unsettled and temperatures and 0 < max(temperatures) < COLD:
            remarks.append(f"temperature={max(temperatures):g} leaves hardly any noise to settle by: raise it")
        unknown = "" if numbers.within <= LARGEST_RHAT else f"too few samples to tell, keep {MANY} of a chain or more"
    is_settled = False if remarks else None if unknown else True
    state = "not settled" if remarks else unknown or "settled"
    if math.isfinite(numbers.within):
        state += f": R-hat {numbers.within:.2f} between halves"
        state += f" and {numbers.across:.2f} across {len(positions)} chains" if len(positions) > 1 else ""
        state += f", {numbers.effective:.0f} effective of {len(entries)} samples"
    if origin is not None and origin.flat_prior:
        remarks.append(
            "prior_precision=0 is a flat, improper prior, unless the loss holds one: set it, to 1 for a start"
        )
    return Verdict(is_settled, *numbers, len(entries), tuple(remarks), "; ".join([state, *remarks]))


class Numbers(NamedTuple):
    """The numbers of a `Verdict`."""

    within: float = float("nan")
    across: float = float("nan")
    effective: float = float("nan")

    @staticmethod
    def of(chains: np.ndarray) -> Numbers:
        """Return those of chains (chain, draw, coordinate)."""
        count, length, _ = chains.shape
        half = length // 2
        halves = np.stack([chains[:, :half], chains[:, length - half :]], 1)  # (chain, 2, half, coordinate)
        within = float(np.quantile(np.mean([rhat(chain) for chain in halves], 0), 0.9))
        across = float(np.quantile(rhat(halves.reshape(2 * count, half, -1)), 0.9)) if count > 1 else float("nan")
        effective = float(np.median(np.sum([effective_size(chain) for chain in chains], 0)))
        return Numbers(within, across, min(effective, float(count * length)))  # of a few draws it may be anything


def _remarks_on_origin(origin: Origin | None, recorded: Sequence[float | None]) -> list[str]:
    """Return what is wrong with where samples come from; ``recorded`` are their temperatures, None of unknown ones."""
    if origin is None:
        return []
    if not origin.samples:
        return [
            f"{origin.sampler} is no sampler: this is an average over its trajectory, whose spread is no posterior "
            "uncertainty"
        ]
    temperatures = [origin.temperature if one is None else one for one in recorded] or [origin.temperature]
    low, high = min(temperatures), max(temperatures)
    if high == 0:
        return ["temperature=0: an average over a trajectory, whose spread is no posterior uncertainty"]
    if low < (1 - SAME) * high:
        return [
            f"samples were kept at temperatures from {low:g} to {high:g}, each of another distribution: raise burn_in, "
            "or drop the samples of one"
        ]
    return []


def _remarks_on_settling(chains: np.ndarray, numbers: Numbers) -> list[str]:
    """Return what is wrong with chains (chain, draw, coordinate)."""
    count, length, _ = chains.shape
    effective = numbers.effective / count
    start, late = _distance_of_start(chains), Numbers.of(chains[:, length // 2 :])
    if start > FARTHEST and late.within < 2 * LARGEST_RHAT:
        return [
            f"the first samples are {start:.0f} standard deviations from the later ones: raise burn_in, or drop them, "
            f"as in posterior[{length // 4}:]"
        ]
    is_sure = length >= MANY and numbers.within > 1 + 2 * (LARGEST_RHAT - 1)
    if numbers.within > LARGEST_RHAT and (effective < min(2 * FEWEST, length / 2) or is_sure):
        return ["the chain still drifts: run it longer or raise lr, and raise burn_in or drop the first samples"]
    if effective < FEWEST and length >= 4 * FEWEST:
        return ["few effective samples: run the chain longer or raise lr"]
    return []


def _remarks_on_heat(entries: Sequence[Entry]) -> list[str]:
    """Return what is wrong with the temperature of the momenta, beyond four standard errors of its mean."""
    known = [(entry.kinetic, entry.temperature) for entry in entries if entry.kinetic is not None and entry.temperature]
    ratios = np.array([kinetic / asked for kinetic, asked in known])
    if len(ratios) < ENOUGH or ratios.mean() - 4 * ratios.std(ddof=1) / math.sqrt(len(ratios)) <= HOT:
        return []
    return [
        f"the momenta have {ratios.mean():.1f} times the temperature that was asked for, so weights spread too far: "
        "lower lr or take larger minibatches"
    ]


def _distance_of_start(chains: np.ndarray) -> float:
    """Return the median over coordinates of how far the first tenth is from the last half, in its deviations."""
    length = chains.shape[1]
    first, last = chains[:, : max(1, length // 10)].mean(1), chains[:, length // 2 :]
    deviations = last.std(1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.where(deviations > 0, np.abs(first - last.mean(1)) / deviations, 0.0)
    return float(np.median(distances))
