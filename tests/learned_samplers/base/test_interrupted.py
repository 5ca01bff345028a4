"""Ctrl-C at any line of a step's code: the weights are as before or after it, or the chain is marked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import learned_samplers
from tests.harness import SAMPLERS, closure_for, flat, small_network

PACKAGE = Path(learned_samplers.__file__).parent
#: What stands between a step's evaluation and its update, and the evaluations that move the weights for a time.
FILES = {
    str(PACKAGE / name)
    for name in (
        "base/guards/broken_off.py",
        "base/guards/precision.py",
        "base/sampler.py",
        "classical/hmc.py",
        "classical/mclmc.py",
        "classical/psgld.py",
        "learned/kinetic.py",
    )
}


def interrupted(step, number):
    """Call ``step`` with a KeyboardInterrupt at that line of `FILES`; False if it does not come so far."""
    left = number

    def at_line(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return at_line

    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        step()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[(name, torch.float32) for name in ("HMC", "MCLMC", "PSGLD-probe", "KineticL2E")],
        ("SGHMC", torch.bfloat16),
    ],
)
def test_ctrl_c_at_any_line_leaves_the_chain_or_marks_it(name, dtype):
    def chain(steps):
        model = small_network().to(dtype)
        sampler = SAMPLERS[name](model.parameters(), **({"leapfrog_steps": 1} if name == "HMC" else {}))
        torch.manual_seed(1)
        closure = closure_for(model, sampler)
        for _ in range(steps):
            sampler.step(closure)
        return model, sampler, closure

    start, end = (flat(chain(steps)[0]) for steps in (0, 1))
    number = marked = 0
    while True:
        model, sampler, closure = chain(0)
        number += 1
        if not interrupted(lambda: sampler.step(closure), number):  # noqa: B023
            break
        assert {p.dtype for p in model.parameters()} == {dtype}, number
        marked += sampler.broken_off
        if not sampler.broken_off and not torch.equal(flat(model), end):
            assert torch.equal(flat(model), start), number
            sampler.step(closure)
            assert torch.equal(flat(model), end), number  # the step that was to be
    assert number > marked > 0
