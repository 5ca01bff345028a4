"""Weight files: what is written is read back, and everything else is refused by name and reason."""

from __future__ import annotations

import hashlib
import io
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pretrained
from learned_samplers import L2E, KineticL2E, PrecondL2E
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.kinetic.rule import KINETIC_FEATURES
from learned_samplers.learned.network import build_network


def make_card(**changes):
    feature_set = changes.get("feature_set", "paper")
    features = FEATURE_SETS[feature_set].names if feature_set in FEATURE_SETS else KINETIC_FEATURES
    return {
        "name": "test",
        "sampler": "L2E",
        "form": "residual",
        "feature_set": feature_set,
        "features": list(features),
        "scales": {"alpha_scale": 0.2, "beta_scale": 0.7, "output_bound": None},
        "defaults": {"lr": 0.03, "momentum_decay": 0.25},
        "badge": "heuristic",
        "meta_training": dict.fromkeys(weights.META_TRAINING_FIELDS),
        "curve": [[0, 2.3], [10, 1.9]],
        "metrics": {},
        "licence": "MIT",
        **changes,
    }


def make_network(feature_set="paper", outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return build_network(feature_set, (5, 4), outputs, zero_last=False, generator=generator)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.safetensors"
    weights.save(path, make_network(), make_card())
    return path


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
    sampler = L2E([parameter()], 0.5, 10, network=str(file), momentum_decay=0.1, beta_scale=0.0, output_bound=3.0)
    settings, group = sampler.settings, sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"], settings.alpha_scale, settings.beta_scale) == (0.5, 0.1, 0.2, 0.0)
    assert settings.output_bound == 3.0


def test_a_file_of_each_sampler(tmp_path):
    path = tmp_path / "kinetic.safetensors"
    own = dict(sampler="KineticL2E", form="kinetic", feature_set="kinetic", scales={"mean_scale": 0.4})  # as of old
    weights.save(path, make_network(2, outputs=1), make_card(**own))
    assert "form" not in weights.load_card(path)
    assert KineticL2E([parameter()], num_data=10, network=path).settings.mean_scale == 0.4
    with pytest.raises(ValueError, match=r"kinetic\.safetensors: weights for sampler 'KineticL2E', asked for 'L2E'"):
        L2E([parameter()], num_data=10, network=path)
    path = tmp_path / "precond.safetensors"
    own = dict(sampler="PrecondL2E", form="preconditioner", scales={"curl_clip": 3.0})
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


def test_a_file_whose_version_is_an_entry_of_its_own_still_loads(file):
    tensors = load_file(str(file))
    save_file(tensors, str(file), metadata={"format": weights.FORMAT, "version": str(weights.VERSION)})
    rewrite_card(file, lambda card: card.update(sha256=hashlib.sha256(file.read_bytes()).hexdigest()))
    assert weights.load(file)[1]["name"] == "test"


# ------------------------------------------------------------------ refused


def rewrite_card(path, change):
    card = json.loads(weights.card_path(path).read_text())
    change(card)
    weights.card_path(path).write_text(json.dumps(card))


def foreign(path):
    save_file({"linear_0.weight": torch.zeros(2, 9)}, str(path))


def older(path):
    save_file({"w": torch.zeros(2)}, str(path), metadata={"format": weights.FORMAT, "version": "0"})


def other_weights(path):
    weights.save(path.with_name("other.safetensors"), make_network(seed=1), make_card())
    path.write_bytes(path.with_name("other.safetensors").read_bytes())


def one_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def numpy_array(path):
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    path.write_bytes(buffer.getvalue())


def pickled(path):
    torch.save({"w": torch.zeros(2)}, path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: p.write_bytes(b""), "truncated or not a safetensors file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-7]), "truncated or not a safetensors file"),
        (lambda p: p.write_bytes(p.read_bytes()[:20]), "truncated or not a safetensors file"),
        (lambda p: p.write_bytes(b"\xff" * 100), "truncated or not a safetensors file"),
        (numpy_array, "truncated or not a safetensors file"),
        (pickled, "truncated or not a safetensors file"),
        (foreign, "not a file of learned-samplers network weights"),
        (older, "version '0' cannot be read, only 1"),
        (one_bit, r"not the weights that test\.json describes"),
        (other_weights, r"not the weights that test\.json describes"),
    ],
)
def test_damaged_weights_are_refused_by_name_and_reason(file, damage, reason):
    damage(file)
    with pytest.raises(ValueError, match=rf"test\.safetensors: {reason}"):
        L2E([parameter()], num_data=10, network=file)


