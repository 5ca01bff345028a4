"""What a checkpoint says of its data: the same on every processor."""

import numpy as np
import pytest
import torch

from meta_tasks.datasets import loading
from meta_tasks.tasks import family_named
from meta_tasks.training import Trainer, TrainerSettings
from tests.meta_tasks.datasets.test_npz import write_npz
from tests.meta_tasks.toy_tasks import LearnableSGD
from tests.meta_tasks.training.test_trainer import es


def digits(**changes):
    return family_named("digits", sizes=(6,), architectures=(("mlp", {"hidden": (4,)}),), **changes)


def run(folder, iterations, family=None):
    settings = TrainerSettings(iterations=iterations, evaluate_every=0)
    made = Trainer(family or digits(), LearnableSGD(), es(pairs=1), settings, folder=folder)
    made.run()
    made.close()
    return made


@pytest.fixture
def other_processor(monkeypatch):
    """Resized pixels that differ in their last bit, as those of another instruction set do."""
    whole = loading.scale_images

    def scaled(*each):
        x = whole(*each)
        return torch.nextafter(x, torch.ones_like(x))

    return lambda: monkeypatch.setattr(loading, "scale_images", scaled)


def test_a_fingerprint_is_of_what_the_files_hold(tmp_path, other_processor):
    paths = [write_npz(tmp_path / f"{name}.npz", **changes) for name, changes in (("a", {}), ("b", {}))]
    arrays = dict(np.load(paths[1]))
    arrays["test_labels"] = arrays["test_labels"][::-1]
    np.savez(paths[1], **arrays)
    families = [digits(dataset_names=(f"npz:{path}",)) for path in paths]
    (first,), (changed,) = (family.data_fingerprints().values() for family in families)
    assert first != changed
    plain = digits().data_fingerprints()
    other_processor()
    there = digits()
    there.task(0)  # what is loaded already is no other data
    assert there.data_fingerprints() == plain


def test_a_run_goes_on_on_another_processor(tmp_path, other_processor):
    run(tmp_path, 1)
    other_processor()
    assert run(tmp_path, 2).iteration == 2
