"""The presets of compare.py: their networks can be built, and the full ones have the paper's epochs and samples."""

import pytest
import torch
from experiments.compare.options import parse_compare
from experiments.compare.presets import PRESETS
from experiments.harness.runs.networks import build_network, parameter_groups

from meta_tasks.datasets import ImageData, TokenData
from meta_tasks.datasets.texts import SPECIAL
from meta_tasks.networks import architectures
from meta_tasks.tasks import FAMILIES, family_named

# Training examples once the validation ones are held out; shape and classes.
SOURCES = {
    "digits": (698, (1, 8, 8), 10),
    "mnist": (54_000, (1, 28, 28), 10),
    "fashion_mnist": (54_000, (1, 28, 28), 10),
    "cifar10": (40_960, (3, 32, 32), 10),
    "cifar100": (40_960, (3, 32, 32), 100),
    "imdb": (20_000, (100,), 2),
}
# Epochs of burn-in, epochs between samples, and samples, of Tables 13 and 14 and of Appendix C.
PAPER = dict.fromkeys((name for name in PRESETS if name.endswith("_full")), (100, 50, 100)) | {
    "imdb_full": (100, 50, 50),
}


def blank(dataset: str) -> ImageData:
    _, shape, classes = SOURCES[dataset]
    y = torch.zeros(2, dtype=torch.int64)
    if dataset == "imdb":
        return TokenData(dataset, classes, *(torch.ones(2, *shape).long(), y) * 3, vocabulary=(*SPECIAL, "word"))
    return ImageData(dataset, classes, *(torch.zeros(2, *shape), y) * 3)


@pytest.mark.parametrize("name", PRESETS)
def test_the_network_of_a_preset_reads_its_data(name):
    settings, budgets = PRESETS[name].settings, PRESETS[name].budgets
    data = blank(settings.dataset)
    assert build_network(settings, data)(data.test_x).shape == (2, data.num_classes)
    assert parse_compare(["--preset", name]).budgets == budgets


@pytest.mark.parametrize("name", PAPER)
def test_a_full_preset_has_the_papers_epochs_and_samples(name):
    settings, (budget,) = PRESETS[name].settings, PRESETS[name].budgets
    burn_in, between, samples = PAPER[name]
    per_epoch = settings.steps_per_epoch(SOURCES[settings.dataset][0])
    assert settings.batch_size == 128
    assert budget == (burn_in + between * samples) * per_epoch
    assert settings.num_samples == settings.ensemble_size == samples
    assert settings.cycles * between == burn_in + between * samples
    assert settings.burn_in_cycles * between == burn_in
    assert settings.burn_in * budget == pytest.approx(burn_in * per_epoch)
    assert settings.prior_precision / SOURCES[settings.dataset][0] == pytest.approx(5e-4, rel=0.03)


def test_the_presets_are_what_they_are_for():
    settings = PRESETS["digits"].settings
    for family in map(family_named, FAMILIES):
        mine = {"hidden": settings.hidden, "activation": settings.activation}
        assert (settings.model, mine) not in family.architectures
        assert "cifar10" not in family.dataset_names
    short = [
        preset.settings
        for name, preset in PRESETS.items()
        if name not in PAPER and not name.startswith(("explore", "distance"))
    ]
    assert all(settings.num_samples == 10 for settings in short)


@pytest.mark.parametrize("name", architectures.names())
def test_parameter_groups_hold_every_parameter_once(name):
    model = architectures.build(name, (1, 16, 16), 10)
    groups = parameter_groups(model)
    grouped = [p for group in groups for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model.parameters()))
    assert len({group["name"] for group in groups}) == len(groups)
