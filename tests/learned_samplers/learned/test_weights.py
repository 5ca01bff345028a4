"""Weight files: what is written is read back, and everything else is refused by name and reason."""

from __future__ import annotations

import json

import pytest
import torch

import pretrained
from learned_samplers.learned import weights
from learned_samplers.learned.features import FEATURE_SETS
from learned_samplers.learned.kinetic import KINETIC_FEATURES
from learned_samplers.learned.network import build_network
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, PrecondL2E


def make_card(**changes):
    feature_set = changes.get("feature_set", "paper")
    features = FEATURE_SETS[feature_set].names if feature_set in FEATURE_SETS else KINETIC_FEATURES
    card = {
        "name": "test",
        "sampler": "L2E",
        "form": "residual",
        "feature_set": feature_set,
        "features": list(features),
        "scales": {"alpha_scale": 0.2, "beta_scale": 0.7, "num_data_in_training": None},
        "defaults": {"lr": 0.03, "momentum_decay": 0.25},
        "badge": "heuristic",
        "meta_training": dict.fromkeys(weights.META_TRAINING_FIELDS),
        "curve": [[0, 2.3], [10, 1.9]],
        "metrics": {},
        "licence": "MIT",
        **changes,
    }
    if card["sampler"] in ("KineticL2E", "PrecondL2E"):  # which have one form
        card.pop("form")
    return card


def make_network(feature_set="paper", outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return build_network(feature_set, (5, 4), outputs, zero_last=False, generator=generator)


def rewrite_card(path, change):
    card = json.loads(weights.card_path(path).read_text())
    change(card)
    if "card_sha256" in card:
        card["card_sha256"] = weights.card_checksum(card)
    weights.card_path(path).write_text(json.dumps(card))


def parameter():
    return torch.zeros(3, requires_grad=True)


# ------------------------------------------------------------------ there and back


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_what_is_saved_is_loaded(tmp_path, feature_set):
    module, path = make_network(feature_set), tmp_path / "some-name.safetensors"
    weights.save(path, module.double(), make_card(feature_set=feature_set))
    loaded, card = weights.load(path)
    x = torch.randn(6, FEATURE_SETS[feature_set].size)
    assert torch.equal(loaded(x), module.float()(x))
    assert card == weights.load_card(path)
    assert card["layers"] == [[5, FEATURE_SETS[feature_set].size], [4, 5], [2, 4]]
    assert card["curve"] == [[0, 2.3], [10, 1.9]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some-name.json", "some-name.safetensors"]
    sampler = L2E([parameter()], num_data=10, network=path)
    assert all(
        torch.equal(a, b) for a, b in zip(sampler.network.parameters(), module.float().parameters(), strict=True)
    )
    settings, group = sampler.settings, sampler.param_groups[0]
    assert (settings.form, settings.feature_set) == ("residual", feature_set)
    assert (group["lr"], group["momentum_decay"], settings.alpha_scale, settings.beta_scale) == (0.03, 0.25, 0.2, 0.7)


def test_arguments_come_before_the_card(file):
    sampler = L2E([parameter()], 0.5, 10, network=str(file), momentum_decay=0.1, beta_scale=0.0, friction_scale=3.0)
    settings, group = sampler.settings, sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"], settings.alpha_scale, settings.beta_scale) == (0.5, 0.1, 0.2, 0.0)
    assert settings.friction_scale == 3.0


def test_a_file_of_each_sampler(tmp_path):
    path = tmp_path / "kinetic.safetensors"
    own = dict(sampler="KineticL2E", feature_set="kinetic", scales={"mean_scale": 0.4})
    weights.save(path, make_network(2, outputs=1), make_card(**own))
    assert KineticL2E([parameter()], num_data=10, network=path).settings.mean_scale == 0.4
    with pytest.raises(ValueError, match=r"kinetic\.safetensors: weights for sampler 'KineticL2E', asked for 'L2E'"):
        L2E([parameter()], num_data=10, network=path)
    path = tmp_path / "precond.safetensors"
    own = dict(sampler="PrecondL2E", scales={"curl_clip": 3.0})
    weights.save(path, make_network(), make_card(**own))
    assert PrecondL2E([parameter()], num_data=10, network=path).settings.curl_clip == 3.0


def test_a_saved_chain_goes_on_with_the_network_from_the_file(file):
    def make():
        p = torch.ones(4, requires_grad=True)
        return p, L2E([p], num_data=10, network=file)

    p, sampler = make()
    p.grad = torch.ones(4)
    sampler.step()
    q, other = make()
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.state[q]["momentum"], sampler.state[p]["momentum"])


def test_the_same_network_gives_the_same_file_and_another_sampler_another_fingerprint(tmp_path):
    cards = []
    for i in range(8):  # a file with two entries of metadata comes in two orders
        weights.save(tmp_path / f"{i}.safetensors", make_network(), make_card(name=str(i)))
        cards.append(weights.load_card(tmp_path / f"{i}.safetensors"))
    assert len({card["sha256"] for card in cards}) == 1
    assert len({weights.fingerprint(card) for card in cards}) == 1
    first = weights.fingerprint(cards[0])
    for change in ({"scales": {"beta_scale": 2.0}}, {"form": "paper"}, {"defaults": {"lr": 0.5}}, {"sha256": "0" * 64}):
        assert weights.fingerprint({**cards[0], **change}) != first
    assert weights.fingerprint({**cards[0], "licence": "another"}) == first


@pytest.mark.parametrize("bit", [1, 2, 32, 128])
def test_a_damaged_byte_of_a_card_is_refused_or_changes_nothing(file, bit):
    path = weights.card_path(file)
    data, card = path.read_bytes(), weights.load_card(file)
    assert card["card_sha256"] == weights.card_checksum(card)
    refused = 0
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :])
        try:
            assert weights.load_card(file) == card, data[max(0, i - 20) : i + 20]
        except ValueError as error:
            refused += 1
            assert path.name in str(error)  # noqa: PT017
    assert refused > 0.8 * len(data)  # the others are blanks