def take(key):
    return lambda card: card.pop(key)


def put(key, value):
    return lambda card: card.update({key: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (take("licence"), "the card lacks licence"),
        (take("sha256"), "the card lacks sha256"),
        (take("format"), "not a card of learned-samplers network weights"),
        (put("version", 2), "version 2 cannot be read, only 1"),
        (put("scales", None), "the card's scales must be of type"),
        (put("meta_training", {}), "the card's meta_training lacks tasks, horizon"),
        (put("layers", []), r"the card's layers must be \[out, in\] pairs"),
        (put("layers", [[5, 9], [4, 6], [2, 4]]), r"the card's layers must be \[out, in\] pairs that fit"),
        (put("layers", [[5, 9], [4, 5], [2, 10**9]]), "the card's layers must be"),
        (put("layers", [[5, 9], [4, True], [2, 4]]), "the card's layers must be"),
        (put("layers", [[5, 9], [2, 5]]), "holds .* the card's layers need"),
        (put("features", ["gradient"]), "names 1 features, the first layer takes 9"),
        (put("sha256", 3), "sha256 must be a string"),
        (put("sha256", "0" * 64), "not the weights that test.json describes"),
    ],
)
def test_damaged_cards_are_refused_by_name_and_reason(file, change, reason):
    rewrite_card(file, change)
    with pytest.raises(ValueError, match=rf"test\.(json|safetensors): .*{reason}|test\.json: {reason}"):
        weights.load(file)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"format": 1}'])
def test_cards_that_are_no_cards(file, text):
    weights.card_path(file).write_text(text)
    with pytest.raises(ValueError, match=r"test\.json: "):
        weights.load(file)
    weights.card_path(file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"test\.json: truncated or not JSON"):
        weights.load(file)


def test_a_card_nested_too_deeply(file):
    text = weights.card_path(file).read_text().rstrip()[:-1]
    weights.card_path(file).write_text(f'{text}, "more": {"[" * 100_000}{"]" * 100_000}}}')
    with pytest.raises(ValueError, match=r"test\.json: not a card, for it is nested too deeply"):
        weights.load(file)


def test_sizes_that_a_card_or_a_file_claims_are_not_believed(file, monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("made before the file was compared with the card")

    with monkeypatch.context() as patch:
        patch.setattr(nn.utils, "skip_init", forbidden)
        rewrite_card(file, put("layers", [[9999, 9], *[[9999, 9999]] * 500, [2, 9999]]))
        with pytest.raises(ValueError, match=r"test\.safetensors: holds .* the card's layers need") as error:
            weights.load(file)
    assert len(str(error.value)) < 1000
    with open(file, "r+b") as content:
        content.truncate(10**12)  # a hole: no such file is on the disk
    rewrite_card(file, put("layers", [[5, 9], [4, 5], [2, 4]]))
    with pytest.raises(ValueError, match=r"test\.safetensors: 1000000000000 bytes are too many for the card's layers"):
        weights.load(file)
    with open(weights.card_path(file), "r+b") as content:
        content.truncate(10**12)
    with pytest.raises(ValueError, match=r"test\.json: 1000000000000 bytes are too many for a card"):
        weights.load(file)


def test_metadata_that_are_null(file):
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.dumps({**json.loads(data[8 : 8 + size]), "__metadata__": None}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    with pytest.raises(ValueError, match=r"test\.safetensors: not a file of .* \(its format is None\)"):
        weights.load(file)


@pytest.mark.parametrize("form", ["x", None, 3, [], {"a": 1}])
def test_a_form_that_there_is_not(file, form):
    rewrite_card(file, put("form", form))
    with pytest.raises(ValueError, match=r"test\.safetensors: (form must|weights for form)") as error:
        L2E([parameter()], num_data=10, network=file)
    assert "\n" not in str(error.value)


def test_missing_files_are_named(file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such weight file: .*nowhere\.safetensors"):
        L2E([parameter()], num_data=10, network=tmp_path / "nowhere.safetensors")
    weights.card_path(file).rename(tmp_path / "alone.json")
    with pytest.raises(FileNotFoundError, match=r"no such card: .*test\.json"):
        weights.load(file)
    with pytest.raises(FileNotFoundError, match=r"no such weight file: .*alone\.safetensors"):
        weights.load(tmp_path / "alone.safetensors")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"form": "paper"}, "weights for form 'residual', asked for 'paper'"),
        ({"feature_set": "scaled"}, "weights for feature_set 'paper', asked for 'scaled'"),
    ],
)
def test_arguments_that_contradict_the_card(file, settings, reason):
    with pytest.raises(ValueError, match=reason):
        L2E([parameter()], num_data=10, network=file, **settings)


