"""From a name or a card to its sampler, its settings and its rule."""

import inspect
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import learned_samplers
import pretrained
from learned_samplers import SGHMC
from learned_samplers.base import validation
from learned_samplers.base.settings import choice, setting
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned import weights
from learned_samplers.learned.cards import registered, sampler_from_card, settings_from_card
from learned_samplers.learned.network import apply_network
from learned_samplers.learned.sampler import REGISTRY, LearnedSampler
from learned_samplers.learned.settings import LearnedSettings
from meta_tasks.rules.learned import LEARNED_RULES, rule_from_card
from tests.learned_samplers.learned.cases import make_card, make_network, parameter
from tests.learned_samplers.learned.flat_keywords import L2E


def test_every_learned_sampler_is_registered_under_the_name_of_its_class():
    exported = (getattr(learned_samplers, name) for name in learned_samplers.__all__)
    public = {item.__name__ for item in exported if inspect.isclass(item) and issubclass(item, LearnedSampler)}
    assert set(REGISTRY) == set(LEARNED_RULES) == public | {"PrecondL2E"}
    for name, cls in REGISTRY.items():
        assert cls.__name__ == cls.settings_class.sampler == name
    assert all(rule.name == name for name, rule in LEARNED_RULES.items())


@pytest.fixture
def own_sampler():
    """A sampler that this package does not know, known from here on: SGHMC, with a learned gain of the gradient."""

    @dataclass(frozen=True, kw_only=True)
    class OwnSettings(LearnedSettings):
        sampler: ClassVar[str] = "OwnSampler"
        outputs: ClassVar[int] = 1
        feature_set: str = choice("own", default="own")
        gain_scale: float = setting(default=1.0, check=validation.non_negative)

        @property
        def features(self):
            return ("gradient",)

    class OwnSampler(LearnedSampler):
        settings_class = OwnSettings
        state_names = ("momentum",)

        def flat_rule(self, parameter, gradient, *rest, phi, segments, settings, **hyper):
            (gain,) = apply_network(phi, gradient.unsqueeze(-2))
            return sghmc_rule(parameter, gradient * torch.exp(settings.gain_scale * gain), *rest, **hyper)

    yield OwnSampler
    del REGISTRY["OwnSampler"]


def test_a_sampler_from_outside_the_package_is_made_from_its_card(own_sampler, tmp_path):
    def trained(make):
        torch.manual_seed(0)
        p = torch.ones(3, requires_grad=True)
        sampler = make([p, torch.ones(2, 2, requires_grad=True)])
        for _ in range(5):
            sampler.zero_grad()
            sum(q.square().sum() for q in sampler.param_groups[0]["params"]).backward()
            sampler.step()
        return p.detach()

    untrained = trained(lambda params: own_sampler(params, 0.1, 50))
    torch.testing.assert_close(untrained, trained(lambda params: SGHMC(params, 0.1, 50)))
    settings = own_sampler.settings_class(gain_scale=0.5)
    network = settings.fresh_network((4,), generator=torch.Generator().manual_seed(1))
    torch.nn.init.ones_(network[-1].weight)
    path = tmp_path / "own.safetensors"
    weights.save(path, network, make_card(settings, defaults={"lr": 0.1}))
    assert settings_from_card(weights.load_card(path)) == settings
    from_card = trained(lambda params: sampler_from_card(path, params, 0.1, 50))
    by_hand = trained(lambda params: own_sampler(params, 0.1, 50, network=network, settings={"gain_scale": 0.5}))
    torch.testing.assert_close(from_card, by_hand)
    assert not torch.equal(from_card, untrained)
    with pytest.raises(ValueError, match=r"sampler must have a rule for the inner loop .* got 'OwnSampler'"):
        rule_from_card(weights.load_card(path))


def test_names_of_learned_samplers_are_theirs_alone(own_sampler):
    with pytest.raises(TypeError, match=r"OwnSettings\.sampler must be 'Other', got 'OwnSampler'"):
        type("Other", (LearnedSampler,), {"settings_class": own_sampler.settings_class})
    with pytest.raises(TypeError, match=r"there is a learned sampler OwnSampler already, in .*test_sampler"):
        type("OwnSampler", (LearnedSampler,), {"settings_class": own_sampler.settings_class, "__module__": "elsewhere"})
    place = {"__module__": __name__, "__qualname__": own_sampler.__qualname__}
    again = type("OwnSampler", (own_sampler,), {"settings_class": own_sampler.settings_class, **place})
    assert registered("OwnSampler") is again  # as when a notebook's cell is run twice
    type("Variant", (own_sampler,), {})  # one that only changes how it is used is no sampler of its own
    assert "Variant" not in REGISTRY


@pytest.mark.parametrize("name", pretrained.names())
def test_a_card_makes_its_sampler_its_settings_and_its_rule(name):
    card = pretrained.card(name)
    sampler = sampler_from_card(name, [parameter()], num_data=1000)
    assert type(sampler).__name__ == card["sampler"]
    assert sampler.settings == settings_from_card(card)
    assert settings_from_card(card) == rule_from_card(card).settings
    assert sampler.param_groups[0]["lr"] == card["defaults"]["lr"]
    rule = rule_from_card(card)
    assert rule.num_weights == sum(p.numel() for p in sampler.network.parameters())
    assert isinstance(sampler_from_card(pretrained.path(name), [parameter()], 0.5, 10), type(sampler))


def test_unknown_samplers_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    weights.save(path, make_network(), make_card(sampler="SGHMC"))
    card = weights.load_card(path)
    for make in (sampler_from_card, lambda *_: rule_from_card(card), lambda *_: L2E([parameter()], network=path)):
        with pytest.raises(ValueError, match="'SGHMC'"):
            make(path, [parameter()])


def test_keywords_reach_the_sampler():
    sampler = sampler_from_card("kinetic-l2e", [parameter()], 0.01, 10, temperature=0.5, settings={"probe_size": 0.01})
    assert isinstance(sampler, registered("KineticL2E"))
    assert (sampler.settings.probe_size, sampler.param_groups[0]["temperature"]) == (0.01, 0.5)
