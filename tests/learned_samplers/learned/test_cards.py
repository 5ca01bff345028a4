"""A weight card, printed for people."""

import copy

import pytest
import torch

import learned_samplers
import pretrained
from learned_samplers.learned.cards import summary
from learned_samplers.learned.weights import load_card


@pytest.mark.parametrize("name", pretrained.names())
def test_a_card_prints_what_it_holds_and_its_line_of_use_runs(name):
    card = pretrained.card(name)
    assert card == load_card(pretrained.path(name))
    text = str(card)
    assert text.splitlines()[0] == name
    assert max(map(len, text.splitlines())) <= 130
    words, meta = " ".join(text.split()), card["meta_training"]
    for part in (card["sampler"], card["law"]["reason"].split()[0], meta.get("reproduce") or meta["command"]):
        assert part in words
    call = words[words.index(" use ") + 5 : words.index("; by default")]
    assert f"network={name!r}" in call
    params = [torch.zeros(3, 3, requires_grad=True)]
    sampler = eval(call, {**vars(learned_samplers), "params": params, "N": 1000, "STEPS": 100})
    assert type(sampler).__name__ == card["sampler"]


def test_scores_are_found_however_deep_and_what_is_missing_is_said():
    card = copy.deepcopy(dict(pretrained.card("l2e")))
    card["metrics"] = {"compare": {"digits": [0.10221, 0.01], "seeds": 3, "words": "not a number"}, "empty": {}}
    assert "compare, digits: 0.1022, 0.01; compare, seeds: 3" in " ".join(summary(card).split())
    assert "not a number" not in summary(card)
    card["metrics"] = {"tables": {"digits, 400": {"NLL": [0.1234567, 0.01], "ECE": [0.02]}, "digits, 2000": {}}}
    lines = summary(card).splitlines()
    assert "  tables   digits, 400: NLL 0.1235 ± 0.01, ECE 0.02" in lines
    assert "none in the card" not in summary(card)
    assert not any(line.startswith("  scores") for line in lines)
    card["metrics"], card["law"] = {}, None
    assert "none in the card" in summary(card)
    assert "not measured" in summary(card)
    card = pretrained.card("l2e-gated")
    assert card["meta_training"]["carried_over"]["command"] in " ".join(summary(card).split())
