"""The badge of a learned sampler: a measurement gives it, at its settings, and nothing else does."""

import pickle

import pytest
import torch

import pretrained
from learned_samplers.learned import weights
from learned_samplers.learned.kinetic import KineticSettings
from learned_samplers.learned.l2e import L2ESettings
from learned_samplers.learned.network import build_network
from learned_samplers.learned.sampler import REGISTRY
from tests.learned_samplers.learned.cases import make_card, make_network, parameter, rewrite_card
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC


def measured(path, own, /, **law):
    """A file whose card claims what ``law`` says, on top of a law that earns the badge."""
    module, card = make_network(own), make_card(own, badge="O(h)")
    weights.save(path, module, card)
    earned = {
        "verdict": "O(h)",
        "reason": "bias 4% at lr, 1% at lr/4",
        "largest_bias": [0.04, 0.01],
        "error": [0.004] * 2,
        "lr": [0.1, 0.025],
        "momentum_decay": [0.25, 0.25],
        "temperature": 1.0,
        **REGISTRY[own.sampler]([parameter()], num_data=10, network=path).fingerprint(),
    }
    wanted = {key: value for key, value in {**earned, **law}.items() if value is not None}
    weights.save(path, module, {**card, "law": wanted})
    return path


@pytest.fixture
def file(tmp_path):
    return measured(tmp_path / "kinetic.safetensors", KineticSettings())


def test_a_measured_law_gives_the_badge_also_to_a_copy(file):
    sampler = KineticL2E([parameter()], num_data=10, network=file)
    assert (sampler.badge, sampler.badge_reason) == ("O(h)", "measured on Gaussians: bias 4% at lr, 1% at lr/4")
    copied = pickle.loads(pickle.dumps(sampler))
    assert (copied.badge, copied.badge_reason) == (sampler.badge, sampler.badge_reason)
    # Float64 parameters and a smaller lr are within the measurement.
    double = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert KineticL2E([double], 0.01, 10, network=file).badge == "O(h)"
    rewrite_card(file, lambda card: card["law"].update(temperature=1))  # a whole number is one too
    assert KineticL2E([parameter()], num_data=10, network=file).badge == "O(h)"


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("lr", 0.2), ("momentum_decay", 0.1), ("temperature", 0.5), ("mean_scale", 2.0)],
)
def test_other_settings_than_the_measured_ones_lose_it(file, keyword, value):
    sampler = KineticL2E([parameter()], num_data=10, network=file, **{keyword: value})
    assert sampler.badge == "heuristic"
    assert sampler.badge_reason.startswith(f"{keyword} is {value!r}")


def test_what_happens_during_a_run_counts_too(file):
    groups = [{"params": [parameter()]}, {"params": [parameter()], "lr": 0.05}]
    sampler = KineticL2E(groups, num_data=10, network=file)
    assert sampler.badge == "O(h)"
    sampler.param_groups[1]["lr"] = 0.3  # as a scheduler does
    assert sampler.badge == "heuristic"
    sampler.param_groups[1]["lr"] = 0.1
    assert sampler.badge == "O(h)"
    with torch.no_grad():
        sampler.network[0].bias[0] += 1e-3
    assert sampler.badge_reason == "the network has other weights than those that were measured"


@pytest.mark.parametrize(
    ("law", "named"),
    [
        ({"verdict": "biased"}, "biased"),
        ({"verdict": "unstable", "largest_bias": [0.9, "x"]}, "unstable"),
        ({"largest_bias": [0.9, 0.2]}, "5%"),
        ({"largest_bias": []}, "largest_bias"),
        ({"largest_bias": ["x"]}, "largest_bias"),
        ({"error": [0.1, [0.1]]}, "error"),
        ({"lr": []}, "lr"),
        ({"lr": 0.1}, "lr"),
        ({"momentum_decay": [True]}, "momentum_decay"),
        *(({"temperatures": value}, "temperatures") for value in ([], 1.0, ["1"])),
        ({"sha256": "0" * 64}, "weights"),
        ({"settings": {}}, "feature_set"),
        ({"settings": None}, "settings"),
    ],
)
def test_a_law_that_earns_nothing(tmp_path, law, named):
    sampler = KineticL2E(
        [parameter()], num_data=10, network=measured(tmp_path / "a.safetensors", KineticSettings(), **law)
    )
    assert sampler.badge == "heuristic"
    assert named in sampler.badge_reason


def test_not_a_number_bounds_nothing(file):
    """NaN, which no card of ours holds and Python's JSON reads, is not less than any learning rate."""
    rewrite_card(file, lambda card: card["law"].update(lr=[float("nan")]))
    sampler = KineticL2E([parameter()], 9.0, 10, network=file)
    assert sampler.badge_reason == "the law in the card does not say at what it was measured: lr is [nan]"


@pytest.mark.parametrize("name", REGISTRY)
def test_a_word_in_a_card_gives_no_badge(tmp_path, name):
    """The planted fault: a card that says "O(h)", and a law that nobody measured."""
    settings, path = REGISTRY[name].settings_class(), tmp_path / "claimed.safetensors"
    weights.save(path, make_network(settings), make_card(settings, badge="O(h)"))
    made = REGISTRY[name]([parameter()], num_data=10, network=path)
    assert (made.card["badge"], made.badge) == ("O(h)", "heuristic")
    assert "has not been measured" in made.badge_reason


def test_a_law_is_not_enough_for_a_sampler_that_claims_none(tmp_path):
    path = measured(tmp_path / "lucky.safetensors", L2ESettings(), verdict="exact")
    sampler = L2E([parameter()], num_data=10, network=path)
    assert sampler.badge == "heuristic"
    assert "does not claim" in sampler.badge_reason


def test_modules_and_fresh_networks_have_none():
    random = build_network(2, (4,), 1, zero_last=False)
    for network, said in (
        (random, "came as a module"),
        (None, "its last layer is zero, so that the update is"),
    ):
        sampler = KineticL2E([parameter()], 0.1, 10, network=network)
        assert sampler.badge == "heuristic"
        assert said in sampler.badge_reason
    assert "zero" not in KineticL2E([parameter()], 0.1, 10, network=random).badge_reason
    # The paper's form starts at random, and a shifted curl is another base.
    assert "zero" not in L2E([parameter()], 0.1, 10, network=None, form="paper").badge_reason
    assert "zero" not in MetaSGMCMC([parameter()], 0.1, 10, network=None, curl_clip=0.5).badge_reason
    assert "zero" in MetaSGMCMC([parameter()], 0.1, 10, network=None).badge_reason


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_laws_say_at_what_they_were_measured(name):
    law = pretrained.card(name)["law"]
    assert len(law["lr"]) >= 2
    assert len(law["lr"]) == len(law["momentum_decay"]) == len(law["largest_bias"]) == len(law["error"])
    assert law["lr"][0] >= pretrained.card(name)["defaults"]["lr"]
