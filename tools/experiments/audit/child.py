"""Measure the samplers of a package, in a Python that has it: ``python -m experiments.audit.child PACKAGE SECONDS``.

The last line of the output is JSON: versions, and a row for each sampler.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.audit import measure
from experiments.audit.subjects import Subject, of_package

SIZES = (1000, 50_000)
_WEIGHT_DECAY = 0.5
_BURN_IN = 40


def attempt(question: Callable[[], Any]) -> Any:
    """The answer, or the error in words: one question that fails leaves the others their answers."""
    try:
        return question()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def measured(subject: Subject, seconds: float) -> dict[str, Any]:
    """All answers of a sampler."""
    begun, n = time.process_time(), SIZES[0]
    row: dict[str, Any] = {"package": subject.package, "sampler": subject.name, "example": subject.source}
    row |= {"posterior": subject.posterior, "lr": [subject.lr(size) for size in SIZES]}
    row["laws"] = [attempt(partial(_law, subject, size, seconds)) for size in SIZES]
    lr, heats = subject.lr(n), row["laws"][0].get("temperature")
    if heats and subject.schedule:
        relaxation = row["laws"][0].get("steps", 4000) // 8
        row["schedule"] = attempt(
            lambda: measure.scheduled(subject.begin, lr, n, max(heats[0], 1e-12), relaxation, seconds / 2)
        )
    if subject.saves:
        settings = {subject.burn_in: _BURN_IN} if subject.burn_in else {}
        row["resumes"] = attempt(lambda: measure.resumed(lambda x, n: subject.begin(x, n, **settings), lr, n))
    if subject.burn_in:
        row["burn_in"] = [attempt(partial(_burn_in, subject, n, tensors)) for tensors in (1, 4)]
    if subject.decay and heats:
        row["weight_decay"] = attempt(lambda: _decay(subject, n, heats[0], seconds / 2))
    return {**row, "seconds": round(time.process_time() - begun, 1)}


def _burn_in(subject: Subject, n: float, tensors: int) -> int:
    chain = subject.begin(measure.start(n), n, tensors=tensors, **{subject.burn_in: _BURN_IN})
    return chain.adapts_until(3 * _BURN_IN)


def _law(subject: Subject, n: float, seconds: float) -> dict[str, Any]:
    lr, make = subject.lr(n), subject.make
    squares = measure.exact_law(lambda params, **settings: make(params, n, **settings), lr) if make else None
    if squares is None:
        chain = subject.begin(measure.start(n), n)
        for _ in range(subject.skip):
            chain.step(lr)
        return measure.law(chain, lr, n, seconds)
    heats = [n * k * square for k, square in zip((measure.SOFT, measure.STIFF), squares, strict=True)]
    stable = all(math.isfinite(heat) for heat in heats)
    return {"temperature": heats if stable else None, "diverged": not stable, "exact": True, "settled": True}


def _decay(subject: Subject, n: float, heat: float, seconds: float) -> dict[str, Any]:
    """Prior precision that a weight decay w stands for, over N·w, at the sampler's temperature."""
    chain = subject.begin(measure.start(n, heat), n, decay=_WEIGHT_DECAY)
    lr, make = subject.lr(n), subject.make
    squares = make and measure.exact_law(lambda params, **settings: make(params, n, **settings), lr, _WEIGHT_DECAY)
    if squares:
        chain.step(lr)
        result: dict[str, Any] = {"temperature": [n * _WEIGHT_DECAY * square for square in squares], "settled": True}
    else:
        result = measure.law(chain, lr, n * _WEIGHT_DECAY, seconds, flat=True)
    ratio = heat / result["temperature"][0] if result["temperature"] else None
    return {"ratio": ratio, "settled": result["settled"], "touches_grad": chain.touches_gradients()}


def main(package: str, seconds: float) -> None:
    """Print the rows of a package."""
    names = {"ours": ["learned-samplers", "torch"], "source": ["torch"]}.get(package, [package])
    versions = {}
    for name in (*names, "torch", "jax"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    rows = [measured(subject, seconds) for subject in of_package(package)]
    print(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
