"""Task families: seeded, as various as they say, and never CIFAR-10."""

import itertools
import json
import pickle
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from meta_tasks.datasets import loading
from meta_tasks.tasks import FAMILIES, ImageTaskFamily, family_named
from meta_tasks.tasks import family as task_family
from meta_tasks.tasks.task import ImageTask, TaskConfig
from tests.meta_tasks.datasets.test_npz import write_npz
from tests.meta_tasks.toy_runs import es, run
from tests.meta_tasks.toy_tasks import image_task, random_images


@pytest.fixture
def family(monkeypatch):
    """The CPU family, on noise in place of its data sets."""
    images = cache(random_images)
    monkeypatch.setattr(
        ImageTaskFamily, "_data", lambda self, dataset, size: images(9000, size or 28, 10 if "m" in dataset else 4)
    )
    return family_named("cpu")


def test_the_keys_fix_the_task(family):
    task, again, successor = family.task(0, 3, 1), family.task(0, 3, 1), family.task(0, 3, 2)
    assert task.config == again.config
    assert again.config != successor.config
    assert torch.equal(task.train[0], again.train[0])
    assert torch.equal(task.initial(5), again.initial(5))
    assert family.config(1, 3, 1) != family.config(0, 3, 1)


def test_every_choice_turns_up_about_as_often_as_it_should(family):
    configs = [family.config(0, i) for i in range(600)]
    drawn = {
        "lr": family.lrs,
        "batch_size": family.batch_sizes,
        "size": family.sizes,
        "dataset": family.dataset_names,
        "weight_scale_spread": family.weight_scale_spreads,
    }
    for field, choices in drawn.items():
        share = Counter(choices)
        counts = Counter(getattr(config, field) for config in configs)
        for choice, weight in share.items():
            expected = 600 * weight / len(choices)
            assert abs(counts[choice] - expected) < 4.5 * expected**0.5, (field, choice)
    small = [config.num_data for config in configs if config.num_data is not None]
    assert abs(len(small) - 0.25 * 600) < 50
    assert min(small) >= 200
    assert max(small) <= 2000
    subsets = [config.classes for config in configs if config.classes is not None]
    assert abs(len(subsets) - 0.25 * 600) < 50
    assert {len(classes) for classes in subsets} >= {2, 3, 5, 9}
    assert {config.architecture for config in configs} == {"cnn", "mlp"}


def test_the_paper_family_is_the_papers_and_none_has_cifar10():
    paper = family_named("paper")
    expected = itertools.product((4, 8, 16), (1, 2, 3, 4, 5), (False, True))
    networks = [("cnn", {"channels": c, "depth": l, "residual": r}) for c, l, r in expected]
    assert sorted(paper.architectures, key=str) == sorted(networks, key=str)
    assert len(paper.dataset_names) * len(paper.architectures) == 120
    assert (paper.sizes, paper.batch_sizes) == ((None,), (128,))
    assert not any("cifar10" in family_named(name).dataset_names for name in FAMILIES)


def test_labels_bound_what_tasks_and_their_subsets_have():
    chosen = family_named("digits", labels=(2, 5, 7, 9))
    assert chosen.task(0, 0).config.classes == (2, 5, 7, 9)
    assert chosen.specification()["labels"] == [2, 5, 7, 9]
    part = family_named("digits", labels=(2, 5, 7, 9), label_subset_share=1.0)
    subsets = [part.config(0, i).classes for i in range(30)]
    assert all(set(subset) < {2, 5, 7, 9} and len(subset) >= 2 for subset in subsets)
    assert {len(subset) for subset in subsets} == {2, 3}


def test_data_sets_are_loaded_once_and_families_travel_without_them(monkeypatch):
    calls = []
    monkeypatch.setattr(task_family.datasets, "load", lambda *a, **k: calls.append(a) or random_images())
    family = family_named("digits", root="/nowhere")
    family.task(0, 0)
    task = family.task(0, 1)
    assert len(calls) == 1
    travelled = pickle.loads(pickle.dumps(family))
    assert not travelled._loaded
    assert travelled == family
    assert travelled.task(0, 1).config == task.config


