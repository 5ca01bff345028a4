"""IVON's correction of the gradients' average counts each parameter's own steps, also in saved states of before."""

import pytest
import torch

from learned_samplers.approximations import IVON
from tests.harness import closure_for, flat, small_network

N = 64


def constant_step(sampler, params):
    before = [p.detach().clone() for p in params]
    with sampler.sampled_params():
        sampler.zero_grad()
        for p in params:
            p.grad = torch.ones_like(p)
    sampler.step()
    return [(p.detach() - old).item() for p, old in zip(params, before, strict=True)]


def test_a_parameter_that_joins_late_begins_as_a_new_one():
    """Its average is corrected for its own steps: without that the first would be ten times too short (1 − β₁)."""
    first, late = (torch.ones(1, requires_grad=True) for _ in range(2))
    sampler = IVON([first], 0.1, N, rescale_lr=False, hess_init=1.0, betas=(0.9, 1 - 1e-9))
    for _ in range(50):
        constant_step(sampler, [first])
    sampler.add_param_group({"params": [late]})
    assert constant_step(sampler, [first, late]) == pytest.approx([-0.1, -0.1], rel=1e-3)


def test_a_state_of_before_goes_on_as_it_would_have():
    def run(old):
        torch.manual_seed(3)
        model = small_network()
        sampler = IVON(model.parameters(), 0.1, N)
        closure = closure_for(model, sampler)
        for step in range(6):
            if step == 3 and old:
                saved = sampler.state_dict()
                for own in saved["state"].values():
                    del own["average_weight"]
                sampler.load_state_dict(saved)
            sampler.step(closure)
        return flat(model)

    assert torch.allclose(run(True), run(False), rtol=1e-6)
