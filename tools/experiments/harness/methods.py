"""What an experiment compares: methods by the names of their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tyro.constructors import PrimitiveConstructorSpec


@dataclass(frozen=True)
class Method:
    """One row of a comparison; each experiment adds what it needs to know of its own.

    Attributes:
        name: on the command line and in tables: that of the class, or of what is special about it.
        build: makes the optimizer or sampler; each experiment says from what.
        lr: default learning rate, and centre of the grid where it is tuned.
    """

    name: str
    build: Callable[..., Any]
    lr: float


M = TypeVar("M", bound=Method)


def by_name(*methods: M) -> dict[str, M]:
    """The table of an experiment's methods, in the order of its own tables."""
    return {method.name: method for method in methods}


def one_of(names: Iterable[str] | Mapping[str, Any], metavar: str | None = None) -> PrimitiveConstructorSpec[str]:
    """How the command line reads one of these names, for ``Annotated[str, one_of(METHODS)]``: in any letter case.

    Args:
        metavar: what the help text has in the place of all names.
    """
    known = {name.lower(): name for name in names}

    def read(words: list[str]) -> str:
        try:
            return known[words[0].lower()]
        except KeyError:
            raise ValueError(f"{words[0]!r} is unknown; choose from {', '.join(known.values())}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar or "{" + ",".join(known.values()) + "}",
        instance_from_str=read,
        is_instance=lambda value: value in known.values(),
        str_from_instance=lambda name: [name],
    )
