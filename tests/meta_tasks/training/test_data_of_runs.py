"""What a checkpoint says of its data: the same on every processor, and comparable with what earlier versions wrote."""

import numpy as np
import pytest
import torch

from meta_tasks.datasets import loading
from meta_tasks.rules.classical import LearnableSGD
from meta_tasks.tasks import family_named
from meta_tasks.training import Trainer, TrainerSettings
from meta_tasks.training.checkpoint import Checkpoints
from tests.meta_tasks.datasets.test_npz import write_npz
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
    plain, scaled = digits().data_fingerprints(), digits().scaled_fingerprints()
    other_processor()
    there = digits()
    there.task(0)  # what is loaded already is no other data
    assert there.data_fingerprints() == plain
    assert there.scaled_fingerprints() != scaled
    there.stand_in(20)
    assert there.data_fingerprints() != plain


def test_a_run_goes_on_on_another_processor(tmp_path, other_processor):
    run(tmp_path, 1)
    other_processor()
    assert run(tmp_path, 2).iteration == 2


def as_of_an_earlier_version(folder):
    """Have the checkpoint say the data as versions did that took the fingerprint of scaled pixels."""
    (path,) = Checkpoints(folder).paths()
    torch.save({**Checkpoints.read(path), "data": digits().scaled_fingerprints()}, path)


def test_a_run_of_an_earlier_version_goes_on_where_it_was_and_then_anywhere(tmp_path, other_processor):
    run(tmp_path, 1)
    as_of_an_earlier_version(tmp_path)
    made = run(tmp_path, 2)
    assert made.iteration == 2
    assert Checkpoints(tmp_path).load()["data"] == digits().data_fingerprints()
    other_processor()
    assert run(tmp_path, 3).iteration == 3


def test_one_that_may_be_of_other_data_says_what_else_it_may_be(tmp_path, other_processor):
    run(tmp_path, 1)
    as_of_an_earlier_version(tmp_path)
    other_processor()
    with pytest.raises(ValueError, match=r"data\.digits is .* other on another kind of processor: go on once on the"):
        run(tmp_path, 2)
