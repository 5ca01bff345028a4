"""`suggest_prior` and `suggest_temperature`: what held-out rows say of the two numbers that a user would guess."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from learned_samplers.base import validation
from learned_samplers.base.operations import as_number
from learned_samplers.base.prior import Prior
from learned_samplers.checks.step_size import Loss, MeanLoss

#: Makes a sampler from named parameters.
NamedFactory = Callable[[list[tuple[str, Tensor]]], torch.optim.Optimizer]

#: Share of the steps in which the chain leaves its first weights, at least.
_BURN_IN = 1 / 4
#: Share of the steps at each value in which the chain follows it, before samples are kept.
_SETTLING = 1 / 3
#: Samples kept at each value.
_SAMPLES = 30
#: The path ends where so many values, one after the other, are worse than the best by so many standard errors.
_WORSE, _ERRORS = 2, 3.0


@dataclass(frozen=True)
class HeldOutRow:
    """Evidence of the held-out rows about one value."""

    value: float
    #: Negative log-likelihood of the average over the samples at this value, mean over the held-out rows.
    nll: float
    #: How much worse than the suggested value, with its standard error: of the rows, and of the chain's two halves.
    difference: float
    error: float


@dataclass(frozen=True)
class HeldOutReport:
    """The result of `suggest_prior` and `suggest_temperature`: ``print`` it, read its fields, or draw it by
    :func:`learned_samplers.plots.held_out_path`.
    """

    #: What the values are of.
    quantity: str
    sampler: str
    held_out: int
    steps: int
    rows: tuple[HeldOutRow, ...]
    #: The sampler's own value.
    present: float
    #: The value of the lowest NLL, smoothed over its neighbours.
    suggested: float
    #: Whether the present value is worse than that by more than a standard error.
    decided: bool
    #: Whether the chain, back at the present value after the path, predicts no better than before. If it does, it was
    #: still learning, and the later values look better than they are.
    settled: bool
    #: What to give for ``prior_precision=``, or ``temperature=``.
    setting: Any

    def __str__(self) -> str:
        lines = [
            f"{self.sampler}, {self.steps} steps along a path, {self.held_out} held-out rows",
            f"{self.quantity:>26}{'NLL':>10}{'worse than suggested by':>26}",
        ]
        for row in self.rows:
            mark = " <- suggested" if row.value == self.suggested else ""
            worse = f"{row.difference:.3f} ± {row.error:.3f}" if row.error else "-"
            lines.append(f"{row.value:26.3g}{row.nll:10.3f}{worse:>26}{mark}")
        verdict = f"take {self.setting!r}"
        if self.suggested != self.present and not self.decided:
            verdict += f"; the data do not decide against your {self.present:g}"
        if not self.settled:
            verdict += "; but the chain was still learning along the path, which flatters the last values: raise steps"
        return "\n".join([*lines, verdict])


@torch.random.fork_rng(devices=[])
def suggest_prior(
    model: nn.Module,
    loss: Loss,
    data: Any,
    sampler: NamedFactory,
    *,
    factors: Sequence[float] = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03),
    held_out: Any = 0.2,
    steps: int = 5000,
    batch_size: int = 64,
    seed: int = 0,
) -> HeldOutReport:
    """Suggest how wide the prior should be, by the likelihood of rows that the chain does not see.

    One chain begins under ten times the sampler's ``prior_precision`` and goes on under less and less; at each value
    the average over its samples predicts the held-out rows::

        report = suggest_prior(model, nn.functional.cross_entropy, (x, y), make)
        print(report)
        sampler = SGHMC(model.named_parameters(), 0.05, num_data=len(x), prior_precision=report.setting)

    The suggestion is the lowest NLL, smoothed over neighbours; where it is better than yours by less than a standard
    error, the report says that the data do not decide. It holds for chains of that length: a wide prior needs a longer
    one.

    Args:
        model: the network at its first weights; it is copied.
        loss: from (outputs, targets) to the mean loss, a negative log-likelihood, as in your training loop.
        data: inputs and targets; or a loader of batches of both.
        sampler: makes the sampler of named parameters, as
            ``lambda named: SGHMC(named, 0.05, num_data=N, prior_precision=1.0)``.
        factors: of the sampler's ``prior_precision``, of all its groups together, each above 0.
        held_out: share of the rows to hold out, drawn at random; or inputs and targets. A loader needs the latter.
        steps: of the whole path.
        batch_size: rows of a step, where ``data`` are tensors.
        seed: of everything random.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name; the sampler's prior is flat, or is sampled.
        FloatingPointError: the loss is not finite.
    """
    values = _values("factors", factors)
    path = _Path(model, loss, data, sampler, held_out, steps, batch_size, seed)
    prior = getattr(path.sampler, "prior", None)
    if prior is not None and prior.every:
        raise ValueError(f"sampler must have a prior_precision that stays, got {prior!r}, which is sampled")
    precisions = [as_number(group.get("prior_precision", 0.0)) for group in path.sampler.param_groups]
    if not any(precisions):
        raise ValueError("sampler must have a prior_precision above 0 to begin from, got 0: a flat prior")

    def change(factor: float) -> None:
        for group, precision in zip(path.sampler.param_groups, precisions, strict=True):
            group["prior_precision"] = factor * precision

    def setting(factor: float) -> float | Prior:
        return _rounded(factor * precisions[0]) if prior is None else prior.scaled(factor)

    return path.report("factor of prior_precision", values, 1.0, change, setting)


@torch.random.fork_rng(devices=[])
def suggest_temperature(
    model: nn.Module,
    loss: Loss,
    data: Any,
    sampler: NamedFactory,
    *,
    temperatures: Sequence[float] = (1.0, 0.3, 0.1, 0.03, 0.01),
    held_out: Any = 0.2,
    steps: int = 5000,
    batch_size: int = 64,
    seed: int = 0,
) -> HeldOutReport:
    """Suggest a temperature, by the likelihood of rows that the chain does not see.

    One chain begins at the highest temperature and is cooled; all else is as in `suggest_prior`::

        print(suggest_temperature(model, nn.functional.cross_entropy, (x, y), make))

    Args:
        model, loss, data, sampler, held_out, steps, batch_size, seed: as in `suggest_prior`.
        temperatures: T, each above 0.

    Raises:
        TypeError, ValueError: an argument that cannot be used, by name; the sampler has no one ``temperature``.
        FloatingPointError: the loss is not finite.
    """
    values = _values("temperatures", temperatures)
    path = _Path(model, loss, data, sampler, held_out, steps, batch_size, seed)
    present = {as_number(group.get("temperature", math.nan)) for group in path.sampler.param_groups}
    if len(present) != 1 or math.isnan(*present):
        raise ValueError(f"sampler must have one temperature for all parameters, got {sorted(present)}")

    def change(temperature: float) -> None:
        for group in path.sampler.param_groups:
            group["temperature"] = temperature

    return path.report("temperature", values, present.pop(), change, _rounded)


def _values(name: str, values: Any) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) < 2:
        raise TypeError(f"{name} must be two numbers or more, got {values!r:.60}")
    for value in values:
        validation.positive(name, value)
    return sorted({float(value) for value in values}, reverse=True)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


class _Path:
    """A chain on a copy of the network whose prior or temperature changes on its way."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Any,
        sampler: NamedFactory,
        held_out: Any,
        steps: int,
        batch_size: int,
        seed: int,
    ):
        validation.module("model", model)
        validation.function("loss", loss, "torch.nn.functional.cross_entropy")
        validation.function("sampler", sampler, "lambda named: SGHMC(named, 0.05, num_data=N, prior_precision=1.0)")
        validation.integer("steps", steps, least=100)
        validation.integer("batch_size", batch_size)
        seed = validation.seed("seed", seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.model, self.loss, self.steps = copy.deepcopy(model), loss, int(steps)
        self.batches, self.held_out, share = self._data(data, held_out, batch_size)
        MeanLoss(self.model, loss, *self.held_out, 1024).refuse_sums()
        torch.default_generator.manual_seed(seed)  # samplers may draw from it; the caller's state is put back
        self.sampler = self._made_by(sampler, share)

    def _data(self, data: Any, held_out: Any, batch_size: int) -> tuple[Iterator[Any], tuple[Tensor, Tensor], float]:
        """Return batches without end, the held-out rows, and the share of the rows that the chain sees."""
        kept = None if isinstance(held_out, float | int) else validation.inputs_and_targets(held_out)
        if isinstance(data, DataLoader):
            if kept is None:
                raise ValueError(f"held_out must be inputs and targets where data is a loader, got {held_out!r}")
            return (batch for _ in iter(int, 1) for batch in data), kept, 1.0
        inputs, targets = validation.inputs_and_targets(data)
        share = 1.0
        if kept is None:
            validation.fraction("held_out", held_out, open_left=True, open_right=True)
            order = torch.randperm(len(inputs), generator=self.generator).to(inputs.device)
            left_out = max(1, round(held_out * len(inputs)))
            if left_out >= len(inputs):
                raise ValueError(f"held_out={held_out} leaves no row of {len(inputs)} to the chain")
            share = 1 - left_out / len(inputs)
            kept = inputs[order[:left_out]], targets[order[:left_out]]
            inputs, targets = inputs[order[left_out:]], targets[order[left_out:]]
        size = min(batch_size, len(inputs))

        def batches() -> Iterator[Any]:
            while True:
                rows = torch.randint(len(inputs), (size,), generator=self.generator).to(inputs.device)
                yield inputs[rows], targets[rows]

        return batches(), kept, share

    def _made_by(self, factory: NamedFactory, share: float) -> Any:
        sampler = factory([(name, p) for name, p in self.model.named_parameters() if p.requires_grad])
        if not isinstance(sampler, torch.optim.Optimizer) or "num_data" not in sampler.param_groups[0]:
            raise TypeError(f"sampler must return a sampler of this library, got {type(sampler).__name__}")
        if getattr(sampler, "needs_closure", False) or getattr(sampler, "schedule", None) is not None:
            raise ValueError(f"sampler must sample at every step and without a closure, got {type(sampler).__name__}")
        for group in sampler.param_groups:
            group["num_data"] = as_number(group["num_data"]) * share
        return sampler

    def _walk(self, steps: int) -> Iterator[int]:
        for step in range(steps):
            inputs, targets = next(self.batches)
            self.sampler.zero_grad()
            value = self.loss(self.model(inputs), targets)
            if not value.isfinite():
                raise FloatingPointError(f"the loss is not finite in the path: {value.item()}; lower lr")
            value.backward()
            self.sampler.step()
            yield step

    def _log_likelihoods(self) -> Tensor:
        """Log-likelihood of every held-out row under the present weights."""
        training, (inputs, targets) = self.model.training, self.held_out
        self.model.eval()
        with torch.no_grad():
            outputs = torch.cat([self.model(part) for part in inputs.split(1024)])
            rows = torch.vmap(lambda output, target: self.loss(output[None], target[None]))(outputs, targets)
        self.model.train(training)
        return -rows.double()

    def _at(self, steps: int) -> tuple[Tensor, float]:
        """Log-likelihood of every row averaged over the samples, and its standard error in mean, of the chain."""
        start = int(_SETTLING * steps)
        every = max(1, (steps - start) // _SAMPLES)
        kept = [self._log_likelihoods() for step in self._walk(steps) if step >= start and (step - start) % every == 0]
        samples = torch.stack(kept)
        first, second = (part.logsumexp(0) - math.log(len(part)) for part in samples.tensor_split(2))
        apart = (first.mean() - second.mean()).abs().item() / 2
        return samples.logsumexp(0) - math.log(len(samples)), apart

    def report(
        self,
        quantity: str,
        values: list[float],
        present: float,
        change: Callable[[float], None],
        setting: Callable[[float], Any],
    ) -> HeldOutReport:
        """Walk along the path, and say which value the held-out rows prefer."""
        if present not in values:
            values = sorted({*values, present}, reverse=True)
        change(values[0])
        made = sum(1 for _ in self._walk(int(_BURN_IN * self.steps)))
        while not self.sampler.is_sampling:
            if made >= self.steps:
                raise ValueError(f"steps={self.steps} end before the sampler has warmed up: raise steps")
            made += sum(1 for _ in self._walk(1))
        steps_per_value = (self.steps - made) // (len(values) + 1)
        if steps_per_value < 20:
            raise ValueError(f"steps={self.steps} are too few for {len(values)} values after {made} of warm-up")
        seen: list[tuple[float, Tensor, float]] = []
        worse = 0
        for value in values:
            change(value)
            seen.append((value, *self._at(steps_per_value)))
            rows = _compared(seen)
            worse = worse + 1 if rows[-1].difference > _ERRORS * rows[-1].error > 0 else 0
            if value < present and worse >= _WORSE:
                break
        change(present)
        gain, error = _difference(
            self._at(steps_per_value), next((density, e) for value, density, e in seen if value == present)
        )
        at_present = next(row for row in rows if row.value == present)
        suggested = next(row.value for row in rows if not row.error)
        return HeldOutReport(
            quantity=quantity,
            sampler=type(self.sampler).__name__,
            held_out=len(self.held_out[1]),
            steps=made + steps_per_value * (len(rows) + 1),
            rows=tuple(rows),
            present=present,
            decided=at_present.difference > at_present.error,
            suggested=suggested,
            settled=gain <= 2 * error,
            setting=setting(suggested),
        )


def _compared(seen: list[tuple[float, Tensor, float]]) -> list[HeldOutRow]:
    """Each value beside the best one, in pairs over the held-out rows."""
    nll = [-density.mean().item() for _, density, _ in seen]
    # With its neighbours, at half its weight: one value's samples are few, and the truth is smooth.
    smooth = []
    for index, loss in enumerate(nll):
        beside = nll[max(0, index - 1) : index] + nll[index + 1 : index + 2]
        smooth.append((2 * loss + sum(beside)) / (2 + len(beside)))
    _, *best = seen[smooth.index(min(smooth))]
    rows = []
    for (value, *entry), loss in zip(seen, nll, strict=True):
        gap, error = _difference(best, entry) if entry[0] is not best[0] else (0.0, 0.0)
        rows.append(HeldOutRow(value, loss, gap, error))
    return rows


def _difference(first: Sequence[Any], second: Sequence[Any]) -> tuple[float, float]:
    """By how much the first log-likelihoods of the rows are higher in mean, with its standard error."""
    (densities, error), (second_densities, second_error) = first, second
    gaps = densities - second_densities
    of_rows = gaps.std(correction=0).item() / math.sqrt(max(1, len(gaps) - 1))
    return gaps.mean().item(), math.sqrt(of_rows**2 + error**2 + second_error**2)
