"""The options that the tools share, and their validation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro

from learned_samplers.base import validation

Options = TypeVar("Options")
#: Flags are shown without their negation.
FLAGS = tyro.conf.FlagCreatePairsOff


@dataclass(frozen=True)
class OutputOptions:
    """Where the results go."""

    # Folder for the results; by default one under runs/.
    out: Path | None = None
    # Run everything again, also what is already there with the same settings.
    fresh: bool = False


@dataclass(frozen=True)
class RunOptions(OutputOptions):
    """The options of every tool that runs an experiment over several seeds.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # First seed, of the initial weights, the minibatches and the noise.
    seed: int = 0
    # Number of seeds, counted up from --seed; tables give mean ± standard deviation over them.
    seeds: int = 3
    # CPU threads of torch; one is best for small networks, the number of cores for large ones.
    threads: int = 1

    def __post_init__(self) -> None:
        at_least_one(self, "seeds", "threads")

    def seed_list(self, count: int | None = None) -> range:
        """The first ``count`` seeds; by default all."""
        return range(self.seed, self.seed + (self.seeds if count is None else count))


@dataclass(frozen=True)
class DataOptions:
    """Where the data are."""

    # Folder of the data files; by default LEARNED_SAMPLERS_DATA, else ~/.cache/learned_samplers.
    data: str | None = None


@dataclass(frozen=True)
class DeviceOptions:
    """Where to compute."""

    # Device, such as cpu or cuda:0; auto takes a GPU where there is one.
    device: str = "auto"


def _check(rule: Callable[..., None], options: Any, names: Sequence[str], **how: Any) -> None:
    """Raise what ``rule`` raises of the first of these attributes; None is left alone."""
    for name in names:
        if (value := getattr(options, name)) is not None:
            rule(name, value, **how)


def at_least_one(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below 1; None is left alone."""
    _check(validation.integer, options, names)


def at_least(least: int, options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below ``least``; None is left alone."""
    _check(validation.integer, options, names, least=least)


def positive(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is not above 0, or not finite; None is left alone."""
    _check(validation.positive, options, names)


def not_negative(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is below 0, or not finite; None is left alone."""
    _check(validation.non_negative, options, names)


def share_below_one(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes outside [0, 1)."""
    _check(validation.fraction, options, names, open_right=True)


def each_once(options: Any, *names: str) -> None:
    """Raise ValueError for the first of these attributes that is empty or names anything twice."""
    for name in names:
        value = getattr(options, name)
        if not value or len(set(value)) < len(value):
            raise ValueError(f"{name} must hold names, each once, got {value}")


def refuse_changed(options: Any, *names: str, why: str) -> None:
    """Refuse options that were changed though nothing would come of them.

    A default that is given all the same cannot be told from one that is not.

    Raises:
        ValueError: by name and value, and ``why``.
    """
    for name in names:
        if (value := getattr(options, name)) != getattr(type(options), name):
            raise ValueError(f"{name}={value} {why}")


Action = Callable[[Any, str], None]


def parse_command(
    commands: Mapping[str, tuple[type, Action]], arguments: Sequence[str] | None, description: str | None
) -> tuple[Any, Action]:
    """The options of a tool with commands, and what carries the named one out.

    Args:
        commands: name → its options class, and its action, (options, command line) → None.
    """
    kinds: dict[str, Callable[..., Any]] = {name: kind for name, (kind, _) in commands.items()}
    options: Any = tyro.extras.subcommand_cli_from_dict(kinds, args=arguments, description=description)
    return options, next(action for kind, action in commands.values() if type(options) is kind)


def parse(
    arguments: Sequence[str] | None, default: Options, presets: Mapping[str, Options], description: str | None
) -> Options:
    """The options of a command line; those of its ``--preset`` are the defaults of the others.

    Args:
        arguments: None takes those of the process.
        default: without a preset.
        presets: by name; each says its name itself, so that the help text shows it.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset")
    name = first.parse_known_args(arguments)[0].preset or ""
    preset = presets.get(name.lower(), default)
    return tyro.cli(type(default), args=arguments, default=preset, description=description, config=(FLAGS,))
