"""Shared parts of the tools' tests."""

import pytest
import torch

from learned_samplers.learned import weights
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.kinetic import KINETIC_FEATURES
from learned_samplers.learned.meta_fields import META_FEATURES, build_meta_network
from learned_samplers.learned.network import build_network


@pytest.fixture(autouse=True)
def _restore_threads():
    """The tools set torch's number of threads for the whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def undrawn(monkeypatch):
    """Make figures without drawing them into files, which takes seconds; `test_compare.py` draws them."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture(scope="session")
def learned_weights(tmp_path_factory):
    """Method → the file of a small untrained network of its form."""
    folder, files = tmp_path_factory.mktemp("weights"), {}
    paper, kinetic = ("paper", FEATURE_SETS["paper"].names), ("kinetic", KINETIC_FEATURES)
    forms = {
        "L2E": ("L2E", "residual", paper, 2),
        "L2EPaper": ("L2E", "paper", paper, 2),
        "KineticL2E": ("KineticL2E", None, kinetic, 1),
        "MetaSGMCMC": ("MetaSGMCMC", "signed", ("energy", META_FEATURES), 2),
    }
    for name, (sampler, form, (feature_set, features), outputs) in forms.items():
        stream = torch.Generator().manual_seed(0)
        if sampler == "MetaSGMCMC":
            network = build_meta_network((2,), zero_last=False, generator=stream)
        else:
            network = build_network(len(features), (4,), outputs, zero_last=False, generator=stream)
        card = dict(name=name, sampler=sampler, form=form, features=list(features), feature_set=feature_set)
        card |= dict(scales={}, defaults={}, badge="heuristic", curve=[], metrics={}, licence="MIT")
        card["meta_training"] = dict.fromkeys(weights.META_TRAINING_FIELDS)
        if form is None:
            del card["form"]
        weights.save(folder / f"{name}.safetensors", network, card)
        files[name] = str(folder / f"{name}.safetensors")
    return files
