"""Every declared setting of every sampler refuses what it cannot be, by its name, wherever the value comes from."""

import copy
import math
import re
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import table
from learned_samplers.particles import FSVGD, MGDA, MOOSVGD, MTSGD, SVGD, LinearScalarisation, ParetoMTL
from tests.harness import SAMPLERS, closure_for, running, same
from tests.learned_samplers.particles.particle_problems import energies

PARTICLES = {cls.__name__: cls for cls in (SVGD, FSVGD, MTSGD, MOOSVGD, MGDA, LinearScalarisation, ParetoMTL)}
CLASSES = {name: SAMPLERS[name].cls for name in table.SAMPLERS} | PARTICLES
EVERY = pytest.mark.parametrize("name", CLASSES)
NAN, INF, HUGE = math.nan, math.inf, 10**30
NO_NUMBERS = [NAN, INF, 10**400, HUGE, "x", None, True, torch.ones(2)]
DATA = [DataLoader(range(40), batch_size=8), TensorDataset(torch.zeros(40)), [1, 2]]
#: Values that a setting cannot have, by its name or else by the function that checks it, given that one's keywords.
IMPOSSIBLE = {
    "num_data": lambda: [0, -5, 0.5, *NO_NUMBERS, *DATA],
    "_two_fractions": lambda: [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), (NAN, 0.9), "xy", None, True],
    "_makes_optimizer": lambda: [3, "adam", True],
    "_maker": lambda: [3, "adam", True],
    "generator": lambda: [3, "x", True],
    "check_kernel": lambda: ["rbf", 3, True],
    "check_weights": lambda choices: [
        "best",
        3,
        True,
        (0.5, 0.6),
        (1.5, -0.5),
        (NAN, 1.0),
        *["exact"] * (len(choices) == 1),
    ],
    "positive": lambda: [0, -1, *NO_NUMBERS],
    "non_negative": lambda: [-1, *NO_NUMBERS],
    "fraction": lambda open_left=False, open_right=False: [-0.5, 1.5, *NO_NUMBERS, *[0] * open_left, *[1] * open_right],
    "integer": lambda least=1: [least - 1, -5, 2.5, *NO_NUMBERS],
    "one_of": lambda choices: [
        value for value in ("unknown", 0, 7, NAN, None, True) if not any(value is choice for choice in choices)
    ],
}
#: Settings whose values depend on the parameters: refused in tables of their own.
ELSEWHERE = {"prior_mean", "preferences"}


def impossible(declared):
    """Values that a setting cannot have."""
    check = declared.check
    options = check.keywords if isinstance(check, partial) else {}
    values = IMPOSSIBLE[declared.name if declared.name in IMPOSSIBLE else getattr(check, "func", check).__name__]
    return [value for value in values(**options) if not (value is None and declared.optional)]


def cases(name, *, of_group):
    """Each setting of a sampler with each value that it cannot have."""
    for key, declared in CLASSES[name].declared.items():
        if key in ELSEWHERE or (of_group and declared.of_sampler):
            continue
        if name not in PARTICLES and table.SAMPLERS[name].is_learned and declared.of_sampler:  # of the cards' tests
            continue
        for value in impossible(declared):
            yield key, value
        if declared.check_new is not None:
            yield key, "zero when new"


def refuses(key, value, call):
    """Assert that a call is refused by the name of the setting."""
    try:
        call()
    except (ValueError, TypeError) as error:
        assert re.search(rf"\b{key}\b", str(error)), (key, value, error)  # noqa: PT017
    else:
        pytest.fail(f"{key}={value!r} was accepted")


def parameter():
    """Parameter of three numbers, or particles where the sampler has them."""
    return torch.zeros(3, requires_grad=True)


def maker(name):
    """Make the sampler at settings that suit a run of some steps."""
    if name not in PARTICLES:
        return SAMPLERS[name]
    return lambda params, **settings: PARTICLES[name](params, **{"lr": 0.1, "num_data": 10, **settings})


def chain(name):
    """A sampler after some steps, its closure, and a function that asserts that nothing of it has changed."""
    if name not in PARTICLES:
        model, sampler, unchanged = running(name)
        return sampler, closure_for(model, sampler), unchanged
    x = torch.randn(4, 2, requires_grad=True)

    def closure():
        outputs = x * 1.0
        return (outputs.square().sum(1), outputs) if name == "FSVGD" else energies(name, x)

    sampler = maker(name)([x], base_optimizer=torch.optim.Adam)
    for _ in range(3):
        sampler.step(closure)
    before, state = x.detach().clone(), copy.deepcopy(sampler.state_dict())
    return sampler, closure, lambda: torch.equal(x, before) and same(sampler.state_dict(), state)


@EVERY
def test_at_construction_by_keyword_and_as_the_key_of_a_group(name):
    make = maker(name)
    sampler = make([parameter()])
    for key, value in cases(name, of_group=False):
        value = 0.0 if value == "zero when new" else value
        declared = CLASSES[name].declared[key]
        if value is not None or declared.default is not None or key == "num_data":  # None is the default, or chosen
            refuses(key, value, lambda: make([parameter()], **{key: value}))  # noqa: B023
        if not declared.of_sampler:
            group = {"params": [parameter()], key: value}
            refuses(key, value, lambda: make([group]))  # noqa: B023
            refuses(key, value, lambda: sampler.add_param_group(group))  # noqa: B023
    assert len(sampler.param_groups) == 1


@EVERY
def test_between_steps_and_in_a_saved_state(name):
    sampler, closure, unchanged = chain(name)
    group = sampler.param_groups[0]
    saved = copy.deepcopy(sampler.state_dict())
    for key, value in cases(name, of_group=True):
        if value == "zero when new":  # where a schedule may end
            continue
        good = group[key]
        group[key] = value
        refuses(key, value, lambda: sampler.step(closure))
        group[key] = good
        altered = {**saved, "param_groups": [{**saved["param_groups"][0], key: value}]}
        refuses(key, value, lambda: sampler.load_state_dict(altered))  # noqa: B023
        assert unchanged(), (key, value)
