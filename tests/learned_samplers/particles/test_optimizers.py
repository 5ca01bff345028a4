"""The particle samplers as optimizers: scaling, base optimizers, groups, saving and copies."""

from __future__ import annotations

import copy
import functools
import io
import pickle

import pytest
import torch

from learned_samplers.particles import MTSGD, SVGD
from tests.learned_samplers.particles.particle_problems import (
    EVERY,
    SEVERAL,
    TwoHeads,
    energies,
    parameter,
)

DOUBLE = torch.float64


# ---------------------------------------------------------------- scaling and base optimizers


@pytest.mark.parametrize("name", EVERY)
def test_mean_losses_times_num_data_are_energies(name):
    """lr/N times φ of N times the mean loss: with lr scaled alike, the same step as with energies."""
    one, other = parameter(4, 2, dtype=DOUBLE), parameter(4, 2, dtype=DOUBLE)
    EVERY[name]([one], 0.1 * 50, num_data=50).step(lambda: energies(name, one) / 50)
    EVERY[name]([other], 0.1).step(lambda: energies(name, other))
    torch.testing.assert_close(one, other)


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


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", SEVERAL)
def test_parameters_are_columns_of_the_particles(name, flat):
    """In shapes (M,) or (M, 1), in one group or in several."""
    one, other = parameter(4, 2, dtype=DOUBLE), parameter(4, 2, dtype=DOUBLE)
    columns = [(c if flat else c[:, None]).detach().clone().requires_grad_() for c in other.unbind(1)]
    groups = columns if flat else [{"params": columns[0]}, {"params": columns[1], "shared": True}]
    SEVERAL[name](groups, 0.1).step(lambda: energies(name, torch.stack([c.flatten() for c in columns], dim=1)))
    SEVERAL[name]([one], 0.1).step(lambda: energies(name, one))
    torch.testing.assert_close(torch.stack([c.flatten() for c in columns], dim=1), one)


@pytest.mark.parametrize("name", EVERY)
def test_a_step_heeds_no_default_device(name):
    """Its tensors are where the parameters are; on "meta" there are no numbers."""
    x, y = parameter(4, 2), parameter(4, 2)
    one, other = (EVERY[name]([p], 0.1, base_optimizer=torch.optim.Adam) for p in (x, y))
    for _ in range(2):
        losses = energies(name, x)
        with torch.device("meta"):
            one.step(lambda losses=losses: losses)
        other.step(lambda: energies(name, y))
    assert torch.equal(x, y)


def test_frozen_parameters_stay():
    net = TwoHeads()
    net.trunk[1].requires_grad_(False)
    before = net.trunk[1].clone()
    MTSGD(net.groups(), 0.1).step(net.losses)
    assert torch.equal(net.trunk[1], before)


def test_a_module_that_one_task_alone_uses():
    """Its gradient of the other task is zero, not an error."""
    x, extra = parameter(4, 2), parameter(4, 2, seed=1)

    def closure():
        losses = energies("MTSGD", x)
        return torch.stack([losses[0] + extra.square().sum(1), losses[1]])

    before = extra.detach().clone()
    MTSGD([x, extra], 0.1).step(closure)
    assert not torch.equal(extra, before)


# ---------------------------------------------------------------- saving and copies


def _run(name, steps, *, sampler=None, x=None, adam=True):
    x = parameter(4, 2) if x is None else x
    if sampler is None:
        sampler = EVERY[name]([x], 0.1, **({"base_optimizer": torch.optim.Adam} if adam else {}))
    for _ in range(steps):
        sampler.step(lambda: energies(name, x))
    return x, sampler


@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_resumes_bit_for_bit(name, adam):
    whole, _ = _run(name, 8, adam=adam)
    half, sampler = _run(name, 4, adam=adam)
    file = io.BytesIO()
    torch.save({"x": half.detach(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    x = saved["x"].requires_grad_()
    other = EVERY[name]([x], 0.7, **({"base_optimizer": torch.optim.Adam} if adam else {}))
    other.load_state_dict(saved["sampler"])
    assert other.step_count == 4
    resumed, _ = _run(name, 4, sampler=other, x=x)
    assert torch.equal(resumed, whole)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("name", ["SVGD", "MTSGD", "MOOSVGD", "MGDA", "LinearScalarisation", "ParetoMTL"])
def test_a_copy_goes_its_own_way(name, copier):
    x, sampler = _run(name, 3)
    other = copier(sampler)
    y = other.param_groups[0]["params"][0]
    _run(name, 2, sampler=other, x=y)
    expected, _ = _run(name, 5)
    assert torch.equal(y, expected)
    assert torch.equal(x, _run(name, 3)[0])
