"""Weight files: what is written is read back, a damaged byte is refused, and names mean the shipped ones."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pretrained
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from tests.learned_samplers.learned.cases import make_card, make_network, parameter
from tests.learned_samplers.learned.flat_keywords import L2E

#: Settings of each sampler, and of each feature set of L2E.
SETTINGS = [cls.settings_class() for cls in REGISTRY.values()]
SETTINGS += [L2ESettings(feature_set=name, beta_scale=0.7) for name in FEATURE_SETS]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: f"{each.sampler}-{each.feature_set}")
def test_what_is_saved_is_loaded_and_used(tmp_path, settings):
    module, path = make_network(settings), tmp_path / "some-name.safetensors"
    weights.save(path, module.double(), make_card(settings))
    loaded, card = weights.load(path)
    x = torch.randn(6, len(settings.features))
    assert torch.equal(loaded(x), module.float()(x))
    assert card == weights.load_card(path)
    assert card["layers"] == [list(layer.weight.shape) for layer in module if isinstance(layer, torch.nn.Linear)]
    assert card["curve"] == [[0, 2.3], [10, 1.9]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some-name.json", "some-name.safetensors"]
    sampler = REGISTRY[settings.sampler]([parameter()], num_data=10, network=path)
    for ours, theirs in zip(sampler.network.parameters(), module.float().parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert sampler.settings == settings
    group = sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"]) == (0.03, 0.25)
    again = REGISTRY[settings.sampler]([parameter()], num_data=10, network=path)
    again.load_state_dict(sampler.state_dict())


def test_arguments_come_before_the_card(file):
    sampler = L2E([parameter()], 0.5, 10, network=str(file), momentum_decay=0.1, beta_scale=0.0, friction_scale=3.0)
    settings, group = sampler.settings, sampler.param_groups[0]
    assert (group["lr"], group["momentum_decay"], settings.alpha_scale, settings.beta_scale) == (0.5, 0.1, 0.2, 0.0)
    assert settings.friction_scale == 3.0


def test_the_same_network_gives_the_same_file_and_another_sampler_another_fingerprint(tmp_path):
    cards = []
    for i in range(8):  # a file with two entries of metadata comes in two orders
        weights.save(tmp_path / f"{i}.safetensors", make_network(), make_card(name=str(i)))
        cards.append(weights.load_card(tmp_path / f"{i}.safetensors"))
    assert len({card["sha256"] for card in cards}) == 1
    assert len({weights.card_fingerprint(card) for card in cards}) == 1
    first = weights.card_fingerprint(cards[0])
    for change in ({"scales": {"beta_scale": 2.0}}, {"form": "paper"}, {"defaults": {"lr": 0.5}}, {"sha256": "0" * 64}):
        assert weights.card_fingerprint({**cards[0], **change}) != first
    assert weights.card_fingerprint({**cards[0], "licence": "another"}) == first


@pytest.mark.parametrize(
    "change", [{"metrics": {"note": ["two  spaces"]}}, {"learned": "The gate [ 17 numbers ]."}, {"metrics": {2: 1.0}}]
)
def test_whatever_a_card_says_is_read_back(tmp_path, change):
    weights.save(tmp_path / "new.safetensors", make_network(), {**make_card(), **change})
    _, card = weights.load(tmp_path / "new.safetensors")
    expected = json.loads(json.dumps(change))
    assert {name: card[name] for name in change} == expected


@pytest.mark.parametrize("full_at", ["weights", "card"])
def test_a_disk_that_fills_leaves_the_pair_that_was_there(file, tmp_path, monkeypatch, full_at):
    before, names = weights.load(file), sorted(path.name for path in tmp_path.iterdir())
    written, sync = [], os.fsync

    def full(descriptor):
        written.append(descriptor)
        if len(written) == ("weights", "card").index(full_at) + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device \(while writing .* nothing was changed\)") as caught:
        weights.save(file, make_network(seed=1), make_card(name="new"))
    assert caught.value.filename == str(file if full_at == "weights" else weights.card_path(file))
    network, card = weights.load(file)
    assert torch.equal(network[0].weight, before[0][0].weight)
    assert card == before[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.parametrize("bit", [1, 2, 4, 128])
def test_a_damaged_byte_of_a_card_is_refused_or_changes_nothing(file, bit):
    path = weights.card_path(file)
    data, card = path.read_bytes(), weights.load_card(file)
    assert card["card_sha256"] == weights.card_checksum(card)
    refused = 0
    positions = range(bit.bit_length() % 7, len(data), 7)
    for i in positions:
        path.write_bytes(data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :])
        try:
            assert weights.load_card(file) == card, data[max(0, i - 20) : i + 20]
        except ValueError as error:
            refused += 1
            assert path.name in str(error)  # noqa: PT017
    assert refused > 0.8 * len(positions)  # the others are blanks


def test_shipped_weights_go_by_name(file, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    assert pretrained.names() == ["test"]
    assert pretrained.card("test")["name"] == "test"
    assert torch.equal(pretrained.load("test")[0].weight, weights.load(file)[0][0].weight)
    assert L2E([parameter()], num_data=10, network="test").param_groups[0]["lr"] == 0.03
    for call in (pretrained.load, pretrained.card, pretrained.path):
        with pytest.raises(ValueError, match="tests"):
            call("tests")


@pytest.mark.parametrize("num_data", [10, 50_000.0])
def test_the_default_network_is_the_shipped_one_of_the_form(num_data):
    defaults = {name: cls.default_network for name, cls in REGISTRY.items() if cls.default_network}
    assert defaults == {"L2E": "l2e-gated", "KineticL2E": "kinetic-l2e", "MetaSGMCMC": "meta-sgmcmc"}
    cases = [(name, shipped, {}) for name, shipped in defaults.items()]
    for name, shipped, settings in [*cases, ("L2E", "l2e-paper", {"form": "paper"})]:
        sampler = REGISTRY[name]([parameter()], num_data=num_data, **settings)
        assert sampler.card == pretrained.card(shipped)
        assert sampler.param_groups[0]["lr"] == sampler.card["defaults"]["lr"]
        assert torch.equal(sampler.network[0].weight, pretrained.load(shipped)[0].weight)


SCRIPT = """
import torch
from learned_samplers import L2E, KineticL2E, MetaSGMCMC, SGHMC
from learned_samplers.learned import weights

p = torch.zeros(3, requires_grad=True)
for cls in (L2E, KineticL2E, MetaSGMCMC):
    assert cls([p], num_data=10).network is not None
assert "l2e" in weights.shipped_names()
p.grad = torch.ones(3)
L2E([p], num_data=10).step()
import pretrained
assert pretrained.mine, "this one is the user's"
print("found")
"""


@pytest.mark.slow
def test_a_users_own_modules_of_our_names_break_nothing(tmp_path):
    """The shipped weights are found beside the package, whatever else in the working folder has our packages' names."""
    (tmp_path / "pretrained.py").write_text("mine = True\n")
    (tmp_path / "meta_tasks.py").write_text("raise RuntimeError('the user has a module of this name')\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("raise RuntimeError('and a package of this one')\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "found\n", done.stderr