def test_a_feature_set_that_has_changed_its_meaning_is_noticed(file):
    def swap(card):
        card["features"][0], card["features"][1] = card["features"][1], card["features"][0]

    rewrite_card(file, swap)
    with pytest.raises(ValueError, match="are not what 'paper' means here"):
        L2E([parameter()], num_data=10, network=file)
    rewrite_card(file, put("feature_set", "long gone"))
    with pytest.raises(ValueError, match=r"test\.safetensors: feature_set must be one of .* got 'long gone'"):
        L2E([parameter()], num_data=10, network=file)


def test_scales_of_another_form_in_the_card_are_refused(file):
    rewrite_card(file, put("scales", {"noise_multiplier": 1e-3}))
    with pytest.raises(ValueError, match="noise_multiplier does not belong to this form"):
        L2E([parameter()], num_data=10, network=file)


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"licence": None}, TypeError, "licence must be of type"),
        ({"features": ["a"]}, ValueError, "names 1 features"),
        ({"metrics": {"nll": float("nan")}}, ValueError, "Out of range float"),
    ],
)
def test_nothing_is_written_for_a_bad_card(tmp_path, change, error, reason):
    with pytest.raises(error, match=reason):
        weights.save(tmp_path / "a.safetensors", make_network(), make_card(**change))
    card = make_card()
    del card["curve"]
    with pytest.raises(ValueError, match="the card lacks curve"):
        weights.save(tmp_path / "a.safetensors", make_network(), card)
    module = make_network()
    with torch.no_grad():
        module[0].bias[1] = float("inf")
    with pytest.raises(ValueError, match=r"linear_0\.bias has not"):
        weights.save(tmp_path / "a.safetensors", module, make_card())
    with pytest.raises(ValueError, match=r"path must end in \.safetensors"):
        weights.save(tmp_path / "a.pt", make_network(), make_card())
    with pytest.raises(ValueError, match="must have a bias"):
        weights.save(tmp_path / "a.safetensors", nn.Sequential(nn.Linear(9, 2, bias=False)), make_card())
    assert not list(tmp_path.iterdir())


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
    weights.save(tmp_path / "l2e.safetensors", make_network(seed=1), make_card())
    scales = {"alpha_scale": 1e-3, "beta_scale": 1e-3, "friction": "algorithm2"}
    weights.save(tmp_path / "l2e-paper.safetensors", make_network(seed=2), make_card(form="paper", scales=scales))
    kinetic = make_card(sampler="KineticL2E", form="kinetic", feature_set="kinetic", scales={})
    weights.save(tmp_path / "kinetic-l2e.safetensors", make_network(2, 1, seed=3), kinetic)
    for make, name in [
        (lambda p: L2E(p, num_data=10), "l2e"),
        (lambda p: L2E(p, num_data=10, form="paper"), "l2e-paper"),
        (lambda p: KineticL2E(p, num_data=10), "kinetic-l2e"),
    ]:
        sampler = make([parameter()])
        assert torch.equal(sampler.network[0].weight, pretrained.load(name)[0].weight)
    assert L2E([parameter()], num_data=10, form="paper").settings.friction == "algorithm2"
