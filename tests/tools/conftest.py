"""The tools are scripts that import their neighbours, so their folder is on the path, as it is when one is run."""

import sys
from pathlib import Path

import pytest
import torch

from learned_samplers import weights
from learned_samplers.kinetic_rule import KINETIC_FEATURES
from learned_samplers.l2e_features import FEATURE_SETS
from learned_samplers.l2e_network import build_network

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(scope="session")
def learned_weights(tmp_path_factory):
    """The settings of `tools/_settings.py` that name weights, each with a small untrained network of its form."""
    folder, files = tmp_path_factory.mktemp("weights"), {}
    forms = {"l2e": ("L2E", "residual"), "l2e_paper": ("L2E", "paper"), "kinetic_l2e": ("KineticL2E", "kinetic")}
    for name, (sampler, form) in forms.items():
        features = KINETIC_FEATURES if form == "kinetic" else FEATURE_SETS["paper"].names
        network = build_network(
            len(features), (4,), 1 if form == "kinetic" else 2, zero_last=False,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        card = {
            "name": name, "sampler": sampler, "form": form, "features": list(features), "scales": {}, "defaults": {},
            "feature_set": "kinetic" if form == "kinetic" else "paper", "badge": "heuristic", "curve": [],
            "meta_training": dict.fromkeys(weights.META_TRAINING_FIELDS), "metrics": {}, "licence": "MIT",
        }  # fmt: skip
        weights.save(folder / f"{name}.safetensors", network, card)
        files[f"{name}_network"] = str(folder / f"{name}.safetensors")
    return files
