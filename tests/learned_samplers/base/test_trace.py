"""Files and functions that a step passes, and the guards around it: what does not apply is not called."""

import pytest
import torch

from learned_samplers import SGHMC, CyclicalSchedule
from tests.trace import passed


def sampler_of(dtype=torch.float32, **settings):
    """One in the middle of a chain, with gradients for its next step."""
    params = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((4, 3), (4,))]
    sampler = SGHMC(params, 0.01, 100, **settings)
    for _ in range(101):  # after a hundred steps nobody watches for outside changes any more
        for p in params:
            p.grad = torch.randn_like(p)
        sampler.step()
    return sampler


def test_a_plain_step_passes_few_functions_and_no_guard_but_the_one_for_broken_off_steps():
    sampler = sampler_of()
    for p in sampler.param_groups[0]["params"]:
        p.grad = 0.1 * p.grad  # no larger one than before, which the watch on clipping would look at
    files, functions = passed(sampler.step)
    assert len(files) <= 7, sorted(files)
    assert len(functions) <= 28, sorted(functions)
    assert {"base/sampler.py", "base/step.py", "classical/sghmc.py"} <= files
    assert [file for file in files if "guards/" in file] == ["base/guards/broken_off.py"]


def test_every_guard_that_applies_is_called():
    sampler = sampler_of(torch.bfloat16, prior_mean="initial")
    CyclicalSchedule(sampler, 10)
    with torch.no_grad():
        sampler.param_groups[0]["params"][0].fill_(1e30)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sampler.step()

    files = passed(step)[0]
    expected = {"overflow", "precision", "hyperparameters", "broken_off"}
    assert {f"base/guards/{name}.py" for name in expected} | {"base/prior_mean.py", "classical/cyclical.py"} <= files


@pytest.mark.parametrize(("settings", "passes"), [({"master_weights": False}, False), ({"prior_mean": None}, True)])
def test_masters_are_for_half_precision_where_they_are_not_switched_off(settings, passes):
    functions = passed(sampler_of(torch.bfloat16, **settings).step)[1]
    assert any("on_masters" in str(function) for function in functions) is passes
