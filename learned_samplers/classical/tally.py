"""The record of a chain's energies and proposals in its first parameter group: plain numbers, saved with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Entries that count something.
_COUNTS = ("proposed", "accepted", "divergent", "count", "size", "compared")


def validate_saved(saved: dict[str, Any], example: Mapping[str, Any]) -> None:
    """Raise ValueError unless a saved state's tally has the entries of an example, each of its type.

    Args:
        saved: a sampler's state dict.
        example: a new tally.
    """
    tally = saved["param_groups"][0].get("tally")
    if not isinstance(tally, dict):
        raise ValueError(f"state_dict's tally must be a dict, got {tally!r:.60}")
    if lacking := sorted(example.keys() - tally.keys()):
        raise ValueError(f"state_dict's tally lacks {', '.join(lacking)}")
    for key, value in tally.items():
        is_list = isinstance(example.get(key, 0.0), list)
        numbers = _flat(value) if isinstance(value, list) else [value]
        possible = all(_is_finite(x) and (x >= 0 or key not in _COUNTS) for x in numbers)
        if isinstance(value, list) is not is_list or not possible:
            what = "lists of finite numbers" if is_list else "a finite number"
            raise ValueError(f"state_dict's tally must have {what} in {key}, got {value!r:.60}")


def _flat(values: list[Any]) -> list[Any]:
    return [x for value in values for x in (_flat(value) if isinstance(value, list) else [value])]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
