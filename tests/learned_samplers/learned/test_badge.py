"""The badge of a learned sampler: a measurement gives it, at its settings, and nothing else does."""

from __future__ import annotations

import pickle

import pytest
import torch

import pretrained
from learned_samplers.learned import weights
from learned_samplers.learned.network import build_network
from tests.learned_samplers.learned.flat_keywords import L2E, KineticL2E, MetaSGMCMC, PrecondL2E
from tests.learned_samplers.learned.test_weights import make_card, make_network, rewrite_card


def parameter():
    return torch.zeros(2, requires_grad=True)


def kinetic(path, seed=3, **law):
    """A file of KineticL2E whose card claims what ``law`` says, on top of a law that earns the badge."""
    module = make_network(2, 1, seed=seed)
    card = make_card(sampler="KineticL2E", feature_set="kinetic", scales={}, badge="O(h)")
    weights.save(path, module, card)
    sampler = KineticL2E([parameter()], num_data=10, network=path)
    earned = {
        "verdict": "O(h)",
        "reason": "bias 4% at lr, 1% at lr/4",
        "largest_bias": [0.04, 0.01],
        "error": [0.004] * 2,
        "lr": [0.1, 0.025],
        "momentum_decay": [0.25, 0.25],
        "temperature": 1.0,
        **sampler.fingerprint(),
    }
    wanted = {key: value for key, value in {**earned, **law}.items() if value is not None}
    weights.save(path, module, {**card, "law": wanted})
    return path


@pytest.fixture
def file(tmp_path):
    return kinetic(tmp_path / "kinetic.safetensors")


def test_a_measured_law_gives_the_badge_also_to_a_copy(file):
    sampler = KineticL2E([parameter()], num_data=10, network=file)
    assert (sampler.badge, sampler.badge_reason) == ("O(h)", "measured on Gaussians: bias 4% at lr, 1% at lr/4")
    copied = pickle.loads(pickle.dumps(sampler))
    assert (copied.badge, copied.badge_reason) == (sampler.badge, sampler.badge_reason)
    # Float64 parameters and a smaller lr are within the measurement.
    double = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert KineticL2E([double], 0.01, 10, network=file).badge == "O(h)"


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"lr": 0.2}, "lr is 0.2, and the law was measured up to 0.1"),
        ({"momentum_decay": 0.1}, "momentum_decay is 0.1, and the law was measured at 0.25"),
        ({"temperature": 0.5}, "temperature is 0.5, and the law was measured at 1"),
        ({"mean_scale": 2.0}, "mean_scale is 2.0, and the law was measured with 1.0"),
        ({"probe_size": 0.1}, "probe_size is 0.1, and the law was measured with 0.001"),
        ({"hessian": "none"}, "hessian is 'none', and the law was measured with 'finite_difference'"),
    ],
)
def test_other_settings_than_the_measured_ones_lose_it(file, keywords, reason):
    sampler = KineticL2E([parameter()], num_data=10, network=file, **keywords)
    assert (sampler.badge, sampler.badge_reason) == ("heuristic", reason)


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
    ("law", "reason"),
    [
        ({"verdict": "biased"}, "the measured law is biased: bias 4% at lr, 1% at lr/4"),
        ({"verdict": "unstable"}, "the measured law is unstable"),
        ({"largest_bias": [0.9, 0.2]}, "the measured bias at the smallest step size exceeds 5%"),
        ({"largest_bias": [0.9, float("nan")]}, None),
        ({"largest_bias": []}, "the law in the card does not say at what it was measured: largest_bias is []"),
        ({"largest_bias": ["x"]}, "the law in the card does not say at what it was measured: largest_bias is ['x']"),
        ({"error": [0.1, [0.1]]}, "the law in the card does not say at what it was measured: error is [0.1, [0.1]]"),
        ({"lr": []}, "the law in the card does not say at what it was measured: lr is []"),
        ({"momentum_decay": [True]}, "the law in the card does not say at what it was measured: momentum_decay is ["),
        ({"temperatures": []}, "the law in the card does not say at what it was measured: temperatures is []"),
        ({"temperatures": 1.0}, "the law in the card does not say at what it was measured: temperatures is 1.0"),
        ({"temperatures": ["1"]}, "the law in the card does not say at what it was measured: temperatures is ['1']"),
        ({"verdict": "unstable", "largest_bias": [0.9, "x"]}, "the measured law is unstable"),
        ({"sha256": "0" * 64}, "the network has other weights than those that were measured"),
        ({"settings": {}}, "feature_set is 'kinetic', and the law was measured with nothing"),
        ({"settings": None}, "the law in the card does not say at what it was measured: it lacks settings"),
        ({"lr": 0.1}, "the law in the card does not say at what it was measured: it lacks lr"),
    ],
)
def test_a_law_that_earns_nothing(tmp_path, law, reason):
    if reason is None:  # a card cannot even hold what is no number
        with pytest.raises(ValueError, match="Out of range float"):
            kinetic(tmp_path / "a.safetensors", **law)
        return
    sampler = KineticL2E([parameter()], num_data=10, network=kinetic(tmp_path / "a.safetensors", **law))
    assert sampler.badge == "heuristic"
    assert sampler.badge_reason.startswith(reason)


