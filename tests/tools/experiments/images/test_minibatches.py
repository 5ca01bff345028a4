"""Crop and flip: what they do to an image, with which numbers, and where they are refused."""

import json

import numpy as np
import pytest
import sample
import torch
from experiments.images.minibatches import crop_and_flip, minibatches
from experiments.images.settings import Settings
from torch.nn.functional import pad

from meta_tasks.datasets import load

TINY = ["--model", "mlp", "--hidden", "8", "--limit", "320", "--batch-size", "32", "--num-samples", "2", "--steps", "8"]


def test_every_image_is_a_crop_of_its_padded_self_mirrored_or_not():
    images = torch.rand(200, 3, 16, 8)
    cut = crop_and_flip(images, torch.Generator().manual_seed(0))
    assert cut.shape == images.shape
    seen = []
    for image, got in zip(images, cut, strict=True):
        padded = pad(image, (1, 1, 2, 2))  # an eighth of each side
        shifts = [(top, left) for top in range(5) for left in range(3)]
        crops = {shift: padded[:, shift[0] : shift[0] + 16, shift[1] : shift[1] + 8] for shift in shifts}
        matches = [(*shift, False) for shift, crop in crops.items() if torch.equal(got, crop)]
        matches += [(*shift, True) for shift, crop in crops.items() if torch.equal(got, crop.flip(-1))]
        assert len(matches) == 1
        seen += matches
    assert len(set(seen)) == 30, "not every shift and mirroring occurs"
    mirrored = sum(flip for _, _, flip in seen)
    assert 70 < mirrored < 130  # 200 throws of a coin: 4 standard deviations are 28


def test_the_seed_gives_crops_and_the_order_is_that_without_augmentation():
    data = load("digits")
    plain, crops, again, other = (
        [next(stream) for _ in range(3)]
        for stream in (
            minibatches(data, Settings(), seed=0),
            minibatches(data, Settings(augment=True), seed=0),
            minibatches(data, Settings(augment=True), seed=0),
            minibatches(data, Settings(augment=True), seed=1),
        )
    )
    for (x, y), (cut, labels), (same, _), (different, _) in zip(plain, crops, again, other, strict=True):
        assert torch.equal(y, labels)
        assert torch.equal(cut, same)
        assert not torch.equal(cut, x)
        assert not torch.equal(cut, different)
    assert not torch.equal(crops[0][0], crops[1][0])


def test_sample_with_augmentation_is_another_run_and_can_be_repeated(tmp_path):
    runs = []
    for number, more in enumerate(([], ["--augment"], ["--augment"])):
        out = tmp_path / str(number)
        sample.main([*TINY, *more, "--sampler", "SGHMC", "--seeds", "1", "--out", str(out)])
        runs.append(json.loads((out / "results.json").read_text())["methods"]["SGHMC"]["mean"]["nll"])
    assert runs[1] == runs[2] != runs[0]


def test_runs_made_before_there_was_augmentation_are_read_back(tmp_path):
    sample.main([*TINY, "--sampler", "SGD", "--seeds", "1", "--out", str(tmp_path)])
    (path,) = (tmp_path / "runs").glob("*.json")
    settings = json.loads(path.read_text())["made_of"]["settings"]["settings"]
    assert not {"augment", "length", "vocabulary"} & set(settings)
    sample.main([*TINY, "--sampler", "SGD", "--seeds", "1", "--augment", "--out", str(tmp_path)])
    assert json.loads(path.read_text())["made_of"]["settings"]["settings"]["augment"] is True


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["--sampler", "HMC", "--epochs", "40"], "augment cannot be applied: HMC takes the whole training set"),
        (["--dataset", "npz:{}"], "augment cannot be applied: these are no images"),
    ],
)
def test_augmentation_is_refused_where_it_means_nothing(tmp_path, more, match):
    x, path, y = np.zeros((400, 5)), tmp_path / "arrays.npz", np.arange(400) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    command = ["--model", "mlp", "--hidden", "8", "--batch-size", "32", "--num-samples", "2", "--augment"]
    with pytest.raises(SystemExit, match=match):
        sample.main([*command, *(each.format(path) for each in more), "--out", str(tmp_path / "out")])
