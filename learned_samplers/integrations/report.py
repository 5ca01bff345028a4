"""The numbers of a chain that a logger is sent, by tag: rates, temperatures, warm-up, acceptance, time, settling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from learned_samplers.base.operations import as_number
from learned_samplers.base.sampler import Sampler
from learned_samplers.classical.restarts import Restarts
from learned_samplers.posterior import PosteriorSamples
from learned_samplers.posterior.snapshots import unwrapped
from learned_samplers.posterior.verdict import ENOUGH


def sampler_of(optimizer: Any) -> Sampler | None:
    """Return the sampler that an optimizer is, wraps, or runs now (`Restarts`); None where there is none."""
    optimizer = unwrapped(optimizer)
    optimizer = optimizer.current if isinstance(optimizer, Restarts) else optimizer
    return optimizer if isinstance(optimizer, Sampler) else None


def rates(sampler: Sampler) -> dict[str, float]:
    """Learning rate and temperature of a sampler's next step, by tag, for each parameter group.

    These are the values that the update takes: within a cycle of `CyclicalSGMCMC` the learning rate falls and the
    temperature is 0 while it explores, though ``lr`` and ``temperature`` of the group stay. Where there are several
    groups, the tag ends in the group's name, or its number.
    """
    values = {}
    for group, suffix in _groups(sampler):
        hyper = sampler.hyper(group)
        for tag, key in (("learning_rate", "lr"), ("temperature", "temperature")):
            factor = getattr(sampler, "lr_factor", 1.0) if key == "lr" else 1.0  # what HMC adapts
            values[f"chain/{tag}{suffix}"] = float(as_number(hyper.get(key, group[key]))) * factor
    return values


def temperatures(sampler: Sampler, *, gradients: bool = True) -> dict[str, float]:
    """`Sampler.temperatures` by tag; without ``gradients`` of the present weights the kinetic ones alone."""
    values = {}
    for (_, suffix), measured in zip(_groups(sampler), sampler.temperatures(), strict=True):
        for name in ("kinetic", "configurational") if gradients else ("kinetic",):
            values[f"chain/{name}_temperature{suffix}"] = measured[name]
    return _without_nan(values)


def phase(sampler: Sampler) -> dict[str, float]:
    """Return by tag where the last step has led: whether to a sample, the cycle, warm-up left, proposals accepted."""
    values = {"chain/sampling": float(sampler.is_sampling), "chain/cycle": float(sampler.cycle)}
    group = sampler.param_groups[0]
    if group.get("warmup_steps"):
        done, length = sampler.step_count, group.get("cycle_length")
        done -= sampler.cycle * length if length else 0
        values["chain/warmup_left"] = float(max(0, group["warmup_steps"] - done))
    values["chain/acceptance_rate"] = float(getattr(sampler, "acceptance_rate", float("nan")))
    return _without_nan(values)


class Report:
    """Gathers what is logged of a run: `measure` between gradients and step, `values` after the step.

    Args:
        inputs: a few inputs whose predictions are judged, whenever the number of samples has doubled, from eight on;
            None for no judgement.
        options: those of the prediction, such as ``output``.
    """

    def __init__(self, inputs: Any = None, options: Mapping[str, Any] | None = None) -> None:
        self.inputs, self.options = inputs, dict(options or {})
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin to measure time, at this step."""
        self._time, self._first, self._judged = time.perf_counter(), step, 0
        self._measured: dict[str, float] = {}

    def measure(self, optimizer: Any, *, gradients: bool = True) -> None:
        """Measure rates and temperatures; ``gradients`` says whether the present ones belong to the weights."""
        sampler = sampler_of(optimizer)
        self._measured = {} if sampler is None else {**rates(sampler), **temperatures(sampler, gradients=gradients)}

    def values(self, optimizer: Any, step: int, total: float, posterior: PosteriorSamples | None) -> dict[str, float]:
        """Return what was measured and what the step has led to, of a run of ``total`` steps."""
        sampler = sampler_of(optimizer)
        values = {**self._measured, **({} if sampler is None else phase(sampler))}
        if isinstance(restarts := unwrapped(optimizer), Restarts):
            values |= {"chain/sampling": float(restarts.is_sampling), "chain/number": float(restarts.chain)}
        if posterior is not None:
            values |= {"chain/samples": float(len(posterior)), **self._judgement(posterior)}
        if 0 < total < float("inf"):
            pace = (time.perf_counter() - self._time) / max(1, step - self._first)
            values["chain/seconds_left"] = pace * max(0.0, total - step)
        return values

    def _judgement(self, posterior: PosteriorSamples) -> dict[str, float]:
        if self.inputs is None or len(posterior) < max(ENOUGH, 2 * self._judged):
            return {}
        self._judged = len(posterior)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            verdict = posterior.verdict(self.inputs, **self.options)
        settled = float(bool(verdict.settled))
        values = {"rhat": verdict.within, "effective_samples": verdict.effective, "settled": settled}
        return _without_nan({f"chain/{name}": value for name, value in values.items()})


def _groups(sampler: Sampler) -> list[tuple[dict[str, Any], str]]:
    """Return each group with the end of its tags: "" of a single one, else its name or number."""
    several = len(sampler.param_groups) > 1
    return [(group, f"/{group.get('name', n)}" if several else "") for n, group in enumerate(sampler.param_groups)]


def _without_nan(values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that there are: NaN (of a sampler without momentum, say) is no JSON."""
    return {name: value for name, value in values.items() if value == value}
