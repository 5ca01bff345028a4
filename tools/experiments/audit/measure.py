"""Questions to a chain on a correlated Gaussian: temperature, resuming, a schedule.

The mean loss is L(θ) = ½ θᵀPθ for pairs θ of correlation 0.8, with curvatures 2/9 along the soft axis, (1, 1)/√2, and 2
along the stiff one, (1, −1)/√2. With N data the posterior is N(0, P⁻¹/N). Along an axis, *temperature* is the mean
square in units of the posterior's: 1 if the sampler has the law, more or less by its bias and its noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RHO = 0.8
#: Curvatures of the mean loss along (1, 1)/√2 and (1, −1)/√2.
SOFT, STIFF = 0.4 / (1 + RHO), 0.4 / (1 - RHO)
PRECISION = np.array([[1.0, -RHO], [-RHO, 1.0]]) * 0.4 / (1 - RHO**2)
CHAINS = 1000
#: A window of a run is long enough once positions have forgotten where it began, and the next one says the same.
_FORGOTTEN, _SAME = 0.1, 0.03
_FIRST_WINDOW, _DIVERGED = 400, 1e6
#: Steps between two positions that count.
_EVERY = 4


def start(n: float, temperature: float = 1.0) -> np.ndarray:
    """Exact draws of the posterior, (chains, 2)."""
    z = np.random.default_rng(0).standard_normal((CHAINS, 2)) * math.sqrt(temperature / n)
    u, v = z[:, 0] / math.sqrt(SOFT), z[:, 1] / math.sqrt(STIFF)
    return np.stack([u + v, u - v], 1) / math.sqrt(2)


def axes(x: np.ndarray, n: float, flat: bool = False) -> np.ndarray:
    """Positions along the two axes, (2, chains), in standard deviations of the posterior; ``flat``: of N(0, 1/n)."""
    x = np.asarray(x, np.float64)
    u, v = (x[:, 0] + x[:, 1]) / math.sqrt(2), (x[:, 0] - x[:, 1]) / math.sqrt(2)
    return math.sqrt(n) * np.stack([u, v] if flat else [u * math.sqrt(SOFT), v * math.sqrt(STIFF)])


def law(chain: Any, lr: float, n: float, seconds: float, flat: bool = False) -> dict[str, Any]:
    """Temperatures along the soft and the stiff axis, by windows of a run that double until two agree."""
    begun, window, steps, last = time.process_time(), _FIRST_WINDOW, 0, np.full(2, np.nan)
    with np.errstate(all="ignore"):
        while True:
            first = axes(chain.step(lr), n, flat)
            total, now = np.zeros_like(first), first
            for t in range(window):
                position = chain.step(lr)
                if t % _EVERY == 0:
                    now = axes(position, n, flat)
                    total += now**2
            steps, means = steps + window + 1, total / math.ceil(window / _EVERY)
            heat, error = means.mean(1), means.std(1) / math.sqrt(means.shape[1])
            if not (heat < _DIVERGED).all():
                return {"temperature": None, "steps": steps}
            memory = [abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(first, now, strict=True)]
            same = np.abs(heat - last) <= _SAME * heat + 4 * error
            settled = bool(same.all() and max(memory) < _FORGOTTEN)
            if settled or time.process_time() - begun > seconds:
                return {"temperature": heat.tolist(), "error": error.tolist(), "steps": steps, "settled": settled}
            window, last = 2 * window, heat


def exact_law(make: Callable[..., Any], lr: float, decay: float = 0.0) -> list[float] | None:
    """Stationary mean squares along the soft and the stiff axis where an optimizer's step is linear, else None.

    They are of the step itself, run on basis vectors (`learned_samplers.checks.linear`); with ``decay``, that of a loss
    of zero.
    """
    import torch

    from learned_samplers.checks.linear import read_linear_step

    def factory(params: Any) -> Any:
        optimizer = make(params, **({"decay": decay} if decay else {}))
        for group in optimizer.param_groups:
            group["lr"] = lr
        return optimizer

    if hasattr(factory([torch.zeros(1, requires_grad=True)]), "sampled_params"):
        return None
    try:
        steps = [read_linear_step(factory, curvature) for curvature in ((0.0, 0.0) if decay else (SOFT, STIFF))]
    except (RuntimeError, ValueError):  # of a step that cannot begin at zero, or draws in another way
        return None
    return None if None in steps else [float(step.stationary_covariance(None)[0, 0]) for step in steps if step]


def resumed(begin: Callable[..., Any], lr: float, n: float, steps: int = 30) -> bool:
    """True if a chain that is saved and loaded mid-way goes on bit for bit."""
    ends = []
    for broken in (False, True):
        chain = begin(start(n), n)
        for _ in range(steps):
            chain.step(lr)
        if broken:
            saved, chain = chain.save(), begin(start(n), n)
            chain.load(saved)
        chain.reseed(1)
        for _ in range(steps):
            end = chain.step(lr)
        ends.append(np.array(end))
    return bool((ends[0] == ends[1]).all())


def scheduled(begin: Callable[..., Any], lr: float, n: float, heat: float, length: int, seconds: float) -> float | None:
    """Temperature along the soft axis during three cosine cycles from lr to 0, from draws at ``heat``, over ``heat``.

    It is 1 where the noise follows the step size, and restarts do not disturb the chain.
    """
    chain, begun, squares = begin(start(n, heat), n), time.process_time(), []
    for t in range(4 * length):
        now = axes(chain.step(lr * max(1e-3, 0.5 * (1 + math.cos(math.pi * (t % length) / length)))), n)
        if t >= length:
            squares.append(np.mean(now[0] ** 2))
        if time.process_time() - begun > seconds:
            break
    value = float(np.mean(squares)) / heat if squares else math.nan
    return value if math.isfinite(value) else None
