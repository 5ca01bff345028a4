"""Every command that docs/papers.md, or a card, tells a reader to run is one that its tool takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import benchmark
import function_space
import pytest
import toy
import tyro
from experiments.compare.options import parse_compare
from experiments.harness.options import parse_command
from experiments.meta_training import options as meta_training
from experiments.multi_task import comparison as multi_task
from experiments.sample.sampling import SampleOptions

import pretrained
from meta_tasks.estimators import Estimator

ROOT = Path(__file__).parents[2]


def check_meta_train(arguments: list[str]) -> Estimator:
    options = meta_training.parse(arguments)
    options.check()
    options.make_rule()
    return options.gradient.make()


PARSERS = {
    "compare": parse_compare,
    "multi_task": multi_task.parse,
    "function_space": lambda arguments: parse_command(function_space.COMMANDS, arguments, None),
    "toy": lambda arguments: parse_command(toy.COMMANDS, arguments, None),
    "sample": lambda arguments: tyro.cli(SampleOptions, args=arguments),
    "benchmark": lambda arguments: parse_command(benchmark.COMMANDS, arguments, None),
    "meta_train": check_meta_train,
}


def parsed(command: str) -> object:
    """What the tool's parser makes of a command, which does not run; SystemExit or ValueError for a mistake."""
    python, script, *arguments = shlex.split(command)
    assert python == "python"
    assert (ROOT / script).is_file()
    return PARSERS[Path(script).stem](arguments)


COMMANDS = list(dict.fromkeys(re.findall(r"`(python tools/[^`]+)`", (ROOT / "docs/papers.md").read_text())))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_its_tool_takes(command):
    assert parsed(command) is not None


@pytest.mark.parametrize("name", pretrained.names())
def test_the_command_that_repeats_a_training_is_one_that_meta_train_takes(name):
    commands = re.findall(r'"reproduce": "(python tools/meta_train[^"]+)"', json.dumps(dict(pretrained.card(name))))
    assert all(parsed(command) is not None for command in commands if "--start-weights" not in command)


@pytest.mark.parametrize(
    "command",
    [
        "python tools/compare.py --preset cifar11",
        "python tools/compare.py --preset cifar10 --tris 3",
        "python tools/compare.py --preset cifar10 --sampler SGHMM",
        "python tools/meta_train.py --folder runs/x --horizon 10 5",
        "python tools/function_space.py cosine",
        "python tools/multi_task.py --preset huge",
    ],
)
def test_a_command_with_a_mistake_is_found(command, capsys):
    with pytest.raises((SystemExit, ValueError)):
        parsed(command)
