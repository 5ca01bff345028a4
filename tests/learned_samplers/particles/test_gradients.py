"""Gradients of every target: lists and stacks of losses, heads, modules that one task alone uses."""

import pytest
import torch

from learned_samplers.particles import MGDA, MTSGD
from tests.learned_samplers.particles.particle_problems import SEVERAL, TwoHeads, energies, parameter

DOUBLE = torch.float64


BY_FEATURES = {"features": lambda p, lr, **kw: MTSGD(p, lr, kernel_on="features", target_weights="gradients", **kw)}


@pytest.mark.parametrize("name", [*SEVERAL, "features"])
def test_a_list_of_losses_is_the_same_as_a_stack(name):
    stacked, listed = TwoHeads(dtype=DOUBLE), TwoHeads(dtype=DOUBLE)
    make = (SEVERAL | BY_FEATURES)[name]
    of_stack, of_list = (make(net.groups(prior_precision=0.5), 0.1, num_data=20) for net in (stacked, listed))
    for _ in range(3):
        first = of_stack.step(lambda: (stacked.losses(), stacked.latents()) if name == "features" else stacked.losses())
        second = of_list.step(
            lambda: ([*listed.losses()], listed.latents()) if name == "features" else [*listed.losses()]
        )
        first, second = (first[0], second[0]) if name == "features" else (first, second)
        assert torch.equal(torch.stack(second), first)
        assert not second[0].requires_grad
    assert torch.equal(stacked.flat(), listed.flat())


@pytest.mark.parametrize(("stacked", "visits"), [(False, 1), (True, 3)])
def test_of_a_list_a_pass_goes_through_one_head(stacked, visits):
    """Count how often a gradient comes by each head's output: once, or once for every task if losses are stacked."""
    trunk, heads = parameter(4, 2), [parameter(4, seed=k + 1) for k in range(3)]
    counts = [0, 0, 0]

    def closure():
        losses = []
        for k, head in enumerate(heads):
            out = trunk.sum(1) * head

            def count(grad, k=k):
                counts[k] += 1

            out.register_hook(count)
            losses.append(out.square())
        return torch.stack(losses) if stacked else losses

    groups = [{"params": [trunk]}, *({"params": [head], "task": k} for k, head in enumerate(heads))]
    MGDA(groups, 0.1).step(closure)
    assert counts == [visits] * 3


def test_a_module_that_one_task_alone_uses():
    """Such a module's gradient of the other task is zero, not an error."""
    x, extra = parameter(4, 2), parameter(4, 2, seed=1)

    def closure():
        losses = energies("MTSGD", x)
        return torch.stack([losses[0] + extra.square().sum(1), losses[1]])

    before = extra.detach().clone()
    MTSGD([x, extra], 0.1).step(closure)
    assert not torch.equal(extra, before)
