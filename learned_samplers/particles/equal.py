"""Particles that start equal: no update sets them apart, and however many they are, they count as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.warning import warn

#: Coordinates by which particles are sorted before they are compared as wholes.
_PROBES = 64
#: Directions that differ by less than this share of their length are the same but for rounding.
_ALIKE = 1e-4


def warn_of_equal(groups: Sequence[dict[str, Any]], roles: Sequence[Any], moves: dict[Tensor, Tensor]) -> None:
    """Warn where particles have the same parameters in a role and the same direction: nothing will part them.

    Args:
        groups: the sampler's parameter groups.
        roles: the roles of its first step (`learned_samplers.particles.base.Role`).
        moves: the direction of every parameter.
    """
    messages = []
    for role in roles:
        direction = torch.cat([moves[p].reshape(len(p), -1) for p in role.params], dim=1)
        together = [same for equal in _equal_rows(role.points) for same in _alike(direction, equal)]
        if together:
            members = set(role.params)
            numbers = [str(i) for i, group in enumerate(groups) if members.intersection(group["params"])]
            where = f"{role} (parameter group{'s' * (len(numbers) > 1)} {', '.join(numbers)})"
            messages.append(f"{', and '.join(map(_listed, together))} of {len(role.points)} have the same {where}")
    if messages:
        warn(
            f"particles {'; particles '.join(messages)}, and move alike: nothing but rounding parts them, and they "
            "count as one. Start every particle from initial weights of its own: make each network anew, not as a copy "
            "(copy.deepcopy) of another, or add noise to the copies"
        )


def _equal_rows(points: Tensor) -> list[list[int]]:
    """Sets of two or more rows of (M, d) that are equal."""
    few = (points[:, :: max(1, points.shape[1] // _PROBES)] + 0.0).tolist()  # (−0 + 0 is 0)
    sets: dict[tuple[float, ...], list[list[int]]] = {}
    for i, key in enumerate(map(tuple, few)):
        candidates = sets.setdefault(key, [])
        for rows in candidates:
            if torch.equal(points[rows[0]], points[i]):
                rows.append(i)
                break
        else:
            candidates.append([i])
    return [rows for candidates in sets.values() for rows in candidates if len(rows) > 1]


def _alike(direction: Tensor, rows: list[int]) -> list[list[int]]:
    """Sets of two or more of these rows that have the same direction."""
    sets: list[list[int]] = []
    for i in rows:
        for members in sets:
            first = direction[members[0]]
            if (direction[i] - first).norm() <= _ALIKE * first.norm():
                members.append(i)
                break
        else:
            sets.append([i])
    return [members for members in sets if len(members) > 1]


def _listed(rows: list[int]) -> str:
    """Enumeration such as "0, 1 and 2"; of many rows the first ones."""
    if len(rows) > 10:
        return f"{', '.join(map(str, rows[:8]))} and {len(rows) - 8} more"
    return f"{', '.join(map(str, rows[:-1]))} and {rows[-1]}"
