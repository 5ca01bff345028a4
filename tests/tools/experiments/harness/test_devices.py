"""Where an experiment computes, and that it keeps its memory."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from experiments.harness.devices import bears_channels_last, compiled, keep_freed_memory
from torch import nn

from meta_tasks.networks import architectures

_FAULTS = """
import resource, torch
from experiments.harness.devices import keep_freed_memory
def faults():
    for count in (20, 10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            [torch.zeros(1 << 22), torch.zeros(1 << 23)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = faults()
assert keep_freed_memory()
print(given_back, faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
def test_freed_memory_is_kept():
    """Ten times 48 MB: a page is asked for anew thousands of times, or hardly ever (huge pages make it fewer)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 200
    # A block may come to lie elsewhere once or twice: where memory is given back it is all of them in every step.
    assert kept < 0.4 * given_back


def test_a_c_library_without_that_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False


@pytest.mark.parametrize(
    ("layer", "bears"),
    [
        (nn.Conv2d(7, 8, 1, stride=2), False),
        (nn.Conv2d(8, 8, 1, stride=2), True),
        (nn.Conv2d(16, 16, 1, stride=(1, 2), groups=4), False),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, stride=2), True),
        (nn.Linear(4, 8), True),
    ],
)
def test_convolutions_of_one_pixel_with_a_stride_and_few_channels(layer, bears):
    assert bears_channels_last(nn.Sequential(nn.Flatten(), nn.Sequential(layer))) == bears


@pytest.mark.parametrize(("width", "options"), [(4, {"layout_optimization": False}), (8, None)])
def test_only_a_narrow_residual_network_is_compiled_without_the_layout(monkeypatch, width, options):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **given: asked.append(given) or f)
    model = architectures.build("resnet20_frn", (3, 8, 8), 10, width=width)
    assert compiled(model, model) is model
    assert asked == [{"options": options}]
