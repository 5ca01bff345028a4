"""The badge of a learned sampler: earned by the measurement in its weights' card, at the settings of that measurement.

A card's field "law" holds what `tools/ship.py` measured on Gaussians whose law is known: "verdict" and "reason"; for
each step size, from the largest to the smallest, "lr", "momentum_decay", "largest_bias" (relative, of a variance) and
"error" (its standard error); and what it was measured at, "temperature" (or, of several, "temperatures"), "sha256" (of
the network) and "settings". The card's own field "badge" is ignored.
"""

from __future__ import annotations

import math
from typing import Any

from learned_samplers.base.operations import as_number
from learned_samplers.learned.settings import LearnedSettings, differences

HEURISTIC, BIASED_BY_STEP = "heuristic", "O(h)"
#: Verdicts of a measurement that earn the badge "O(h)".
EARNING = ("exact", "no bias seen", "O(h)")
#: The largest relative error of a variance at the smallest step size that still counts as an invariant law.
LARGEST_BIAS = 0.05
_NEEDED: dict[str, Any] = {
    "verdict": str,
    "reason": str,
    "largest_bias": list,
    "error": list,
    "lr": list,
    "momentum_decay": list,
    "temperature": (int, float),
    "settings": dict,
    "sha256": str,
}


def badge_of(
    law: dict[str, Any] | None,
    settings: LearnedSettings,
    groups: list[dict[str, Any]],
    *,
    claims_law: bool,
    sha256: str,
) -> tuple[str, str]:
    """The badge of a learned sampler, and a sentence that gives the reason.

    Args:
        law: of the weights' card, or None.
        settings: of the sampler, as it runs.
        groups: its parameter groups.
        claims_law: whether the update keeps the posterior whatever the network is. Where it does not, success on
            Gaussians proves nothing.
        sha256: of the network in use, as `learned_samplers.learned.sampler.LearnedSampler.fingerprint` gives it.
    """
    if law is None:
        return HEURISTIC, "the invariant law of these weights has not been measured: their card has no law"
    missing = [key for key, expected in _NEEDED.items() if not isinstance(law.get(key), expected)]
    if missing:
        return HEURISTIC, f"the law in the card does not say at what it was measured: it lacks {', '.join(missing)}"
    reason = law["reason"]
    if not claims_law:
        return HEURISTIC, f"{settings.sampler} does not claim an invariant law; measured on Gaussians: {reason}"
    if law["verdict"] not in EARNING:
        return HEURISTIC, f"the measured law is {law['verdict']}: {reason}"
    for key in ("largest_bias", "error", "lr", "momentum_decay", "temperatures"):
        values = law.get(key, [law["temperature"]])
        if not (isinstance(values, list) and values and all(map(_is_number, values))):
            return HEURISTIC, f"the law in the card does not say at what it was measured: {key} is {values!r}"
    if abs(law["largest_bias"][-1]) > LARGEST_BIAS:
        return HEURISTIC, f"the measured bias at the smallest step size exceeds {LARGEST_BIAS:.0%}: {reason}"
    if law["sha256"] != sha256:
        return HEURISTIC, "the network has other weights than those that were measured"
    ours, theirs = settings.as_dict(), settings.current(law["settings"])
    for name in differences(ours, theirs):
        measured = f"{theirs[name]!r}" if name in theirs else "nothing"
        return HEURISTIC, f"{name} is {ours.get(name)!r}, and the law was measured with {measured}"
    for group in groups:
        outside = _outside(law, group)
        if outside:
            return HEURISTIC, outside
    return BIASED_BY_STEP, f"measured on Gaussians: {reason}"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _outside(law: dict[str, Any], group: dict[str, Any]) -> str | None:
    """Return the reason why the law that was measured does not cover a parameter group's settings, or None."""
    lr, decay, temperature = (float(as_number(group[name])) for name in ("lr", "momentum_decay", "temperature"))
    if lr > max(law["lr"]):
        return f"lr is {lr:g}, and the law was measured up to {max(law['lr']):g}"
    low, high = min(law["momentum_decay"]), max(law["momentum_decay"])
    if not low <= decay <= high:
        where = f"at {low:g}" if low == high else f"from {low:g} to {high:g}"
        return f"momentum_decay is {decay:g}, and the law was measured {where}"
    low, high = (bound(law.get("temperatures", [law["temperature"]])) for bound in (min, max))
    if not low <= temperature <= high:
        where = f"at {low:g}" if low == high else f"from {low:g} to {high:g}"
        return f"temperature is {temperature:g}, and the law was measured {where}"
    return None
