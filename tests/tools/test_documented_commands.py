"""Every command that a page, or a card, tells a reader to run is one that its tool takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import benchmark
import function_space
import newcomer
import pytest
import ship
import toy
import tyro
from experiments.audit.runner import AuditOptions
from experiments.compare.options import parse_compare
from experiments.harness.options import parse_command
from experiments.meta_training import options as meta_training
from experiments.multi_task import experiment as multi_task
from experiments.tables.comparison import TablesOptions

import pretrained
from meta_tasks.estimators import Estimator

ROOT = Path(__file__).parents[2]


def check_meta_train(arguments: list[str]) -> Estimator:
    options = meta_training.parse(arguments)
    options.check()
    options.make_rule()
    return options.gradient.make()


def by_fields(options: type) -> Any:
    return lambda arguments: tyro.cli(options, args=arguments)


FIELDS = {
    "audit": AuditOptions,
    "tables": TablesOptions,
    "ship": ship.Options,
}
PARSERS = {
    "compare": parse_compare,
    "multi_task": multi_task.parse,
    "newcomer": newcomer.parse,
    "function_space": lambda arguments: parse_command(function_space.COMMANDS, arguments, None),
    "toy": lambda arguments: parse_command(toy.COMMANDS, arguments, None),
    **{name: by_fields(options) for name, options in FIELDS.items()},
    "benchmark": lambda arguments: parse_command(benchmark.COMMANDS, arguments, None),
    "meta_train": check_meta_train,
}


def parsed(command: str) -> object:
    """Return what the tool's parser makes of a command, which does not run; SystemExit or ValueError for a mistake."""
    python, script, *arguments = shlex.split(command)
    assert python == "python"
    assert (ROOT / script).is_file()
    return PARSERS[Path(script).stem](arguments)


def commands_of(page: Path) -> list[str]:
    """Commands in a line of text or of a code block, without a comment; one with an ellipsis is an outline."""
    matches = re.findall(r"(?:`|^ *)(python tools/(?:[^`\n\\]|\\\n)+)", page.read_text(), re.MULTILINE)
    commands = [match.replace("\\\n", " ").partition(" #")[0].strip() for match in matches]
    # The two with few options have no parser of their own.
    without_parser = re.compile(r"tools/(demo|gpu_check)\.py")
    return [command for command in commands if "…" not in command and not without_parser.search(command)]


FOLDERS = (ROOT / "docs", ROOT / "reports")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(p for f in FOLDERS for p in f.rglob("*.md"))]
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands_of(page)))


def test_the_commands_of_the_pages_are_found():
    assert len(COMMANDS) > 60


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
