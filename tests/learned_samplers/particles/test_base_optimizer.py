"""The optimizer that takes the direction as its gradient: its step, its rate, groups that are added."""

import functools

import pytest
import torch

from learned_samplers.particles import MTSGD, SVGD
from tests.learned_samplers.particles.particle_problems import EVERY, TwoHeads, energies, parameter

DOUBLE = torch.float64


@pytest.mark.parametrize("name", EVERY)
def test_base_optimizer_gets_the_direction_as_its_gradient(name):
    plain, by_sgd, by_adam, manual = (parameter(4, 2, dtype=DOUBLE) for _ in range(4))
    before = plain.detach().clone()
    EVERY[name]([plain], 0.1, num_data=10).step(lambda: energies(name, plain))
    EVERY[name]([by_sgd], 0.1, num_data=10, base_optimizer=torch.optim.SGD).step(lambda: energies(name, by_sgd))
    torch.testing.assert_close(by_sgd, plain)
    sampler = EVERY[name]([by_adam], 0.1, num_data=10, base_optimizer=torch.optim.Adam)
    by_adam.grad = torch.ones_like(by_adam)
    sampler.step(lambda: energies(name, by_adam))
    assert (by_adam.grad == 1).all()  # a gradient that the user left there stays
    manual.grad = (before - plain.detach()) / 0.1
    torch.optim.Adam([manual], 0.1).step()
    torch.testing.assert_close(by_adam, manual)


def test_schedulers_reach_the_base_optimizer():
    x = parameter(4, 2)
    sampler = SVGD([x], 0.1, base_optimizer=functools.partial(torch.optim.SGD, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(sampler, 1, 0.5)
    for _ in range(3):
        sampler.step(lambda: energies("SVGD", x))
        scheduler.step()
    assert sampler.base_optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_groups_may_be_added():
    net = TwoHeads()
    sampler = MTSGD([{"params": net.trunk}], 0.1, base_optimizer=torch.optim.Adam)
    for k, head in enumerate(net.heads):
        sampler.add_param_group({"params": head, "task": k, "lr": 0.01})
    before = net.flat()
    sampler.step(net.losses)
    assert (net.flat() != before).all()
    assert sampler.base_optimizer.param_groups[1]["lr"] == 0.01
