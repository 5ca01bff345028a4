"""Every command that docs/papers.md, or a card, tells a reader to run is one that its tool takes."""

from __future__ import annotations

import json
import re

import pytest

import pretrained
from tests.tools.documented_commands import ROOT, parsed

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
