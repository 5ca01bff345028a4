"""Minibatches: an epoch has every image once, and crops and mirrors are what they say."""

import torch
from experiments.harness.runs.minibatches import Minibatches, batches, crop_and_flip
from experiments.harness.runs.settings import Settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from meta_tasks.datasets import load


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
    kinds = ((False, 0), (True, 0), (True, 0), (True, 1))
    streams = [Minibatches(data, Settings(augment=augment), seed) for augment, seed in kinds]
    for _ in range(3):
        (x, y), (cut, labels), (same, _), (different, _) = (next(stream) for stream in streams)
        assert torch.equal(y, labels)
        assert torch.equal(cut, same)
        assert not torch.equal(cut, x)
        assert not torch.equal(cut, different)


@hypothesis_settings(deadline=None, max_examples=50)  # a deadline fails on a busy machine
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_sees_every_image_once(num_batches, batch_size, extra):
    num_data = num_batches * batch_size + min(extra, batch_size - 1)
    stream = batches(num_data, batch_size, torch.device("cpu"))
    seen = torch.cat([next(stream) for _ in range(num_batches)])
    assert len(seen.unique()) == len(seen) == num_batches * batch_size
    assert all(len(next(stream)) == batch_size for _ in range(num_batches + 1))
