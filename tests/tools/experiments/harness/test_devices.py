"""Where an experiment computes, and that it keeps its memory."""

import ctypes
import os
import subprocess
import sys

import pytest
from experiments.harness.devices import keep_freed_memory

_FAULTS = """
import resource, sys, torch
from experiments.harness.devices import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def step():
    return [torch.zeros(1 << 22), torch.zeros(1 << 23)]
for _ in range(20):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
def test_freed_memory_is_kept():
    """Ten times 48 MB: a page is asked for anew thousands of times, or hardly ever (huge pages make it fewer)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    faults = {}
    for how in ("given back", "kept"):
        command = [sys.executable, "-c", _FAULTS, how]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        faults[how] = int(done.stdout)
    assert faults["given back"] > 200
    # A block may come to lie elsewhere once or twice: where memory is given back it is all of them in every step.
    assert faults["kept"] < 0.4 * faults["given back"]


def test_a_c_library_without_that_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
