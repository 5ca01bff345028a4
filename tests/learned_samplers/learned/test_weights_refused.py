"""Weight files and cards that are damaged, hostile, or contradict what was asked: refused by name and reason."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from learned_samplers.learned import weights
from tests.learned_samplers.learned.flat_keywords import L2E
from tests.learned_samplers.learned.test_weights import make_card, make_network, parameter, rewrite_card

# ------------------------------------------------------------------ refused


def foreign(path):
    save_file({"linear_0.weight": torch.zeros(2, 9)}, str(path))


def older(path):
    save_file({"w": torch.zeros(2)}, str(path), metadata={"format": f"{weights.FORMAT}, version 0"})


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
        (put("defaults", {"lr": 0.1, "foo": 1}), "defaults must be of lr and momentum_decay alone, got foo=1"),
        (put("defaults", {"temperature": 0.1}), r"must be of lr and momentum_decay alone, got temperature=0\.1"),
        (put("defaults", {"lr": "0.1"}), "the card's defaults: lr must be a number, got '0.1'"),
        (put("defaults", {"lr": -1.0}), "the card's defaults: lr must be greater than 0"),
        (put("defaults", {"momentum_decay": 0}), "the card's defaults: momentum_decay must lie in"),
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
        ({"feature_set": "adaptive"}, "weights for feature_set 'paper', asked for 'adaptive'"),
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


def test_what_belongs_to_a_run_is_no_cards_to_set(file):
    rewrite_card(file, lambda card: card["scales"].update(total_steps=10))
    with pytest.raises(ValueError, match=r"test\.safetensors: the card's scales hold total_steps"):
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
