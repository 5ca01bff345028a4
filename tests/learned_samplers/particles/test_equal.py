"""Particles that start equal and move alike are told at the first step, once; those that will part are not."""

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from learned_samplers.particles import (
    FSVGD,
    IMQ,
    MGDA,
    MOOSVGD,
    MTSGD,
    SVGD,
    Linear,
    LinearScalarisation,
    ParetoMTL,
    regression_loss,
)
from tests.learned_samplers.particles.particle_problems import EVERY, TwoHeads, energies, parameter

ADAM = {"base_optimizer": torch.optim.Adam}
MAKERS = {
    **{name: make for name, make in EVERY.items() if name != "ParetoMTL"},  # whose particles have their own preferences
    "SVGD-Adam": partial(SVGD, **ADAM),
    "SVGD-IMQ": partial(SVGD, kernel=IMQ()),
    "SVGD-linear": partial(SVGD, kernel=Linear()),
    "MTSGD-Adam": partial(MTSGD, **ADAM),
    "LinearScalarisation-Adam": partial(LinearScalarisation, **ADAM),
}


def spread(x: torch.Tensor, rows: list[int]) -> float:
    return (x[rows] - x[rows[:1]]).abs().max().item()


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [1, 3]], ids=["five", "two of five"])
@pytest.mark.parametrize("name", MAKERS)
def test_equal_particles_are_told_once_and_do_stay_equal(name, rows):
    x = parameter(5, 2)
    x.data[rows] = x.data[rows[0]].clone()
    sampler = MAKERS[name]([x], 0.1)
    listed = f"{', '.join(map(str, rows[:-1]))} and {rows[-1]} of 5"
    target = "SVGD" if name.startswith("SVGD") else name
    with pytest.warns(UserWarning, match=rf"particles {listed} .*shared parameters \(parameter group 0\).*deepcopy"):
        sampler.step(lambda: energies(target, x))
    for _ in range(50 if len(rows) == 5 else 3):  # some of all may part by rounding; a second warning would be an error
        sampler.step(lambda: energies(target, x))
    assert spread(x.detach(), rows) < 1e-3
    assert (len(rows) == 5) == (spread(x.detach(), [0, 1, 2]) < 1e-3)


def networks(copies: bool):
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(5)]
    made = [copy.deepcopy(made[0]) for _ in made] if copies else made
    params, _ = torch.func.stack_module_state(made)
    x, y = torch.randn(32, 8), torch.randn(32)
    return params, lambda: torch.vmap(lambda p: torch.func.functional_call(made[0], p, (x,)))(params)[..., 0], y


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("function_space", [True, False])
def test_copies_of_one_network_are_told_and_networks_made_anew_are_not(copies, function_space):
    params, outputs, y = networks(copies)
    noise = torch.zeros(5, requires_grad=True)  # equal in all particles, as it may be

    def closure():
        f = outputs()
        losses = regression_loss(f, y, noise)
        return (losses, f) if function_space else losses

    likelihood = {"likelihood": True} if function_space else {}
    groups = [{"params": list(params.values())}, {"params": [noise], **likelihood}]
    sampler = (FSVGD if function_space else SVGD)(groups, 1e-3, 32, base_optimizer=torch.optim.Adam)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            sampler.step(closure)
    assert len(told) == copies
    assert (spread(params["0.weight"].detach(), [0, 1, 2, 3, 4]) == 0) == copies
    if copies:
        assert ("group 0)" if function_space else "groups 0, 1)") in str(told[0].message)


@pytest.mark.parametrize(("equal", "told"), [("trunk", "shared parameters"), ("heads", "parameters of task 1")])
@pytest.mark.parametrize("cls", [MTSGD, MOOSVGD, MGDA, LinearScalarisation, ParetoMTL])
def test_a_role_is_told_where_its_kernel_sees_nothing_else(cls, equal, told):
    """MT-SGD's kernel is on each role's own parameters; the others see where whole particles differ."""
    net = TwoHeads()
    for p in net.trunk if equal == "trunk" else [net.heads[1][0]]:
        p.data[:] = p.data[0].clone()
    sampler = cls(net.groups(), 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            sampler.step(net.losses)
    changed = torch.cat([p.detach().flatten(1) for p in (net.trunk if equal == "trunk" else net.heads[1])], dim=1)
    stuck = spread(changed, [0, 1, 2]) < 1e-6
    assert [told in str(warning.message) for warning in caught] == [True] * stuck
    assert stuck == (cls is MTSGD)


def test_a_resumed_run_compares_nothing(monkeypatch):
    x = parameter(4, 2)
    sampler = SVGD([x], 0.1)
    sampler.step(lambda: energies("SVGD", x))
    again = SVGD([x], 0.1)
    again.load_state_dict(sampler.state_dict())
    monkeypatch.setattr("learned_samplers.particles.base.warn_of_equal", lambda *_: pytest.fail("compared"))
    for runner in (again, sampler):
        runner.step(lambda: energies("SVGD", x))


def test_many_equal_particles_are_listed_in_short():
    x = torch.ones(50, 2, requires_grad=True)
    with pytest.warns(UserWarning, match="particles 0, 1, 2, 3, 4, 5, 6, 7 and 42 more of 50 have"):
        SVGD([x], 0.1).step(lambda: energies("SVGD", x))


def test_a_loaded_state_that_meets_other_particles_is_told():
    x, start = parameter(4, 2), parameter(4, 2)
    sampler = SVGD([x], 0.1)
    sampler.step(lambda: energies("SVGD", x))
    again = SVGD([start.detach().add(1.0).requires_grad_()], 0.1)
    again.load_state_dict(sampler.state_dict())
    moved = again.param_groups[0]["params"][0]
    with pytest.warns(UserWarning, match="SVGD was loaded, and the weights are not those"):
        again.step(lambda: energies("SVGD", moved))
