"""What a dry run times of a method, and that it needs no files."""

from urllib.error import URLError

import compare
import pytest
import torch
from experiments.compare import cost
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.presets import PRESETS
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import Training

from learned_samplers.base import matrices
from meta_tasks.datasets import ImageData
from tests.tools.compare_cases import TINY, cells


def test_the_steps_that_are_timed_have_the_share_of_roots_of_a_run(monkeypatch):
    """A step in which a covariance is decomposed costs many others; a run has one of them in a period."""
    timed, loop, root, made = [], Training.loop, matrices.inverse_root, []

    def counted(self, model, optimizer, steps, schedule):
        made.clear()
        loop(self, model, optimizer, steps, schedule)
        timed.append((steps, len(made)))

    monkeypatch.setattr(matrices, "inverse_root", lambda covariance: made.append(1) or root(covariance))
    monkeypatch.setattr(Training, "loop", counted)
    x, y = torch.rand(64, 1, 4, 4), torch.arange(64) % 4
    data = ImageData("tiny", 4, x, y, x[:8], y[:8], x[:8], y[:8])
    settings = Settings(model="mlp", hidden=(4,), batch_size=8, steps=100)
    assert cost.seconds_per_gradient(METHODS["WhitenedSGHMC"], settings, data) > 0
    layers = 2
    assert timed[-1] == (matrices.ROOT_EVERY, layers)


def test_a_dry_run_says_what_it_will_cost_and_leaves_nothing(tmp_path, capsys):
    methods = ["SGHMC", "KineticL2E", "IVON"]
    arguments = [*TINY, "--sampler", *methods, "--budgets", "40", "200", "--tries", "6"]
    arguments += ["--extensions", "1", "--keep", "2", "--tune-seeds", "2", "--seeds", "3"]
    compare.main([*arguments, "--dry-run", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    for name in methods:
        assert cells(printed, "| method", name, "gradients") == str(40 * (7 * 2 + 3) + 200 * (3 * 2 + 3))
        assert float(cells(printed, "| method", name, "ms/gradient")) > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["cifar100_full", "tiny_imagenet_full", "imdb"])
def test_a_dry_run_needs_no_files(name, tmp_path, monkeypatch, capsys):
    def offline(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", offline)
    small = ["--batch-size", "2", "--width", "8", "--tries", "1", "--extensions", "0", "--tune-seeds", "1"]
    compare.main(["--preset", name, *small, "--dry-run", "--sampler", "SGHMC", "--data", str(tmp_path)])
    assert "random examples in its shape stand for the data set" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "shape", "classes"), [("cifar10", (3, 32, 32), 10), ("imdb", (100,), 2)])
def test_a_stand_in_has_the_shape_of_its_data_set(name, shape, classes):
    data = cost.stand_in(PRESETS["imdb"][0] if name == "imdb" else Settings(dataset=name), 300)
    assert (data.input_shape, data.num_classes, data.num_data) == (shape, classes, 300)
