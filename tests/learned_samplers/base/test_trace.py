"""How much of the package a step passes, and which guards stand around it: what does not apply costs nothing."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import SGHMC, CyclicalSchedule
from learned_samplers.base.guards import broken_off
from tests.trace import passed


def sampler_of(dtype=torch.float32, **settings):
    """One in the middle of a chain, with gradients for its next step."""
    params = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((4, 3), (4,))]
    sampler = SGHMC(params, 0.01, 100, **settings)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        sampler.step()
    return sampler


def test_a_step_of_sghmc_passes_eight_files_at_most():
    files, functions = passed(sampler_of().step)
    assert len(files) <= 8, sorted(files)
    assert len(functions) <= 45, sorted(functions)
    assert "classical/sghmc.py" in files
    assert {"base/sampler.py", "base/step.py"} <= files


def around(sampler):
    return [getattr(guard, "__name__", type(guard).__name__) for guard in sampler.guards_around(sampler.evaluate(None))]


def test_the_list_of_guards_is_of_those_that_apply():
    plain = sampler_of()
    assert plain.guards_before() == [broken_off.refuse, plain.changed_hyperparameters]
    assert plain.guards_around(plain.evaluate(None)) == [plain.clipping]
    everything = sampler_of(torch.bfloat16, prior_mean="initial")
    CyclicalSchedule(everything, 10)
    assert len(everything.guards_before()) == 3
    with torch.no_grad():
        everything.param_groups[0]["params"][0].fill_(1e30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = around(everything)
    assert found == ["ClippingWatch", "outside_autocast", "undone", "on_masters", "centred_at_zero"]


@pytest.mark.parametrize("settings", [{"master_weights": False}, {"prior_mean": None}])
def test_what_is_switched_off_is_not_in_the_list(settings):
    assert around(sampler_of(torch.bfloat16, **settings)) == ["ClippingWatch"] + ["on_masters"] * (
        "prior_mean" in settings
    )
