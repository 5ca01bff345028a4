"""Commands that pages tell a reader to run, read by the tools' own parsers."""

from __future__ import annotations

import shlex
from pathlib import Path

import benchmark
import function_space
import regression
import tyro
from experiments.bandits import experiment as bandits
from experiments.compare.options import parse_compare
from experiments.harness.options import parse_command
from experiments.meta_training import options as meta_training
from experiments.multi_task import comparison as multi_task
from experiments.sample.sampling import SampleOptions
from experiments.toys.bias import Bias
from experiments.toys.trajectories import Posterior

from meta_tasks.estimators import Estimator

ROOT = Path(__file__).parents[2]


def check_meta_train(arguments: list[str]) -> Estimator:
    options = meta_training.parse(arguments)
    options.check()
    options.make_rule()
    return options.gradient.make()


def nothing(*_: object) -> None:
    """In the place of what a command does."""


TOYS = {
    "bias": (Bias, nothing),
    "posterior": (Posterior, nothing),
}

PARSERS = {
    "compare": parse_compare,
    "multi_task": multi_task.parse,
    "bandits": bandits.parse,
    "function_space": lambda arguments: parse_command(function_space.COMMANDS, arguments, None),
    "toy": lambda arguments: parse_command(TOYS, arguments, None),
    "sample": lambda arguments: tyro.cli(SampleOptions, args=arguments),
    "benchmark": lambda arguments: parse_command(benchmark.COMMANDS, arguments, None),
    "regression": lambda arguments: tyro.cli(regression.Options, args=arguments),
    "meta_train": check_meta_train,
}


def parsed(command: str) -> object:
    """What the tool's parser makes of a command, which does not run; SystemExit or ValueError for a mistake."""
    python, script, *arguments = shlex.split(command)
    assert python == "python"
    assert (ROOT / script).is_file()
    return PARSERS[Path(script).stem](arguments)
