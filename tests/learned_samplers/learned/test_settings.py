"""Settings of learned samplers: one place for defaults and checks, the same for keywords, cards and state dicts."""

from __future__ import annotations

import copy
import io
from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch

from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC, PrecondL2E

CLASSES = {name: each.settings_class for name, each in REGISTRY.items()}


def parameter():
    return torch.zeros(3, requires_grad=True)


def make(name, **keywords):
    samplers = {"L2E": L2E, "PrecondL2E": PrecondL2E, "KineticL2E": KineticL2E, "MetaSGMCMC": MetaSGMCMC}
    return samplers[name]([parameter()], 0.1, 10, network=None, **keywords)


@pytest.mark.parametrize("name", CLASSES)
def test_keywords_settings_and_card_are_three_ways_to_the_same(name):
    """Every number setting, at another value than its default: nothing is lost on any of the ways."""
    default = CLASSES[name]()
    numbers = [each.name for each in fields(default) if isinstance(getattr(default, each.name), float)]
    assert numbers
    # 0.75 is within every range but that of clips, which may have to be at least 1.
    values = {each: 1.5 if "clip" in each else 0.75 for each in numbers}
    by_keywords = make(name, **values).settings
    assert by_keywords == make(name, settings=replace(default, **values)).settings != default
    card = by_keywords.to_card()
    own = {each.name: getattr(by_keywords, each.name) for each in fields(default) if not each.metadata["in_card"]}
    assert type(default).from_card(card, **own) == by_keywords
    assert card["sampler"] == name
    assert card["features"] == list(by_keywords.features)


@pytest.mark.parametrize("name", CLASSES)
def test_a_fresh_network_has_the_shape_that_the_sampler_needs(name):
    sampler = make(name)
    network = sampler.settings.fresh_network((4,))
    assert network[0].in_features == len(sampler.settings.features)
    assert network[-1].out_features == sampler.settings.outputs


def test_the_defaults_of_a_form_are_its_own():
    residual, paper = L2ESettings(), L2ESettings(form="paper")
    assert (residual.alpha_scale, residual.beta_scale, residual.noise_multiplier, residual.friction) == (
        0.1,
        1.0,
        None,
        None,
    )
    assert (paper.alpha_scale, paper.beta_scale, paper.noise_multiplier, paper.friction) == (
        1e-3,
        1e-3,
        1.0,
        "equation6",
    )
    assert "friction" not in residual.to_card()["scales"]
    assert "num_data_in_training" not in paper.to_card()["scales"]
    with pytest.raises(FrozenInstanceError):
        residual.alpha_scale = 3.0  # type: ignore[misc]


def test_settings_belong_to_the_sampler_and_not_to_its_groups():
    sampler = make("L2E", beta_scale=0.5)
    assert not set(sampler.settings.names()) & set(sampler.param_groups[0])
    with pytest.raises(ValueError, match=r"beta_scale is a setting of the whole sampler, .* got 0\.3"):
        L2E([{"params": [parameter()], "beta_scale": 0.3}], 0.1, 10, network=None)
    for settings in (L2ESettings(), {"form": "paper"}):
        with pytest.raises(ValueError, match=r"form='residual' cannot be given beside settings="):
            make("L2E", form="residual", settings=settings)
    with pytest.raises(ValueError, match=r"settings: mean_scale does not belong to L2E, got 2\.0"):
        make("L2E", settings={"mean_scale": 2.0})
    with pytest.raises(TypeError, match="settings must be KineticSettings or a dict, got L2ESettings"):
        KineticL2E([parameter()], 0.1, 10, network=None, settings=L2ESettings())
    with pytest.raises(ValueError, match=r"weights for form 'residual', asked for 'paper'"):
        L2E([parameter()], num_data=10, network="l2e", settings=L2ESettings(form="paper", feature_set="adaptive"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_dict_has_the_settings_as_plain_values_and_is_refused_by_others(name):
    default = CLASSES[name]()
    scale = next(each.name for each in fields(default) if isinstance(getattr(default, each.name), float))
    sampler = make(name, **{scale: torch.tensor(0.5)})  # a tensor becomes a number, or nothing could load it
    buffer = io.BytesIO()
    torch.save(sampler.state_dict(), buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    assert saved["sampler"]["network"]["settings"][scale] == 0.5
    make(name, **{scale: 0.5}).load_state_dict(saved)
    other = make(name)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=rf"other settings: {scale} is 0\.5 there, {getattr(default, scale)} here"):
        other.load_state_dict(saved)
    assert other.state_dict()["param_groups"] == before["param_groups"]


def test_what_is_missing_without_shipped_weights_is_said():
    with pytest.raises(ValueError, match=r"lr must be given, got None: no weights of PrecondL2E ship .* network="):
        PrecondL2E([parameter()], num_data=10)
    with pytest.raises(ValueError, match="lr must be given: the network comes without a card"):
        MetaSGMCMC([parameter()], num_data=10, network=None)
