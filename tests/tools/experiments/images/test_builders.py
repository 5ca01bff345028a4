"""What the builders of learned samplers tell them about their run."""

from dataclasses import replace

import pytest
import torch
from experiments.images import builders
from experiments.images.methods import METHODS
from experiments.images.settings import Settings

from learned_samplers import L2E
from learned_samplers.learned import weights
from learned_samplers.learned.cards import META_TRAINING_FIELDS
from learned_samplers.learned.default_weights import GATED_FROM
from learned_samplers.learned.feature_sets import feature_set_named
from learned_samplers.learned.network import build_network

SETTINGS = Settings(burn_in=0.3, temperature=0.5, prior_precision=2.0)


def groups():
    return [{"params": [torch.zeros(3, requires_grad=True)]}]


def l2e_weights(path, feature_set):
    names = feature_set_named(feature_set).names
    card = dict(name=path.stem, sampler="L2E", form="residual", feature_set=feature_set, features=list(names))
    card |= dict(scales={}, defaults={}, badge="heuristic", curve=[], metrics={}, licence="MIT")
    weights.save(
        path,
        build_network(feature_set, (4,), 2),
        {**card, "meta_training": dict.fromkeys(META_TRAINING_FIELDS)},
    )
    return str(path)


@pytest.mark.parametrize(("feature_set", "total_steps"), [("lean", 700), ("adaptive", None)])
def test_a_network_that_sees_how_much_of_its_run_is_over_is_told_its_length(tmp_path, feature_set, total_steps):
    settings = replace(SETTINGS, l2e_network=l2e_weights(tmp_path / "own.safetensors", feature_set))
    sampler = builders.l2e(groups(), settings, 0.01, 100, 700)
    assert sampler.settings.feature_set == feature_set
    assert sampler.settings.total_steps == total_steps


def test_the_scale_adapted_one_explores_for_all_of_burn_in(learned_weights):
    settings = replace(SETTINGS, scale_adapted_l2e_network=learned_weights["l2e_network"])
    sampler = builders.scale_adapted_l2e(groups(), settings, 0.01, 100, 700)
    group = sampler.param_groups[0]
    assert group["warmup_steps"] == 210
    assert (group["lr"], group["temperature"], group["prior_precision"]) == (0.01, 0.5, 2.0)
    with pytest.raises(ValueError, match=r"burn_in=0.3 of 3 steps leaves ScaleAdaptedL2E none in which to explore"):
        builders.scale_adapted_l2e(groups(), settings, 0.01, 100, 3)


def test_with_few_data_l2e_runs_at_the_rate_that_its_card_recommends():
    """As the page of the demo says."""
    settings = Settings().with_weights(GATED_FROM - 1)
    own = L2E([torch.nn.Parameter(torch.zeros(2, 3))], num_data=GATED_FROM - 1)
    assert METHODS["L2E"].rate(settings) == own.card["defaults"]["lr"]


def test_comparisons_run_the_default_weights():
    p = [torch.nn.Parameter(torch.zeros(2, 3))]
    for num_data in (100, GATED_FROM - 1, GATED_FROM):
        own = L2E(p, num_data=num_data).card["name"]
        assert Settings().with_weights(num_data).l2e_network == own
        built = builders.l2e([{"params": p}], replace(SETTINGS, l2e_network="default"), 0.001, num_data, 10)
        assert built.card["name"] == own
        assert built.settings.total_steps == 10, "they see the progress of a run"
