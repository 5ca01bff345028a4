"""Measure the samplers of a package, in a Python that has it: ``python -m experiments.audit.child PACKAGE SECONDS``.

The last line of the output is JSON: versions, and a row for each sampler.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import sys
import time
from functools import partial
from typing import Any

from experiments.audit import measure
from experiments.audit.subjects import SUBJECTS, Subject, ours

SIZES = (1000, 50_000)
_WEIGHT_DECAY, _BURN_IN = 0.5, 40


def measured(subject: Subject, seconds: float) -> dict[str, Any]:
    """All answers of a sampler."""
    begun, n, lr = time.process_time(), SIZES[0], subject.rate(SIZES[0])
    row: dict[str, Any] = {"sampler": subject.name, "example": subject.example, "posterior": subject.posterior}
    row |= {"lr": [subject.rate(size) for size in SIZES], "laws": [_law(subject, size, seconds) for size in SIZES]}
    heats = row["laws"][0]["temperature"]
    if heats and subject.schedule:
        length = max(200, min(1000, row["laws"][0].get("steps", 4000) // 8))
        row["schedule"] = measure.scheduled(subject.begin, lr, n, max(heats[0], 1e-12), length, seconds / 2)
    short = {subject.burn_in: _BURN_IN} if subject.burn_in else {}
    if subject.saves:
        row["resumes"] = measure.resumed(partial(subject.begin, **short), lr, n)
    if subject.burn_in:
        chains = [subject.begin(measure.start(n), n, tensors=tensors, **short) for tensors in (1, 4)]
        row["burn_in"] = [chain.adapts_until(3 * _BURN_IN) for chain in chains]
    if subject.decay and heats:
        row["weight_decay"] = _decay(subject, n, heats[0], seconds / 2)
    return {**row, "seconds": round(time.process_time() - begun, 1)}


def _exact(subject: Subject, n: float, decay: float = 0.0) -> list[float] | None:
    make = subject.make
    return make and measure.exact_law(lambda params, **settings: make(params, n, **settings), subject.rate(n), decay)


def _law(subject: Subject, n: float, seconds: float) -> dict[str, Any]:
    if squares := _exact(subject, n):
        heats = [n * k * square for k, square in zip((measure.SOFT, measure.STIFF), squares, strict=True)]
        return {"temperature": heats if all(map(math.isfinite, heats)) else None, "exact": True}
    chain = subject.begin(measure.start(n), n)
    for _ in range(subject.skip):
        chain.step(subject.rate(n))
    law = measure.law(chain, subject.rate(n), n, seconds)
    return {**law, "settled": law.get("settled", False) and law["steps"] >= subject.least}


def _decay(subject: Subject, n: float, heat: float, seconds: float) -> dict[str, Any]:
    """Prior precision that a weight decay w stands for, over N·w, at the sampler's temperature."""
    chain, lr = subject.begin(measure.start(n, heat), n, decay=_WEIGHT_DECAY), subject.rate(n)
    if squares := _exact(subject, n, _WEIGHT_DECAY):
        chain.step(lr)
        reached: Any = n * _WEIGHT_DECAY * squares[0]
    else:
        heats = measure.law(chain, lr, n * _WEIGHT_DECAY, seconds, flat=True)["temperature"]
        reached = heats and heats[0]
    return {"ratio": heat / reached if reached else None, "touches_grad": chain.touches_gradients()}


def main(package: str, seconds: float) -> None:
    """Print the rows of a package."""
    versions = {}
    for name in ("torch", "jax", "learned-samplers" if package == "ours" else package):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    subjects = ours() if package == "ours" else SUBJECTS[package]
    print(json.dumps({"versions": versions, "rows": [measured(subject, seconds) for subject in subjects]}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