def test_a_specification_is_plain_and_does_not_name_the_machine():
    specification = family_named("cpu", root="/somewhere", device="cpu").specification()
    assert json.loads(json.dumps(specification)) == specification
    assert "/somewhere" not in json.dumps(specification)
    assert specification == family_named("cpu").specification()
    assert specification != family_named("paper").specification()


# ---------------------------------------------------------------- tasks


def test_label_subsets_are_renumbered_and_keep_their_images():
    data = random_images(400, classes=5)
    task = ImageTask(TaskConfig("noise", "mlp", {"hidden": (4,)}, classes=(3, 0)), data, 0)
    assert task.num_classes == 2
    assert task.hyperparameters.num_data == len(task.train[1]) == int(((data.train_y == 3) | (data.train_y == 0)).sum())
    assert torch.equal(task.train[0][task.train[1] == 0], data.train_x[data.train_y == 3])
    assert torch.equal(task.held_out[0][task.held_out[1] == 1], data.val_x[data.val_y == 0])


def test_a_small_training_set_is_a_seeded_subset_and_num_data_says_so():
    data = random_images(400)
    tasks = [ImageTask(TaskConfig("noise", "mlp", {}, num_data=30), data, seed) for seed in (0, 0, 1)]
    assert [task.hyperparameters.num_data for task in tasks] == [30, 30, 30]
    assert torch.equal(tasks[0].train[0], tasks[1].train[0])
    assert not torch.equal(tasks[0].train[0], tasks[2].train[0])
    assert tasks[0].kind == "noise-mlp-small"
    all_images = ImageTask(TaskConfig("noise", "mlp", {}, num_data=10**6), data, 0)
    assert all_images.hyperparameters.num_data == data.num_data


def test_weight_scales_change_the_parametrisation_and_not_the_function():
    plain, scaled = image_task(depth := "cnn"), image_task(depth, weight_scale_spread=0.7, seed=3)
    x = torch.arange(20)[None]
    at, scaled_at = plain.initial(1)[None], scaled.initial(1)[None]
    factor = at / scaled_at
    assert factor.max() / factor.min() > 1.5
    torch.testing.assert_close(
        plain.log_probabilities(at, x)[0], scaled.log_probabilities(scaled_at, x)[0], rtol=1e-4, atol=1e-5
    )
    # the chain rule: dL/dθ = c · dL/d(c∘θ); a zero bias has no factor to read off
    ours, theirs = scaled.loss_and_gradient(scaled_at, x)[1], plain.loss_and_gradient(at, x)[1]
    torch.testing.assert_close(ours, theirs * factor, rtol=1e-3, atol=1e-6)


def test_the_test_split_is_used_only_where_it_is_asked_for():
    data = random_images(60)
    object.__setattr__(data, "test_x", data.test_x + 10)
    assert image_task().config.split == "val"
    for split, least in (("val", 0), ("test", 10)):
        task = ImageTask(TaskConfig("noise", "mlp", {}, split=split), data, 0)
        assert task.held_out[0].min() >= least


# --- what a checkpoint says of its data: the same on every processor ---


def digits(**changes):
    return family_named("digits", sizes=(6,), architectures=(("mlp", {"hidden": (4,)}),), **changes)


@pytest.fixture
def other_processor(monkeypatch):
    """Resized pixels that differ in their last bit, as those of another instruction set do."""
    scale_images = loading.scale_images

    def scaled(*arguments):
        x = scale_images(*arguments)
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
    run(tmp_path, 1, family=digits(), estimator=es(pairs=1))
    other_processor()
    assert run(tmp_path, 2, family=digits(), estimator=es(pairs=1)).iteration == 2
