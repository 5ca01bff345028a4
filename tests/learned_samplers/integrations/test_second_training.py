"""A callback that holds samples and is given to another training run: they are not thrown away without a word."""

import importlib
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, SampleCollection
from learned_samplers.integrations.resumption import begin

X, Y = torch.linspace(-1, 1, 128).view(32, 4), torch.arange(32) % 3
LOST = r"training begins anew, but this callback holds 5 posterior samples .*collect\.posterior = None"


class Base:
    """In the place of a callback of a package that is not installed."""


def imported(name, package, **contents):
    """The callback of one integration, over the package itself or what of it is needed."""
    try:
        importlib.import_module(package)
        return importlib.import_module(f"learned_samplers.integrations.{name}").CollectPosterior
    except ModuleNotFoundError:
        pass
    parts = [package.rpartition(".")[0], package]
    for part in filter(None, parts):
        sys.modules[part] = types.ModuleType(part)
    vars(sys.modules[package]).update(contents)
    try:
        return importlib.import_module(f"learned_samplers.integrations.{name}").CollectPosterior
    finally:  # nothing else may find them
        for part in filter(None, (*parts, f"learned_samplers.integrations.{name}")):
            sys.modules.pop(part, None)


class HuggingFace:
    """Calls the callback as ``Trainer.train()`` does, which begins at step 0 again, with the sampler it was given."""

    def __init__(self, **options):
        self.collect = imported("huggingface", "transformers", TrainerCallback=Base)(**options)
        self.begin()

    def begin(self):
        self.model, self.sampler = network()

    def train(self):
        arguments = SimpleNamespace(max_grad_norm=0.0, output_dir="nowhere", resume_from_checkpoint=None)
        state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.collect.on_train_begin(arguments, state, None, model=self.model, optimizer=self.sampler)
        steps(self.model, self.sampler)
        self.collect.on_train_end(arguments, state, None)


class Lightning:
    """Calls the callback as ``fit`` of a new ``Trainer`` does, with a new sampler."""

    def __init__(self, **options):
        self.collect = imported("lightning", "lightning.pytorch", Callback=Base)(**options)

    def begin(self):
        pass

    def train(self):
        model, sampler = network()
        trainer = SimpleNamespace(optimizers=[sampler], gradient_clip_val=None, global_step=0)
        self.collect.on_train_start(trainer, model)
        steps(model, sampler)
        self.collect.teardown(trainer, model, "fit")


def network():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, SGHMC(model.parameters(), lr=0.05, num_data=32)


def steps(model, sampler):
    for _ in range(10):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


@pytest.mark.parametrize("loop", [HuggingFace, Lightning])
def test_a_second_run_is_refused_and_loses_nothing(loop):
    run = loop(thinning=2)
    run.train()
    first = run.collect.posterior
    with pytest.raises(RuntimeError, match=LOST):
        run.train()
    assert run.collect.posterior is first
    assert first.steps == [2, 4, 6, 8, 10]
    run.collect.posterior = None  # as the message says
    run.begin()
    run.train()
    assert run.collect.posterior.steps == first.steps


@pytest.mark.parametrize("loop", [HuggingFace, Lightning])
def test_missing_warn_begins_afresh(loop):
    run = loop(thinning=2, missing="warn")
    run.train()
    run.begin()
    with pytest.warns(UserWarning, match=LOST + "; starting an empty collection"):
        run.train()
    assert run.collect.posterior.steps == [2, 4, 6, 8, 10]


def test_without_samples_nothing_is_lost():
    run = HuggingFace(burn_in=10, thinning=2)
    run.train()
    run.train()
    assert run.collect.posterior.steps == [12, 14, 16, 18, 20], "by the count of the one sampler"


def test_samples_in_a_folder_go_on_with_the_same_sampler(tmp_path):
    run = HuggingFace(thinning=2, path=tmp_path / "samples")
    run.train()
    run.train()
    assert run.collect.posterior.steps == list(range(2, 21, 2))


def test_samples_in_a_folder_are_not_joined_by_a_new_samplers(tmp_path):
    run = Lightning(thinning=2, path=tmp_path / "samples")
    run.train()
    with pytest.raises(RuntimeError, match=r"holds a chain up to step 10"):
        run.train()


def test_an_empty_collection_is_not_begun_in_a_folder_with_samples(tmp_path):
    path = tmp_path / "samples"
    run = HuggingFace(thinning=2, path=path)
    run.train()
    run.collect.posterior.detach()
    model, sampler = network()
    with (
        pytest.warns(UserWarning, match="starting an empty collection"),
        pytest.raises(RuntimeError, match=r"path='.*samples' holds 5 of them: choose another path"),
    ):
        begin(model, sampler, {"path": path, "thinning": 2}, None, 10, "warn")
    assert len(SampleCollection.load(path, model)) == 5
