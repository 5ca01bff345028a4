"""Run of a sampler on a target: its distance from the reference, and its cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from learned_samplers.base import validation
from learned_samplers.benchmark.targets import Target
from learned_samplers.classical.hmc import HMC
from learned_samplers.classical.mclmc import MCLMC
from learned_samplers.diagnostics import ess

#: Learning rates of a sampler without a default; one with a default is run at a third of it, at it, and at three times.
RATES = (0.01, 0.05, 0.2)
_FACTORS = (1 / 3, 1.0, 3.0)
#: Further rates at most, each four times beyond the largest or the smallest one while that is the best.
_EXTENSIONS = 3
#: States that are kept, evenly spaced over the second half of a run.
_DRAWS = 200
#: Pairs of states between which the loss is looked at.
_PAIRS = 10


def default_lr(sampler: Callable[..., Any], params: list[torch.Tensor], num_data: int) -> float | None:
    """The learning rate that a sampler takes by itself, or None where one must be given."""
    cls = getattr(sampler, "sampler", sampler)
    try:
        made = cls(params, num_data=num_data, **getattr(sampler, "settings", {}))
    except (TypeError, ValueError):  # lr is missing
        return None
    return float(made.param_groups[0]["lr"])


def rates(sampler: Callable[..., Any], target: Target) -> tuple[float, ...]:
    """The learning rates at which a sampler is run."""
    params = [p.requires_grad_() for p in target.start(torch.Generator().manual_seed(0))]
    default = default_lr(sampler, params, target.num_data)
    return RATES if default is None else tuple(default * factor for factor in _FACTORS)


def run(sampler: Callable[..., Any], target: Target, lr: float, gradients: int, seed: int = 0) -> dict[str, Any]:
    """A chain of so many gradients; ``sampler`` makes an optimizer of (params, lr=, num_data=, prior_precision=).

    Returns:
        lr, gradients, seconds (of a processor), and the measures of `measures`; or "diverged", why there are none.
    """
    validation.integer("gradients", gradients, least=4 * _DRAWS)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    params = [p.requires_grad_() for p in target.start(generator)]
    prior = {"prior_precision": target.prior_precision} if target.prior_precision else {}
    keywords = {"lr": lr, "num_data": target.num_data, **prior}
    try:
        optimizer = sampler(params, **keywords)
    except TypeError as error:
        names = ", ".join(f"{name}=" for name in keywords)
        raise TypeError(f"sampler must be made from (params, {names}): {error}") from error
    except ValueError as error:  # a rate that it refuses
        return {"lr": lr, "diverged": str(error)[:100]}
    full, used = torch.arange(target.num_data), 0

    def closure() -> torch.Tensor:
        nonlocal used
        used += 1
        optimizer.zero_grad()
        loss = target.loss(params, rows)
        loss.backward()
        return loss.detach()

    exact = isinstance(optimizer, HMC | MCLMC)  # their energy is of all data
    kept: list[np.ndarray] = []
    states: list[list[torch.Tensor]] = []
    every, begun = max(1, gradients // (2 * _DRAWS)), time.process_time()
    draw = getattr(optimizer, "sampled_params", None)
    try:
        while used < gradients:
            small = target.batch < target.num_data and not exact
            rows = full[torch.randint(target.num_data, (target.batch,), generator=generator)] if small else full
            optimizer.step(closure)
            due = used >= gradients / 2 + every * len(kept)
            if due and getattr(optimizer, "is_sampling", True):
                kept.append(_quantities(target, params, draw))
                states.append([p.detach().clone() for p in params])
    except (FloatingPointError, ValueError) as error:  # not finite, or refused: MCLMC where lr is far too large
        return {"lr": lr, "diverged": str(error)[:100]}
    seconds, draws = time.process_time() - begun, np.array(kept)
    if len(kept) < 20:
        return {"lr": lr, "diverged": f"only {len(kept)} states in which it samples"}
    if not np.isfinite(draws).all():
        return {"lr": lr, "diverged": "its states are not finite"}
    result = {"lr": lr, "gradients": used, "seconds": seconds, **measures(draws, target, used, seconds)}
    if target.classes:
        result["barrier"] = barrier(states, target)
    return result


def _quantities(target: Target, params: list[torch.Tensor], draw: Any) -> np.ndarray:
    with torch.no_grad():
        if draw is None:
            return target.quantities(params).numpy().copy()
        with draw():  # a variational Gaussian: one of its draws
            return target.quantities(params).numpy().copy()


def measures(draws: np.ndarray, target: Target, gradients: int, seconds: float) -> dict[str, float]:
    """Distances of draws (draw, quantity) from the reference, and effective draws.

    - ``mean_error``: root mean square of the means' errors, in standard deviations of the reference.
    - ``deviation_error``: mean |log(σ/σ_ref)| of the standard deviations.
    - ``total_variation``: of predicted class probabilities, mean over rows; only of classifiers.
    - ``ess``: median effective sample size of the quantities; also for 1,000 gradients and a second.
    """
    mean, deviation = target.reference()
    moved = np.maximum(draws.std(0), 1e-12)
    sizes = np.median(np.where(np.ptp(draws, axis=0) > 0, ess(draws[None]), 0.0))
    result = {
        "mean_error": float(np.sqrt(np.mean(((draws.mean(0) - mean) / deviation) ** 2))),
        "deviation_error": float(np.mean(np.abs(np.log(moved / deviation)))),
        "ess": float(sizes),
        "ess_per_1000_gradients": float(1000 * sizes / gradients),
        "ess_per_second": float(sizes / seconds),
    }
    if target.classes:
        result["total_variation"] = float(np.abs(draws.mean(0) - mean).sum() / 2 * target.classes / len(mean))
    return result


def barrier(states: Sequence[list[torch.Tensor]], target: Target) -> float:
    """Loss of all data half way between two states, above the mean of theirs; the mean over pairs far apart."""
    half, full = len(states) // 2, torch.arange(target.num_data)

    def loss(params: list[torch.Tensor]) -> float:
        with torch.no_grad():
            return float(target.loss(params, full))

    heights = []
    for i in np.linspace(0, half - 1, _PAIRS).astype(int):
        one, two = states[i], states[i + half]
        middle = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
        heights.append(loss(middle) - (loss(one) + loss(two)) / 2)
    return float(np.mean(heights))


def distance(result: dict[str, Any]) -> float:
    """Return the error that chooses the learning rate: the total variation of a classifier, else both errors."""
    if "diverged" in result:
        return math.inf
    return result.get("total_variation", result["mean_error"] + result["deviation_error"])


def benchmark(sampler: Callable[..., Any], target: Target, gradients: int, seed: int = 0) -> dict[str, Any]:
    """The run at the best learning rate, by its distance, and the distances at all that were tried.

    Three, and then four times the largest, or a quarter of the smallest, while that is the best; at most three more.
    """
    runs = [run(sampler, target, lr, gradients, seed) for lr in rates(sampler, target)]
    for _ in range(_EXTENSIONS):
        best = min(runs, key=distance)
        if best is runs[-1]:
            runs.append(run(sampler, target, 4 * best["lr"], gradients, seed))
        elif best is runs[0]:
            runs.insert(0, run(sampler, target, best["lr"] / 4, gradients, seed))
        else:
            break
    best = min(runs, key=distance)
    tried = {f"{r['lr']:.3g}": distance(r) if "diverged" not in r else r["diverged"] for r in runs}
    return {**best, "tried": tried}


def row(name: str, results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """One line of a table, from target → result."""

    def cell(result: dict[str, Any]) -> str:
        if "diverged" in result:
            return "–"
        efficiency = f"{result['ess_per_1000_gradients']:.2g}"
        if "total_variation" in result:
            return f"{result['total_variation']:.3f} ({efficiency})"
        return f"{result['mean_error']:.2f}, {result['deviation_error']:.2f} ({efficiency})"

    return {"sampler": name} | {target: cell(result) for target, result in results.items()}