# ------------------------------------------------------------------ names


def test_shipped_weights_go_by_name(file, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    assert pretrained.names() == ["test"]
    assert pretrained.card("test")["name"] == "test"
    assert torch.equal(pretrained.load("test")[0].weight, weights.load(file)[0][0].weight)
    assert L2E([parameter()], num_data=10, network="test").param_groups[0]["lr"] == 0.03
    for call in (pretrained.load, pretrained.card, pretrained.path):
        with pytest.raises(ValueError, match="no shipped weights are named 'tests'; there are test"):
            call("tests")


def test_the_default_network_is_the_shipped_one_of_the_form(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    weights.save(tmp_path / "l2e-gated.safetensors", make_network(seed=4), make_card())
    scales = {"alpha_scale": 1e-3, "beta_scale": 1e-3, "friction": "algorithm2"}
    weights.save(tmp_path / "l2e-paper.safetensors", make_network(seed=2), make_card(form="paper", scales=scales))
    kinetic = make_card(sampler="KineticL2E", feature_set="kinetic", scales={})
    weights.save(tmp_path / "kinetic-l2e.safetensors", make_network(2, 1, seed=3), kinetic)
    for make, name in [
        (lambda p: L2E(p, num_data=10), "l2e-gated"),
        (lambda p: L2E(p, num_data=9_999), "l2e-gated"),
        (lambda p: L2E(p, num_data=10_000.0), "l2e-gated"),
        (lambda p: L2E([{"params": p, "num_data": 10}], num_data=50_000), "l2e-gated"),
        (lambda p: L2E(p, num_data=50_000, form="paper"), "l2e-paper"),
        (lambda p: L2E(p, num_data=10, form="paper"), "l2e-paper"),
        (lambda p: KineticL2E(p, num_data=10), "kinetic-l2e"),
    ]:
        sampler = make([parameter()])
        assert torch.equal(sampler.network[0].weight, pretrained.load(name)[0].weight)
    assert L2E([parameter()], num_data=10, form="paper").settings.friction == "algorithm2"
    for number, error in ((None, TypeError), ("many", TypeError), (float("nan"), ValueError), (0, ValueError)):
        with pytest.raises(error, match="num_data must be"):
            L2E([parameter()], num_data=number)
