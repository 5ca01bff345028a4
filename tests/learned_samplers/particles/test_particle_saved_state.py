"""Saved states of particle samplers that do not fit are refused, and nothing has changed."""

from __future__ import annotations

import copy

import pytest
import torch

from learned_samplers.particles import MGDA, MOOSVGD, MTSGD, RBF, SVGD, ParetoMTL
from tests.learned_samplers.particles.particle_problems import EVERY, TwoHeads, energies, parameter

NAN = float("nan")


def test_a_state_of_another_kind():
    x = parameter(4, 2)
    plain, adam = MGDA([x], 0.1), MGDA([x], 0.1, base_optimizer=torch.optim.Adam)
    for one, other in ((plain, adam), (adam, plain)):
        with pytest.raises(ValueError, match="base_optimizer does not fit"):
            one.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="this sampler is MGDA"):
        plain.load_state_dict(MOOSVGD([x], 0.1).state_dict())
    net = TwoHeads()
    groups = net.groups()
    groups[1]["task"], groups[2]["task"] = 1, 0
    with pytest.raises(ValueError, match="task"):
        MTSGD(groups, 0.1).load_state_dict(MTSGD(net.groups(), 0.1).state_dict())


def test_a_refused_base_optimizer_leaves_all_as_it_was():
    x, y = parameter(4, 2), parameter(4, 2)
    adam, sgd = MGDA([x], 0.1, base_optimizer=torch.optim.Adam), MGDA([y], 0.2, base_optimizer=torch.optim.SGD)
    sgd.step(lambda: energies("MGDA", y))
    before = adam.state_dict()
    with pytest.raises(ValueError, match="base_optimizer is of class 'SGD', this sampler's is 'Adam'"):
        adam.load_state_dict(sgd.state_dict())
    spoilt = MGDA([y], 0.2, base_optimizer=torch.optim.Adam)
    spoilt.step(lambda: energies("MGDA", y))
    spoilt = spoilt.state_dict()
    spoilt["base_optimizer"]["param_groups"][0]["params"] = [0, 1]
    with pytest.raises(ValueError, match="doesn't match the size"):
        adam.load_state_dict(spoilt)
    assert adam.state_dict()["param_groups"] == before["param_groups"]
    earlier = adam.state_dict()
    del earlier["base_optimizer"]["class"]  # as states were before they said it
    adam.load_state_dict(earlier)


def test_a_state_of_another_kernel_or_of_other_preferences_is_refused():
    def pareto(preferences):
        return ParetoMTL([torch.zeros(2, 3, requires_grad=True)], lr=0.1, preferences=preferences)

    saved = pareto([[1.0, 0.0], [0.0, 1.0]]).state_dict()
    pareto([[1.0, 0.0], [0.0, 1.0]]).load_state_dict(saved)
    with pytest.raises(ValueError, match="the state's preferences is"):
        pareto([[0.5, 0.5], [0.2, 0.8]]).load_state_dict(saved)
    saved = SVGD([parameter()], lr=0.1, kernel=RBF(1.0)).state_dict()
    SVGD([parameter()], lr=0.1, kernel=RBF(1.0)).load_state_dict(saved)
    with pytest.raises(ValueError, match="the state's kernel is"):
        SVGD([parameter()], lr=0.1, kernel=RBF(2.0)).load_state_dict(saved)
    with pytest.raises(ValueError, match="the state's kernel_on is"):
        SVGD([parameter()], lr=0.1, kernel=RBF(1.0), kernel_on="features").load_state_dict(saved)
    del saved["of"]  # as of a state of before
    SVGD([parameter()], lr=0.1, kernel=RBF(2.0)).load_state_dict(saved)


@pytest.mark.parametrize("name", [*EVERY, "adam"])
def test_a_state_of_another_number_of_particles_is_refused(name):
    """Without state tensors it fitted, and the next step failed in the middle."""

    def sampler(count):
        more = {"base_optimizer": torch.optim.Adam} if name == "adam" else {}
        x = parameter(count, 2)
        made = EVERY.get(name, SVGD)([x], 0.1, **more)
        made.step(lambda: energies("SVGD" if more else name, x))
        return made

    other = sampler(6)
    before = str(other.state_dict())
    with pytest.raises(ValueError, match=r"has the shape \(4, 2\) for parameter number 0 .*this sampler has \(6, 2\)"):
        other.load_state_dict(sampler(4).state_dict())
    assert str(other.state_dict()) == before


def test_an_earlier_state_of_pareto_mtl_says_its_number_of_particles():
    saved = ParetoMTL([parameter(4, 2)], 0.1).state_dict()
    del saved["sampler"]["shapes"]
    other = ParetoMTL([parameter(6, 2)], 0.2)
    with pytest.raises(
        ValueError, match=r"feasible must be a list of 6 truth values, .*got \[False, False, False, False\]"
    ):
        other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.2
    assert len(other.param_groups[0]["feasible"]) == 6


def test_a_base_optimizers_state_that_is_not_finite_is_refused():
    x = parameter(4, 2)
    sampler = SVGD([("w", x)], 0.1, base_optimizer=torch.optim.Adam)
    sampler.step(lambda: energies("SVGD", x))
    saved = copy.deepcopy(sampler.state_dict())
    saved["base_optimizer"]["state"][0]["exp_avg"][1, 1] = NAN
    saved["param_groups"][0]["lr"] = 0.7
    before = str(sampler.state_dict())
    with pytest.raises(ValueError, match="base_optimizer has a exp_avg of parameter 'w' that is not finite"):
        sampler.load_state_dict(saved)
    assert str(sampler.state_dict()) == before
