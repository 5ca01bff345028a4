"""What the tools' options have in common to refuse."""

from __future__ import annotations

from typing import Any


def check_at_least_one(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below 1; None is left alone."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
