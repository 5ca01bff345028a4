"""From a name or a card to its sampler, its settings and its rule."""

from __future__ import annotations

import inspect

import pytest
import torch

import learned_samplers
import pretrained
from learned_samplers import L2E, KineticL2E
from learned_samplers.learned import weights
from learned_samplers.learned.registry import REGISTRY, registered, sampler_from_card, settings_from_card
from meta_tasks.rules.learned import LEARNED_RULES, rule_from_card
from tests.learned_samplers.learned.test_weights import make_card, make_network


def parameter():
    return torch.zeros(2, requires_grad=True)


def test_every_learned_sampler_is_registered_under_the_name_of_its_class():
    from learned_samplers.learned.sampler import LearnedSampler

    public = {
        name for name in learned_samplers.__all__
        if inspect.isclass(each := getattr(learned_samplers, name)) and issubclass(each, LearnedSampler)
    }  # fmt: skip
    assert set(REGISTRY) == set(LEARNED_RULES) == public
    for name, each in REGISTRY.items():
        assert each.sampler.__name__ == each.settings.sampler == LEARNED_RULES[name].name == name
        assert "settings" in inspect.signature(each.rule).parameters


@pytest.mark.parametrize("name", pretrained.names())
def test_a_card_makes_its_sampler_its_settings_and_its_rule(name):
    card = pretrained.card(name)
    sampler = sampler_from_card(name, [parameter()], num_data=1000)
    assert type(sampler).__name__ == card["sampler"]
    assert sampler.settings == settings_from_card(card) == rule_from_card(card).settings
    assert sampler.param_groups[0]["lr"] == card["defaults"]["lr"]
    rule = rule_from_card(card)
    assert rule.num_weights == sum(p.numel() for p in sampler.network.parameters())
    assert isinstance(sampler_from_card(pretrained.path(name), [parameter()], 0.5, 10), type(sampler))


def test_keywords_reach_the_sampler():
    sampler = sampler_from_card("kinetic-l2e", [parameter()], 0.01, 10, hessian="none", temperature=0.5)
    assert isinstance(sampler, KineticL2E)
    assert (sampler.settings.hessian, sampler.param_groups[0]["temperature"]) == ("none", 0.5)


def test_unknown_samplers_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"sampler must be one of 'L2E', .* got 'SGHMC'"):
        registered("SGHMC")
    path = tmp_path / "other.safetensors"
    weights.save(path, make_network(), make_card(sampler="SGHMC"))
    for call in (lambda: sampler_from_card(path, [parameter()]), lambda: rule_from_card(weights.load_card(path))):
        with pytest.raises(ValueError, match="got 'SGHMC'"):
            call()
    with pytest.raises(ValueError, match="weights for sampler 'SGHMC', asked for 'L2E'"):
        L2E([parameter()], num_data=10, network=path)


def test_a_users_own_pretrained_module_is_not_imported(tmp_path, monkeypatch):
    """`weights.find` looks beside its own package, whatever else is called `pretrained`."""
    import sys

    monkeypatch.setitem(sys.modules, "pretrained", None)  # an import of it would fail
    assert weights.find("l2e").is_file()
    assert L2E([parameter()], num_data=10).badge == "heuristic"
