"""Every set of weights that ships can be used, and its card says what it must."""

import pytest
import torch

import learned_samplers
import pretrained


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_weights_make_a_sampler_that_steps(name):
    card = pretrained.card(name)
    assert card["name"] == name
    assert all(card["meta_training"][key] is not None for key in card["meta_training"])
    p = torch.randn(20, requires_grad=True)
    sampler = getattr(learned_samplers, card["sampler"])([p], num_data=1000, network=name)

    def closure():
        sampler.zero_grad()
        loss = p.square().mean()
        loss.backward()
        return loss

    before = p.detach().clone()
    for _ in range(3):
        sampler.step(closure)
    assert p.isfinite().all()
    assert not torch.equal(p, before)
    assert sampler.badge == card["badge"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no shipped weights are named 'l3e'; there are "):
        pretrained.path("l3e")
