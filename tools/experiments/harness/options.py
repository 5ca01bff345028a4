"""The options that the tools share, their validation, and the reading of command lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from learned_samplers.base import validation

Options = TypeVar("Options")
Action = TypeVar("Action")
#: Flags are shown without their negation.
FLAGS = tyro.conf.FlagCreatePairsOff


@dataclass(frozen=True)
class OutputOptions:
    """Folder of the results."""

    out: Path | None = None  # Folder for the results; by default one under runs/.
    fresh: bool = False  # Run everything again, also what is already there with the same settings.


@dataclass(frozen=True)
class RunOptions(OutputOptions):
    """The options of every tool that runs an experiment over several seeds."""

    seed: int = 0  # First seed, of the initial weights, the minibatches and the noise.
    seeds: int = 3  # Number of seeds, counted up from --seed; tables give mean ± standard deviation over them.
    threads: int = 1  # CPU threads of torch; one is best for small networks, the number of cores for large ones.

    def __post_init__(self) -> None:
        at_least(1, self, "seeds", "threads")

    def seed_list(self, count: int | None = None) -> range:
        """The first ``count`` seeds; by default all."""
        return range(self.seed, self.seed + (self.seeds if count is None else count))


@dataclass(frozen=True)
class DataOptions:
    """Folder of the data."""

    # Folder of the data files; by default LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers.
    data: str | None = None


@dataclass(frozen=True)
class DeviceOptions:
    """Device to compute on."""

    device: str = "auto"  # Device, such as cpu or cuda:0; auto takes a GPU where there is one.


def check(rule: Callable[..., None], options: Any, *names: str, **bounds: Any) -> None:
    """Raise what a rule of `validation` raises for the first of these attributes; None is left alone."""
    for name in names:
        if (value := getattr(options, name)) is not None:
            rule(name, value, **bounds)


def at_least(least: int, options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below ``least``; None is left alone."""
    check(validation.integer, options, *names, least=least)


def positive(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is not above 0, or not finite; None is left alone."""
    check(validation.positive, options, *names)


def not_negative(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below 0, or not finite; None is left alone."""
    check(validation.non_negative, options, *names)


def share_below_one(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes outside [0, 1)."""
    check(validation.fraction, options, *names, open_right=True)


def names_once(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is empty or names anything twice."""
    for name in names:
        value = getattr(options, name)
        if not value or len(set(value)) < len(value):
            raise ValueError(f"{name} must hold names, each once, got {value}")


def refuse_changed(options: Any, *names: str, why: str) -> None:
    """Refuse options that were changed though nothing would come of them.

    A default that is given all the same cannot be told from one that is not.
    """
    for name in names:
        if (value := getattr(options, name)) != getattr(type(options), name):
            raise ValueError(f"{name}={value} {why}")


def one_of(names: Iterable[str] | Mapping[str, Any], metavar: str | None = None) -> PrimitiveConstructorSpec[str]:
    """Reader of one of these names, in any letter case, for ``Annotated[str, one_of(METHODS)]``."""
    spellings = {name.lower(): name for name in names}

    def read(words: list[str]) -> str:
        try:
            return spellings[words[0].lower()]
        except KeyError:
            raise ValueError(f"{words[0]!r} is unknown; choose from {', '.join(spellings.values())}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar or "{" + ",".join(spellings.values()) + "}",
        instance_from_str=read,
        is_instance=lambda value: value in spellings.values(),
        str_from_instance=lambda name: [name],
    )


def parse_command(
    commands: Mapping[str, tuple[type, Action]], arguments: Sequence[str] | None, description: str | None
) -> tuple[Any, Action]:
    """The options of a tool with commands, and what carries the named one out, or declares it."""
    classes: dict[str, Callable[..., Any]] = {name: options for name, (options, _) in commands.items()}
    options: Any = tyro.extras.subcommand_cli_from_dict(classes, args=arguments, description=description)
    return options, next(action for cls, action in commands.values() if type(options) is cls)


def parse(
    arguments: Sequence[str] | None, default: Options, presets: Mapping[str, Options], description: str | None
) -> Options:
    """The options of a command line; those of its ``--preset`` are the defaults of the others."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    name = first.parse_known_args(arguments)[0].preset or ""
    preset = presets.get(name.lower(), default)
    return tyro.cli(type(default), args=arguments, default=preset, description=description, config=(FLAGS,))