def test_not_a_number_bounds_nothing_and_a_whole_number_is_one(file):
    """NaN, which no card of ours holds and Python's JSON reads, is not less than any learning rate."""
    rewrite_card(file, lambda card: card["law"].update(lr=[float("nan")]))
    sampler = KineticL2E([parameter()], 9.0, 10, network=file)
    assert sampler.badge_reason == "the law in the card does not say at what it was measured: lr is [nan]"
    rewrite_card(file, lambda card: card["law"].update(lr=[0.1], temperature=1))
    assert KineticL2E([parameter()], num_data=10, network=file).badge == "O(h)"


@pytest.mark.parametrize(
    ("sampler", "feature_set", "size", "outputs"),
    [(KineticL2E, "kinetic", 2, 1), (MetaSGMCMC, "energy", None, 2), (L2E, "paper", 9, 2), (PrecondL2E, "paper", 9, 2)],
)
def test_a_word_in_a_card_gives_no_badge(tmp_path, sampler, feature_set, size, outputs):
    """The planted fault: a card that says "O(h)", and a law that nobody measured."""
    from learned_samplers.learned.meta_fields import META_FEATURES, build_meta_network

    own = {"features": list(META_FEATURES)} if size is None else {}
    form = {L2E: "residual", MetaSGMCMC: "signed"}.get(sampler)
    card = make_card(sampler=sampler.__name__, form=form, feature_set=feature_set, scales={}, badge="O(h)", **own)
    if form is None:
        card.pop("form", None)
    network = build_meta_network((4,)) if size is None else build_network(size, (4,), outputs, zero_last=False)
    path = tmp_path / "claimed.safetensors"
    weights.save(path, network, card)
    made = sampler([parameter()], num_data=10, network=path)
    assert made.card["badge"] == "O(h)"
    assert made.badge == "heuristic"
    assert "has not been measured" in made.badge_reason


def test_a_law_is_not_enough_for_a_sampler_that_claims_none(tmp_path):
    path = tmp_path / "lucky.safetensors"
    weights.save(path, make_network(), make_card())
    sampler = L2E([parameter()], num_data=10, network=path)
    law = {
        "verdict": "exact",
        "reason": "bias 0%",
        "largest_bias": [0.0, 0.0],
        "error": [0.0] * 2,
        "lr": [0.1, 0.025],
        "momentum_decay": [0.25] * 2,
        "temperature": 1.0,
        **sampler.fingerprint(),
    }
    weights.save(path, make_network(), make_card(badge="O(h)", law=law))
    sampler = L2E([parameter()], num_data=10, network=path)
    assert sampler.badge == "heuristic"
    assert sampler.badge_reason == "L2E does not claim an invariant law; measured on Gaussians: bias 0%"


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
    assert "zero" not in MetaSGMCMC([parameter()], 0.1, 10, network=None, curl_offset=2.0).badge_reason
    assert "zero" in MetaSGMCMC([parameter()], 0.1, 10, network=None).badge_reason


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_laws_say_at_what_they_were_measured(name):
    law = pretrained.card(name)["law"]
    assert len(law["lr"]) == len(law["momentum_decay"]) == len(law["largest_bias"]) == len(law["error"]) >= 2
    assert law["lr"][0] >= pretrained.card(name)["defaults"]["lr"]
