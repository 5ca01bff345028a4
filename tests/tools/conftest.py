"""What the tools' tests share."""

import pytest
import torch

from learned_samplers.learned import cards, weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.kinetic.rule import KINETIC_FEATURES
from learned_samplers.learned.meta_sgmcmc.network import META_FEATURES, build_meta_network
from learned_samplers.learned.network import build_network


@pytest.fixture(scope="session")
def learned_weights(tmp_path_factory):
    """The settings of `tools/experiments/images/settings.py` that name weights, each with a small untrained network of
    its form."""
    folder, files = tmp_path_factory.mktemp("weights"), {}
    paper, kinetic = ("paper", FEATURE_SETS["paper"].names), ("kinetic", KINETIC_FEATURES)
    forms = {
        "l2e": ("L2E", "residual", paper, 2),
        "l2e_paper": ("L2E", "paper", paper, 2),
        "kinetic_l2e": ("KineticL2E", "kinetic", kinetic, 1),
        "meta_sgmcmc": ("MetaSGMCMC", "signed", ("energy", META_FEATURES), 2),
    }
    for name, (sampler, form, (feature_set, features), outputs) in forms.items():
        stream = torch.Generator().manual_seed(0)
        if sampler == "MetaSGMCMC":
            network = build_meta_network((2,), zero_last=False, generator=stream)
        else:
            network = build_network(len(features), (4,), outputs, zero_last=False, generator=stream)
        card = {
            "name": name,
            "sampler": sampler,
            "form": form,
            "features": list(features),
            "scales": {},
            "defaults": {},
            "feature_set": feature_set,
            "badge": "heuristic",
            "curve": [],
            "meta_training": dict.fromkeys(cards.META_TRAINING_FIELDS),
            "metrics": {},
            "licence": "MIT",
        }
        weights.save(folder / f"{name}.safetensors", network, card)
        files[f"{name}_network"] = str(folder / f"{name}.safetensors")
    files["scale_adapted_l2e_network"] = files["l2e_network"]
    return files
