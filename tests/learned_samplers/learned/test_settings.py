"""Settings of learned samplers: one place for defaults and checks, the same for keywords, cards and state dicts."""

import copy
import io
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch

from learned_samplers.base.settings import settings_of
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from tests.learned_samplers.learned.cases import parameter
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC, PrecondL2E

CLASSES = {name: cls.settings_class for name, cls in REGISTRY.items()}


def make(name, **keywords):
    samplers = {"L2E": L2E, "PrecondL2E": PrecondL2E, "KineticL2E": KineticL2E, "MetaSGMCMC": MetaSGMCMC}
    return samplers[name]([parameter()], 0.1, 10, network=None, **keywords)


@pytest.mark.parametrize("name", CLASSES)
def test_keywords_settings_and_card_are_three_ways_to_the_same(name):
    """Every number setting, at another value than its default: nothing is lost on any of the ways."""
    default = CLASSES[name]()
    numbers = [field.name for field in fields(default) if isinstance(getattr(default, field.name), float)]
    assert numbers
    # 0.75 is within every range but that of clips, which may have to be at least 1.
    values = {number: 1.5 if "clip" in number else 0.75 for number in numbers}
    by_keywords = make(name, **values).settings
    assert by_keywords == make(name, settings=replace(default, **values)).settings
    assert by_keywords != default
    card = by_keywords.to_card()
    keywords = {
        field.name: getattr(by_keywords, field.name)
        for field in fields(default)
        if not settings_of(type(default))[field.name].in_card
    }
    assert type(default).from_card(card, **keywords) == by_keywords
    assert card["sampler"] == name
    assert card["features"] == list(by_keywords.features)


def test_the_defaults_of_a_form_are_its_own():
    names = ("alpha_scale", "beta_scale")
    residual, paper = L2ESettings(), L2ESettings(form="paper")
    assert [getattr(residual, name) for name in names] == [0.1, 1.0]
    assert [getattr(paper, name) for name in names] == [1e-3, 1e-3]
    assert "num_data_in_training" not in paper.to_card()["scales"]
    assert L2ESettings(averages_dtype=torch.bfloat16).averages_dtype == "bfloat16"
    with pytest.raises(FrozenInstanceError):
        residual.alpha_scale = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_dict_has_the_settings_as_plain_values_and_is_refused_by_others(name):
    default = CLASSES[name]()
    scale = next(field.name for field in fields(default) if isinstance(getattr(default, field.name), float))
    sampler = make(name, **{scale: torch.tensor(0.5)})  # a tensor becomes a number, or nothing could load it
    buffer = io.BytesIO()
    torch.save(sampler.state_dict(), buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    assert saved["sampler"]["network"]["settings"][scale] == 0.5
    make(name, **{scale: 0.5}).load_state_dict(saved)
    target = make(name)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError, match=scale):
        target.load_state_dict(saved)
    assert target.state_dict()["param_groups"] == before["param_groups"]
