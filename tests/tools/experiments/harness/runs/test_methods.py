"""The table of methods, what its rows build, and the settings that are tried of them."""

import math
from collections import Counter

import pytest
import torch
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.trials import SHORT_NAMES, Setting, candidates, proposal
from experiments.harness.tuning import Tuning

from learned_samplers import L2E
from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.network import build_network
from learned_samplers.learned.weights import META_TRAINING_FIELDS

ALTERNATIVES = {
    "momentum_decay": (0.05, 0.1, 0.3),
    "temperature": (1.0, 0.1, 0.01),
    "exploration_ratio": (0.5, 0.8, 0.9),
    "prior_precision": (0.0, 1.0, 20.0),
}
BURN_INS = {"burn_in": (0.5, 0.8)}
ENDS = {**BURN_INS, "final_lr": (1.0, 0.2)}


@pytest.mark.parametrize("method", ["SGD", "Adam", "SGHMC", "L2E", "CyclicalSGMCMC", "HMC", "SWAG"])
@pytest.mark.parametrize(("tries", "more"), [(1, {}), (2, ENDS), (17, {}), (40, ENDS)])
def test_every_method_tries_equally_many_settings_in_a_balanced_choice(method, tries, more):
    alternatives = ALTERNATIVES | more
    tried = candidates(METHODS[method], tries, 6, alternatives)
    assert len(tried) == len(set(tried)) == tries
    rates = Counter(setting.lr for setting in tried)
    assert max(rates.values()) - min(rates.values()) <= 1
    assert len(rates) >= min(6, tries)
    others = Counter(setting.also for setting in tried)
    possible = math.prod(len(alternatives[name]) for name in METHODS[method].tunes if name in alternatives)
    assert len(others) == min(tries, possible)
    assert max(others.values()) - min(others.values()) <= 1
    default = METHODS[method].lr
    assert min(rates) <= default * 1.5
    assert max(rates) * 1.5 >= default


def test_the_settings_that_are_tried():
    rates = {name: sorted({s.lr for s in candidates(METHODS[name], 18, 6, ALTERNATIVES)}) for name in METHODS}
    assert rates["SGHMC"] == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert rates["PSGLD"] == [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01]
    around = candidates(METHODS["L2E"], 18, 6, ALTERNATIVES, 0.005)
    assert sorted({setting.lr for setting in around}) == [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]
    decays = candidates(METHODS["Adam"], 2, 1, {"prior_precision": (0.0, 1.0)})
    assert {setting.also for setting in decays} == {(("prior_precision", 0.0),), (("prior_precision", 1.0),)}
    assert {setting.variant for setting in decays} == {"p0", "p1"}
    assert {str(setting) for setting in decays} == {"lr 0.003, λ 0", "lr 0.003, λ 1"}
    alone = candidates(METHODS["L2E"], 9, 6, {"temperature": (1.0,)})
    assert len({setting.lr for setting in alone}) == 9, "with nothing else to tune there are more learning rates"
    assert len({name[0] for name in SHORT_NAMES}) == len(SHORT_NAMES), "names of a run's files must not collide"


def tuned(scores):
    tuning = Tuning(lambda run: run)
    tuning.trials = {setting: [score] for setting, score in scores.items()}
    return tuning


def test_what_is_proposed_next_is_new_and_near_the_best():
    alternatives = {"temperature": (1.0, 0.1, 0.01)}
    hot, cold = (("temperature", 1.0),), (("temperature", 0.1),)
    tuning = tuned({Setting(0.1, hot): 1.0, Setting(0.2, hot): 0.5, Setting(0.5, cold): 2.0})
    seen = []
    for _ in range(7):
        seen.append(proposal(tuning, alternatives))
        assert seen[-1] not in tuning.trials
        tuning.trials[seen[-1]] = [3.0]
    rates = [(setting.lr, dict(setting.also)["temperature"]) for setting in seen]
    assert rates[:3] == [(0.5, 1.0), (0.2, 0.1), (0.2, 0.01)], "the rate beside the best, then other temperatures"
    assert rates[3:] == [(0.05, 1.0), (1.0, 1.0), (0.02, 1.0), (2.0, 1.0)], "then ever more distant rates"
    edge = tuned({Setting(0.1, hot): 0.5, Setting(0.2, hot): 1.0})
    assert proposal(edge, alternatives) == Setting(0.05, hot), "beyond the edge first"
    with pytest.raises(RuntimeError, match="it diverged at every learning rate"):
        proposal(tuned({Setting(0.1, hot): None}), alternatives)


# --- what rows build ----------------------------------------------------------------------------------------------


def groups():
    return [{"params": [torch.zeros(3, requires_grad=True)]}]


def built(name, settings, lr=0.01, num_data=100, steps=700):
    method = METHODS[name]
    return method.build(groups(), method.plan(settings, lr, num_data, steps))


def test_optimizers_get_the_priors_decay_and_samplers_the_posterior():
    settings = Settings(prior_precision=2.0, temperature=0.5, momentum_decay=0.2)
    for name in ("SGD", "DeepEnsemble", "SGDEMA", "Adam", "AdamAverage", "Muon", "ShampooEnsemble"):
        assert built(name, settings).param_groups[0]["weight_decay"] == 0.02, name
    assert built("SGD", settings).param_groups[0]["momentum"] == 0.8
    for name in ("SGLD", "SGHMC", "MCLMC", "IVON", "L2E", "HMC"):
        group = built(name, settings).param_groups[0]
        assert (group["lr"], group["temperature"], group["prior_precision"]) == (0.01, 0.5, 2.0), name
    assert built("SGHMC", settings).param_groups[0]["momentum_decay"] == 0.2


@pytest.mark.parametrize(("feature_set", "total_steps"), [("matrix", 700), ("adaptive", None)])
def test_a_network_that_sees_how_much_of_its_run_is_over_is_told_its_length(tmp_path, feature_set, total_steps):
    path = tmp_path / "own.safetensors"
    card = dict(name="own", sampler="L2E", form="residual", feature_set=feature_set)
    card |= dict(features=list(feature_set_named(feature_set).names), scales={}, defaults={"lr": 0.03}, licence="MIT")
    card |= dict(badge="heuristic", curve=[], metrics={}, meta_training=dict.fromkeys(META_TRAINING_FIELDS))
    weights.save(path, build_network(feature_set, (4,), 2), card)
    settings = Settings(networks=(f"l2e={path}",))
    assert built("L2E", settings).settings.total_steps == total_steps
    assert METHODS["L2E"].rate(settings) == 0.03, "the rate that the card recommends"
    assert METHODS["CyclicalL2E"].weights_name(settings) != str(path)
    assert METHODS["SGHMC"].rate(settings) == 0.05


@pytest.mark.parametrize("num_data", [100, 9_999, 10_000, 50_000])
def test_comparisons_run_the_default_weights(num_data):
    sampler = L2E(groups(), num_data=num_data)
    assert METHODS["L2E"].weights_name(Settings()) == sampler.card["name"]
    assert METHODS["L2E"].rate(Settings()) == sampler.card["defaults"]["lr"]


def test_the_mass_is_adapted_in_the_first_half_of_burn_in():
    sampler = built("AdaptedSGHMC", Settings(burn_in=0.5), steps=40)
    (weight,), sampling = sampler.param_groups[0]["params"], []
    for _ in range(12):
        weight.grad = torch.ones(3)
        sampler.step()
        sampling.append(sampler.is_sampling)
    assert sampling == [False] * 10 + [True] * 2
