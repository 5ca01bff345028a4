"""The presets of compare.py: their networks can be built, and the full ones have the paper's epochs and samples."""

from urllib.error import URLError

import compare
import pytest
import torch
from experiments.images import cost
from experiments.images.options import parse_compare
from experiments.images.presets import PRESETS
from experiments.images.settings import Settings
from experiments.images.training import build_network

from meta_tasks.datasets import ImageData, TokenData
from meta_tasks.datasets.texts import SPECIAL

# Training examples once the validation ones are held out; shape and classes.
SOURCES = {
    "digits": (698, (1, 8, 8), 10),
    "mnist": (54_000, (1, 28, 28), 10),
    "fashion_mnist": (54_000, (1, 28, 28), 10),
    "cifar10": (40_960, (3, 32, 32), 10),
    "cifar100": (40_960, (3, 32, 32), 100),
    "tiny_imagenet": (90_000, (3, 64, 64), 200),
    "imdb": (20_000, (100,), 2),
}


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# Epochs of burn-in, epochs between samples, and samples, of Tables 13 and 14 and of Appendix C.
PAPER = dict.fromkeys((name for name in PRESETS if name.endswith("_full")), (100, 50, 100)) | {
    "tiny_imagenet_full": (100, 100, 10),
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
    settings, budgets = PRESETS[name]
    data = blank(settings.dataset)
    assert build_network(settings, data)(data.test_x).shape == (2, data.num_classes)
    assert parse_compare(["--preset", name]).budgets == budgets


def test_hmcs_posterior():
    """40,960 images in minibatches of 80, N(0, 1/5) on the weights, the likelihood as it is."""
    settings, budgets = PRESETS["cifar10_hmc"]
    assert [budget / settings.steps_per_epoch(40_960) for budget in budgets] == [10, 20]
    assert (settings.prior_precision, settings.temperature, settings.augment) == (5.0, 1.0, False)


@pytest.mark.parametrize("name", PAPER)
def test_a_full_preset_has_the_papers_epochs_and_samples(name):
    settings, (budget,) = PRESETS[name]
    burn_in, between, samples = PAPER[name]
    per_epoch = settings.steps_per_epoch(SOURCES[settings.dataset][0])
    assert settings.batch_size == 128
    assert budget == (burn_in + between * samples) * per_epoch
    assert settings.num_samples == samples
    assert settings.burn_in * budget == pytest.approx(burn_in * per_epoch)
    assert settings.prior_precision / SOURCES[settings.dataset][0] == pytest.approx(5e-4, rel=0.03)


@pytest.mark.parametrize("name", ["cifar100_full", "tiny_imagenet_full", "imdb_full", "imdb"])
def test_a_dry_run_needs_no_files(name, tmp_path, monkeypatch, capsys):
    def offline(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    monkeypatch.setattr(cost, "STEPS", 2)
    small = [
        "--batch-size",
        "2",
        "--width",
        "8",
        "--tries",
        "1",
        "--extensions",
        "0",
        "--tune-seeds",
        "1",
        "--seeds",
        "2",
    ]
    compare.main(["--preset", name, *small, "--dry-run", "--sampler", "SGHMC", "--data", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "random examples in its shape stand for the data set" in shown
    gradients = sum(budget * (1 + 2) for budget in PRESETS[name][1])
    if len(PRESETS[name][1]) == 1:
        assert f"| SGHMC  | {gradients:>9} |".replace(" ", "") in shown.replace(" ", "")
    assert not list(tmp_path.iterdir())


def test_without_files_nothing_is_run_and_epochs_cannot_be_counted(tmp_path):
    with pytest.raises(SystemExit, match="imdb: no "):
        compare.main(["--preset", "imdb", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="imdb: no "):
        compare.main(["--dataset", "imdb", "--model", "cnn_lstm", "--dry-run", "--data", str(tmp_path)])


@pytest.mark.parametrize("name", SOURCES)
def test_a_stand_in_has_the_shape_of_its_data_set(name):
    _, shape, classes = SOURCES[name]
    data = cost.stand_in(Settings(dataset=name, length=100 if name == "imdb" else None), 300)
    assert (data.input_shape, data.num_classes, data.num_data) == (shape, classes, 300)
