"""Samples on disk: one writer, restarts after a kill, full disks, damage that is refused by name."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.posterior import on_disk
from learned_samplers.posterior.on_disk import FolderStore
from learned_samplers.posterior.store import Entry, Progress
from tests.learned_samplers.posterior.common import X, collect, copied, equal, files, frozen, network, sgd, sghmc, train

ROOT = str(Path(__file__).parents[3])
SAMPLES = "samples.safetensors"


def start(path, steps=0, seed=0, **options):
    """A chain whose sampler counts its steps."""
    return collect(network(seed=seed), steps, lambda model: sghmc(model, seed), path=path, **options)


@pytest.mark.parametrize("max_samples", [None, 3])
def test_streaming_equals_memory(tmp_path, max_samples):
    folder = tmp_path / "deep" / "samples"
    memory, disk = (collect(steps=9, max_samples=max_samples, path=path)[2] for path in (None, folder))
    equal(disk, memory)
    equal(PosteriorSamples.load(folder, network(seed=3)), memory)
    assert set(files(folder)) == {"index.jsonl", *(f"step-{step:010d}.safetensors" for step in memory.steps)}
    assert torch.equal(disk.predict(X, sample_chunk=2), memory.predict(X, sample_chunk=2))


def test_going_back_on_disk_ends_the_same(tmp_path):
    _, _, memory = collect(steps=20, max_samples=4)
    model, sampler, posterior = collect(steps=5, path=tmp_path, max_samples=4)
    state, weights = posterior.state_dict(), copied(model.state_dict())
    train(model, sampler, 10)  # thins the folder on the way
    model.load_state_dict(weights)
    posterior.load_state_dict(state)
    assert set(posterior.steps) <= {2, 4}, "only what thinning has left of the first five"
    train(model, sampler, 15)
    equal(posterior, memory)


def test_folders_that_do_not_fit_are_refused(tmp_path):
    folder = tmp_path / "samples"
    collect(steps=3, path=folder)[2].detach()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for options, reason in (
        ({"path": folder, "thinning": 2}, "thinning=2 differs from 1 in .*samples"),
        ({"path": folder, "model": network(9)}, r"'0\.weight' has shape \(9, 4\) here and \(8, 4\) in .*samples"),
        ({"path": tmp_path / "mine"}, r"path='.*mine' is not an empty folder"),
    ):
        with pytest.raises(ValueError, match=reason):
            collect(steps=0, **options)
    with pytest.raises(FileNotFoundError, match=r"no posterior samples in .*mine"):
        PosteriorSamples.load(tmp_path / "mine", network())
    index, first, second = folder / "index.jsonl", *(folder / f"step-000000000{k}.safetensors" for k in (1, 2))
    text = index.read_text()
    for broken in ("", "[]\n", "null\n", text[:40] + "\n", "[" * 100_000 + "\n", '["0", "{}"]\n' + text):
        index.write_text(broken)
        with pytest.raises(ValueError, match=r"index\.jsonl: broken index"):
            PosteriorSamples.load(folder, network())
    index.write_text(text)
    for content, reason in ((b"short", "truncated"), (first.read_bytes(), "is the file of another run"), (None, "")):
        second.write_bytes(content) if content else second.unlink()
        with pytest.raises(ValueError, match=rf"step-0000000002\.safetensors: {reason}"):
            PosteriorSamples.load(folder, network()).predict(X)
    index.unlink()
    with pytest.raises(ValueError, match=r"holds samples and no index\.jsonl"):
        collect(steps=0, path=folder)
    assert not (folder / ".lock").exists(), "a refused folder is left as it was"


def test_any_flipped_bit_is_refused_by_name(tmp_path):
    model, _, posterior = start(tmp_path / "samples", 2)
    posterior.save(tmp_path / "one.safetensors")
    posterior.detach()
    expected = [posterior.steps, *({name: t.tolist() for name, t in sample.items()} for sample in posterior)]
    generator = torch.Generator().manual_seed(0)
    refusals = []
    for path in (tmp_path / "one.safetensors", *sorted((tmp_path / "samples").glob("[is]*"))):
        content = path.read_bytes()
        positions = torch.randint(len(content), (40,), generator=generator).tolist()
        for position in positions:
            bit = 1 << int(torch.randint(8, (), generator=generator))
            path.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
            try:
                loaded = SampleCollection.load(path if path.parent == tmp_path else path.parent, model)
                loaded = [loaded.steps, *({name: t.tolist() for name, t in sample.items()} for sample in loaded)]
            except (ValueError, FileNotFoundError) as error:
                refusals.append((path, str(error)))
            else:  # in the padding of a header, say
                assert loaded == expected
        path.write_bytes(content)
    assert len(refusals) > 140, "of 160"
    assert all(str(path) in message and "\n" not in message for path, message in refusals)


def test_the_index_grows_by_a_line_a_sample(tmp_path, monkeypatch):
    store = FolderStore(tmp_path, {"shapes": {"w": [2]}}, torch.device("cpu"))
    written, real = [], on_disk.append
    monkeypatch.setattr(on_disk, "append", lambda path, size, data: (written.append(len(data)), real(path, size, data)))
    monkeypatch.setattr(on_disk, "write_atomically", lambda *args, **kwargs: pytest.fail("the index was rewritten"))
    for step in range(1, 31):
        sample = {"w": torch.full((2,), float(step))}
        entry = Entry(step, 0, step)
        store.commit([*store.entries, entry], {entry: sample}, Progress(step, 0, step))
    assert max(written) < min(written) + 20, "a write of the same size for every sample"
    read = FolderStore(tmp_path, None, torch.device("cpu"))
    assert (read.entries, read.progress) == (store.entries, store.progress)
    assert read.read(29)["w"].tolist() == [30, 30]


def test_a_torn_last_line_does_not_count(tmp_path):
    model, _, posterior = start(tmp_path, 3)
    posterior.detach()
    index = tmp_path / "index.jsonl"
    content = index.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for end in (last + 1, last + 20, len(content) - 1):
        index.write_bytes(content[:end])
        assert SampleCollection.load(tmp_path, model).steps == [1, 2]
    store = start(tmp_path)[2]._store
    store.commit([*store.entries, Entry(3, 0, 3)], {}, Progress(3, 0, 3))
    assert index.read_bytes()[:last] == content[:last], "the torn line is overwritten"
    assert SampleCollection.load(tmp_path, model).steps == [1, 2, 3]


def test_two_collectors_on_one_folder_do_not_mix(tmp_path):
    model, sampler, first = start(tmp_path)
    with pytest.raises(RuntimeError, match="is being written by"):
        start(tmp_path)
    train(model, sampler, 3)
    first.detach()
    before = files(tmp_path)
    assert start(tmp_path)[2].steps == [1, 2, 3]
    assert files(tmp_path) == before
    with pytest.raises(RuntimeError, match="nothing is written"):
        first.load_state_dict(first.state_dict())
    assert first.predict(X).shape == (20, 3), "reading needs no lock"


@pytest.mark.parametrize("make", [sgd, sghmc])
def test_a_script_that_is_run_again_does_not_mix_two_chains(tmp_path, make):
    """An optimizer of torch counts no steps, and its burn-in was taken to be over."""
    collect(steps=5, make=make, burn_in=3, path=tmp_path)[2].detach()
    before = files(tmp_path)
    model, sampler, second = collect(network(seed=1), 0, make, burn_in=3, path=tmp_path)
    place = r"\(SGD\) counts no steps" if make is sgd else "is at step 1"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"{place}.* holds a chain up to step 5: .*load the state.*restart\(\)"):
            train(model, sampler, 1)
        place = place.replace("1", "2")
    assert second.steps == [4, 5]
    assert files(tmp_path) == before


@pytest.mark.parametrize("make", [sgd, sghmc])
def test_it_goes_on_from_its_state_dict_and_begins_again_after_restart(tmp_path, make):
    _, _, expected = collect(steps=9, make=make, burn_in=3)
    model, sampler, first = collect(steps=5, make=make, burn_in=3, path=tmp_path)
    state = [part.state_dict() for part in (model, sampler, first)]
    first.detach()
    model, sampler, resumed = collect(network(seed=1), 0, make, burn_in=3, path=tmp_path)
    for part, saved in zip((model, sampler, resumed), state, strict=True):
        part.load_state_dict(saved)
    train(model, sampler, 4)
    equal(resumed, expected)
    resumed.detach()
    model, sampler, again = collect(steps=0, make=make, burn_in=3, path=tmp_path)
    again.restart()
    train(model, sampler, 4)
    assert again.steps == [4], "with a burn-in of its own"
    again.restart()
    again.detach()
    model, sampler, fresh = collect(network(seed=1), 2, make, burn_in=3, path=tmp_path)
    fresh.detach()  # a folder without a sample is no chain
    assert collect(steps=4, make=make, burn_in=3, path=tmp_path)[2].steps == [4]


WRITER = """
import sys
sys.path.insert(0, {root!r})
from tests.learned_samplers.posterior.test_on_disk import start, train
model, sampler, posterior = start({folder!r}, 2)
print("ready", flush=True)
while True:
    train(model, sampler, 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_chain_is_begun_again_or_says_what_to_delete(tmp_path):
    folder = tmp_path / "samples"
    script = WRITER.format(root=ROOT, folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(RuntimeError, match="is being written by"):
            start(folder)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert SampleCollection.load(folder, network()).steps[:2] == [1, 2]
    model, sampler, posterior = start(folder)
    assert not [name for name in files(folder) if name.endswith(".tmp")]
    count = len(posterior)
    with pytest.raises(RuntimeError, match=r"holds a chain up to step .*restart\(\).*delete"):
        train(model, sampler, 1)
    assert len(posterior) == count, "nothing was lost by asking"
    posterior.detach()
    model, sampler, posterior = start(folder)
    posterior.restart()
    train(model, sampler, 3)
    equal(posterior, start(None, 3)[2])
    assert len([name for name in files(folder) if name.startswith("step-")]) == 3


@pytest.mark.parametrize("on_disk", [False, True])
def test_restart_leaves_nothing_behind(tmp_path, on_disk):
    model, sampler, posterior = start(tmp_path if on_disk else None)
    fresh = files(tmp_path)
    train(model, sampler, 3)
    if on_disk:
        (tmp_path / "step-0000000009.safetensors").write_bytes(b"not in the index")  # as a kill leaves it
    posterior.restart()
    assert len(posterior) == 0
    assert files(tmp_path) == fresh


def test_what_a_killed_process_left_of_its_writes_is_removed(tmp_path):
    folder = tmp_path / "samples"
    folder.mkdir()
    for leftover in (".index.jsonl.elsewhere.4711.tmp", ".step-0000000001.safetensors.h.1.tmp"):
        (folder / leftover).write_text("half")
    _, _, posterior = start(folder)
    assert set(files(folder)) == {"index.jsonl"}
    train(posterior.model, posterior._sampler, 2)
    assert posterior.steps == [1, 2]
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    (tmp_path / f".{SAMPLES}.{socket.gethostname()}.{process.pid}.tmp").write_text("half")
    posterior.save(tmp_path / SAMPLES)
    assert {file.name for file in tmp_path.iterdir()} == {SAMPLES, "samples"}


def full_disk(monkeypatch, when):
    """From now on fsync fails, where ``when`` says so of a descriptor."""
    real = os.fsync

    def fsync(descriptor):
        if when(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("failing", ["sample", "index"])
@pytest.mark.parametrize("max_samples", [None, 3])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, failing, max_samples):
    # With max_samples=3 the fourth sample is kept and two others go; all of that must be undone.
    model, sampler, posterior = collect(steps=3, path=tmp_path, max_samples=max_samples)
    before, entries, prediction = files(tmp_path), posterior.state_dict()["entries"], posterior.predict(X)
    calls = []
    # The sample's file is synced first, then its folder, then the index.
    full_disk(monkeypatch, lambda descriptor: calls.append(1) or len(calls) > (0 if failing == "sample" else 2))
    name = "index.jsonl" if failing == "index" else "step-0000000004.safetensors"
    with pytest.raises(OSError, match=rf"No space left on device .*{name}") as caught:
        train(model, sampler, 1)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert files(tmp_path) == before
    assert posterior.state_dict()["entries"] == entries
    assert torch.equal(posterior.predict(X), prediction)
    train(model, sampler, 3)
    assert posterior.steps == ([2, 5, 7] if max_samples else [1, 2, 3, 5, 6, 7])
    equal(PosteriorSamples.load(tmp_path, model), posterior)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks the system for a descriptor's path")
def test_a_first_sample_that_fails_leaves_no_trace(tmp_path, monkeypatch):
    model, sampler, posterior = collect(frozen(), 0, path=tmp_path)
    full_disk(monkeypatch, lambda descriptor: "step" in os.readlink(f"/proc/self/fd/{descriptor}"))
    with pytest.raises(OSError, match="No space left on device"):
        train(model, sampler, 1)
    monkeypatch.undo()
    with torch.no_grad():
        model[0].weight.add_(1)  # no sample is held yet that this could contradict
    train(model, sampler, 2)
    loaded = PosteriorSamples.load(tmp_path, frozen(1))
    equal(loaded, posterior)
    assert torch.equal(loaded.predict(X), posterior.predict(X))


def test_save_on_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    _, _, posterior = collect()
    path = tmp_path / SAMPLES
    path.write_text("old")
    full_disk(monkeypatch, lambda descriptor: True)
    with pytest.raises(OSError, match=r"No space left on device.*samples\.safetensors"):
        posterior.save(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["fixed"].update(more=torch.zeros(2)), "'more', which is no tensor of the network"),
        (
            lambda state: state["entries"].append({"step": 1000, "cycle": 0, "number": 500}),
            "the sample of step 1000 is missing",
        ),
    ],
)
def test_a_refused_state_changes_nothing_in_memory_or_on_disk(tmp_path, change, message):
    _, _, posterior = collect(steps=4, path=tmp_path)
    before, state = files(tmp_path), posterior.state_dict()
    state["fixed"], state["entries"] = dict(state["fixed"]), list(state["entries"])
    change(state)
    predictions = posterior.predict(X)
    with pytest.raises(ValueError, match=message):
        posterior.load_state_dict(state)
    assert files(tmp_path) == before
    assert torch.equal(posterior.predict(X), predictions)
