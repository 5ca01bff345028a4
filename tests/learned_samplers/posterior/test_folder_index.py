"""The index of a folder: it knows its files, and agrees with them whatever interrupts a write."""

import contextlib
import os
import stat

import pytest
import torch

from learned_samplers import SampleCollection
from tests.learned_samplers.posterior.common import X, collect, equal, frozen, network, train


def test_files_of_another_run_are_refused(tmp_path):
    for name, seed in (("one", 0), ("two", 1)):
        collect(frozen(seed), 3, path=tmp_path / name)[2].detach()
    model, one = frozen(), tmp_path / "one"
    expected = SampleCollection.load(one, model).predict(X)
    for file in ("fixed.safetensors", "step-0000000002.safetensors"):
        before = (one / file).read_bytes()
        (one / file).write_bytes((tmp_path / "two" / file).read_bytes())
        with pytest.raises(ValueError, match=rf"{file}: is the file of another run"):
            SampleCollection.load(one, model).predict(X)
        (one / file).write_bytes(before)
    assert torch.equal(SampleCollection.load(one, model).predict(X), expected)


def test_an_index_that_was_cut_is_told(tmp_path):
    collect(steps=6, path=tmp_path)[2].detach()
    index = tmp_path / "index.jsonl"
    content = index.read_bytes()
    index.write_bytes(content[: len(content) // 2])
    with pytest.warns(UserWarning, match=r"holds . files of samples .* beside the . that index\.jsonl names"):
        loaded = SampleCollection.load(tmp_path, network())
    assert len(loaded) < 6


class Interrupted(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("max_samples", [None, 3])
def test_a_signal_while_the_folder_is_synced_loses_no_sample(tmp_path, monkeypatch, max_samples):
    model, sampler, posterior = collect(steps=3, path=tmp_path, max_samples=max_samples)

    def interrupt(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) or max_samples is None:
            calls.append(descriptor)
            if len(calls) == (2 if max_samples else 3):
                raise Interrupted

    for _ in range(3):
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupt)
            with contextlib.suppress(Interrupted):
                train(model, sampler, 1)
        loaded = SampleCollection.load(tmp_path, network())
        equal(loaded, posterior)
        assert loaded.predict(X).shape == (20, 3)
    train(model, sampler, 2)
    equal(SampleCollection.load(tmp_path, network()), posterior)


def test_devices_and_pipes_are_refused(tmp_path):
    _, _, posterior = collect(steps=2)
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with pytest.raises(ValueError, match=r"is a device, a pipe or a socket"):
            posterior.save(path)
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / ".lock")
    with pytest.raises(ValueError, match=r"\.lock is a device, a pipe or a socket"):
        collect(steps=0, path=tmp_path / "run")
