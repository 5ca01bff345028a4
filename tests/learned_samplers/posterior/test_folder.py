"""Folders of samples: one writer, restarts after a kill, damage that is refused by name, an index that grows."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection
from learned_samplers.posterior.on_disk import FolderStore
from learned_samplers.posterior.store import Entry, Progress


def build(path=None, seed=0, **options):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    sampler = SGHMC(model.parameters(), lr=0.01, num_data=8, generator=torch.Generator().manual_seed(seed))
    return model, sampler, PosteriorSamples(model, sampler, path=path, **options)


def train(model, sampler, steps):
    x = torch.linspace(-1, 1, 16).view(8, 2)
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8) % 2).backward()
        sampler.step()


def files(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.name != ".lock"}


# -- one writer -------------------------------------------------------------------------------------------------------


def test_two_collectors_on_one_folder_do_not_mix(tmp_path):
    model, sampler, first = build(tmp_path)
    with pytest.raises(RuntimeError, match="is being written by another object of this process"):
        build(tmp_path)
    train(model, sampler, 3)
    first.detach()
    before = files(tmp_path)
    model, sampler, second = build(tmp_path)
    assert second.steps == [1, 2, 3]
    assert files(tmp_path) == before
    with pytest.raises(RuntimeError, match=r"the lock .* was released: nothing is written"):
        first.load_state_dict(first.state_dict())
    assert first.predict(torch.zeros(1, 2)).shape == (1, 2), "reading needs no lock"


WRITER = """
import sys
sys.path[:0] = {paths!r}
import torch
from test_folder import build, train
model, sampler, posterior = build({folder!r})
train(model, sampler, 2)
print("ready", flush=True)
while True:
    train(model, sampler, 1)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_chain_is_begun_again_or_says_what_to_delete(tmp_path):
    here = Path(__file__).parent
    folder = tmp_path / "samples"
    script = WRITER.format(paths=[str(here.parents[2]), str(here)], folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(RuntimeError, match=f"is being written by process {process.pid} on host"):
            build(folder)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert SampleCollection.load(folder, build()[0]).steps[:2] == [1, 2]
    model, sampler, posterior = build(folder)
    assert not [name for name in files(folder) if name.endswith(".tmp")]
    count = len(posterior)
    with pytest.raises(
        RuntimeError, match=r"sampler is at step 1, but .* holds a chain up to step .*restart\(\).*delete"
    ):
        train(model, sampler, 1)
    assert len(posterior) == count, "nothing was lost by asking"
    posterior.detach()
    model, sampler, posterior = build(folder)
    posterior.restart()
    train(model, sampler, 3)
    reference, reference_sampler, whole = build()
    train(reference, reference_sampler, 3)
    assert posterior.steps == [1, 2, 3]
    assert all(torch.equal(a[name], b[name]) for a, b in zip(posterior, whole) for name in a)
    assert len([name for name in files(folder) if name.startswith("step-")]) == 3


@pytest.mark.parametrize("on_disk", [False, True])
def test_restart_leaves_nothing_behind(tmp_path, on_disk):
    folder = tmp_path / "samples" if on_disk else None
    _, _, posterior = build(folder)
    fresh = files(folder) if on_disk else None
    train(posterior.model, posterior._sampler, 3)
    if on_disk:  # what a kill between the two writes leaves
        (folder / "step-0000000009.safetensors").write_bytes(b"not in the index")
    posterior.restart()
    assert len(posterior) == 0
    assert (files(folder) if on_disk else None) == fresh
    posterior.detach()
    model, sampler, again = build(folder)
    train(model, sampler, 2)
    assert again.steps == [1, 2]


def test_a_kill_in_the_first_write_of_the_index(tmp_path):
    for leftover in (
        ".index.jsonl.elsewhere.4711.tmp",
        ".lock.ab12.elsewhere.4711.tmp",
        ".step-0000000001.safetensors.h.1.tmp",
    ):
        (tmp_path / leftover).write_text("half")
    model, sampler, posterior = build(tmp_path)
    assert set(files(tmp_path)) == {"index.jsonl"}
    train(model, sampler, 2)
    assert posterior.steps == [1, 2]


def test_samples_without_an_index_are_not_overwritten(tmp_path):
    model, sampler, posterior = build(tmp_path)
    train(model, sampler, 2)
    posterior.detach()
    (tmp_path / "index.jsonl").unlink()
    with pytest.raises(ValueError, match=r"holds samples and no index\.jsonl .*restore it, or delete the folder"):
        build(tmp_path)
    assert not (tmp_path / ".lock").exists(), "a refused folder is left as it was"


def test_a_torn_last_line_does_not_count(tmp_path):
    model, sampler, posterior = build(tmp_path)
    train(model, sampler, 3)
    posterior.detach()
    index = tmp_path / "index.jsonl"
    whole = index.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in (last + 1, last + 20, len(whole) - 1):
        index.write_bytes(whole[:end])
        assert SampleCollection.load(tmp_path, model).steps == [1, 2]
    _, _, posterior = build(tmp_path)
    store = posterior._store
    store.commit([*store.entries, Entry(3, 0, 3)], {}, Progress(3, 0, 3))
    assert index.read_bytes() == whole, "the torn line is overwritten"


def test_save_removes_what_a_killed_save_left(tmp_path):
    model, sampler, posterior = build()
    train(model, sampler, 1)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    left = tmp_path / f".samples.safetensors.{socket.gethostname()}.{process.pid}.tmp"
    left.write_text("half")
    posterior.save(tmp_path / "samples.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["samples.safetensors"]


# -- damage -----------------------------------------------------------------------------------------------------------


def test_any_flipped_bit_is_refused_by_name(tmp_path):
    model, sampler, posterior = build(tmp_path / "samples")
    train(model, sampler, 2)
    posterior.save(tmp_path / "one.safetensors")
    posterior.detach()
    expected = [posterior.steps, *({name: t.tolist() for name, t in sample.items()} for sample in posterior)]
    generator = torch.Generator().manual_seed(0)
    refusals = []
    for path in (tmp_path / "one.safetensors", *sorted((tmp_path / "samples").glob("[is]*"))):
        whole = path.read_bytes()
        positions = torch.randint(len(whole), (40,), generator=generator).tolist()
        for position in positions:
            bit = 1 << int(torch.randint(8, (), generator=generator))
            path.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
            try:
                found = SampleCollection.load(path if path.parent == tmp_path else path.parent, model)
                found = [found.steps, *({name: t.tolist() for name, t in sample.items()} for sample in found)]
            except (ValueError, FileNotFoundError) as error:
                refusals.append((path, str(error)))
            else:  # in the padding of a header, say
                assert found == expected
        path.write_bytes(whole)
    assert len(refusals) > 140, "of 160"
    assert all(str(path) in message and "\n" not in message for path, message in refusals)


def rewritten(path, change):
    """The file with other metadata or tensors, its checksums left out, as a file of before there were any."""
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    content = json.loads(header["content"])
    del content["checksums"], header["checksum"]
    change(content, tensors)
    save_file(tensors, path, {**header, "content": json.dumps(content)})


def poke(name, value):
    def change(content, tensors):
        tensors[name].view(-1)[0] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c, t: None, None),
        (poke("samples/0.weight", float("nan")), "'samples/0.weight' holds numbers that are not finite"),
        (poke("samples/2.bias", float("inf")), "'samples/2.bias' holds numbers that are not finite"),
        (lambda c, t: c.update(steps=[1, 1]), "step 1 occurs twice"),
        (lambda c, t: c.update(steps=[1, 2**70]), f"step={2**70} is not a count"),
        (lambda c, t: c.update(steps=[1, -2]), "step=-2 is not a count"),
        (lambda c, t: c.update(steps=[1, 2.5]), "step=2.5 is not a count"),
        (lambda c, t: c.update(cycles=[0, "x"]), "cycle='x' is not a count"),
        (lambda c, t: c.update(chains=[0, 2**60]), f"chain={2**60} is not a count"),
        (lambda c, t: c.update(steps=[1]), "not a file of posterior samples"),
        (lambda c, t: c.update(steps=None), "not a file of posterior samples"),
        (lambda c, t: c.update(settings=[]), "not a file of posterior samples"),
        (lambda c, t: c["settings"]["shapes"].update({"0.bias": [2**40]}), "'0.bias' has shape"),
        (lambda c, t: t.update(loose=torch.zeros(2)), "not a file of posterior samples"),
    ],
)
def test_samples_that_make_no_sense(tmp_path, change, reason):
    model, sampler, posterior = build()
    train(model, sampler, 2)
    path = tmp_path / "samples.safetensors"
    posterior.save(path)
    rewritten(path, change)
    if reason is None:
        assert SampleCollection.load(path, model).steps == [1, 2], "the rewriting itself does no harm"
        return
    with pytest.raises(ValueError, match=reason) as caught:
        SampleCollection.load(path, model)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_metadata_that_are_null(tmp_path):
    model, sampler, posterior = build()
    train(model, sampler, 1)
    path = tmp_path / "samples.safetensors"
    posterior.save(path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    for metadata in (None, {}, {"format": None}, {**header["__metadata__"], "content": "null"}):
        text = json.dumps({**header, "__metadata__": metadata}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        with pytest.raises(ValueError, match=r"samples\.safetensors: [^\n]*$"):
            SampleCollection.load(path, model)


def test_a_sample_under_anothers_name(tmp_path):
    model, sampler, posterior = build(tmp_path)
    train(model, sampler, 2)
    first, second = (tmp_path / f"step-000000000{k}.safetensors" for k in (1, 2))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match=r"step-0000000002\.safetensors: is of step 1, not of step 2"):
        posterior.predict(torch.zeros(1, 2))


# -- the index --------------------------------------------------------------------------------------------------------


def test_the_index_grows_by_a_line_a_sample(tmp_path, monkeypatch):
    store = FolderStore(tmp_path, {"shapes": {"w": [2]}}, torch.device("cpu"))
    written = []
    import learned_samplers.posterior.on_disk as folder

    real = folder.append
    monkeypatch.setattr(folder, "append", lambda path, size, data: (written.append(len(data)), real(path, size, data)))
    monkeypatch.setattr(folder, "write_atomically", lambda *args, **kwargs: pytest.fail("the index was rewritten"))
    for step in range(1, 31):
        sample = {"w": torch.full((2,), float(step))}
        store.commit([*store.entries, Entry(step, 0, step)], {step: sample}, Progress(step, 0, step))
    assert max(written) < min(written) + 20, "a write of the same size for every sample"
    read = FolderStore(tmp_path, None, torch.device("cpu"))
    assert read.entries == store.entries
    assert read.progress == store.progress
    assert read.read(29)["w"].tolist() == [30, 30]


def test_a_folder_with_the_first_kind_of_index_is_read_and_continued(tmp_path):
    model, sampler, posterior = build(tmp_path)
    train(model, sampler, 2)
    posterior.detach()
    store = posterior._store
    old = {
        "format": "learned-samplers posterior samples",
        "version": 1,
        "settings": store.settings,
        "progress": asdict(store.progress),
        "entries": [{"step": e.step, "cycle": e.cycle, "number": e.number} for e in store.entries],
    }
    (tmp_path / "index.json").write_text(json.dumps(old))
    (tmp_path / "index.jsonl").unlink()
    assert SampleCollection.load(tmp_path, model).steps == [1, 2]
    assert not (tmp_path / "index.jsonl").exists(), "reading changes nothing"
    again = PosteriorSamples(model, sampler, path=tmp_path)
    train(model, sampler, 1)
    assert again.steps == [1, 2, 3]
    assert not (tmp_path / "index.json").exists()
    assert SampleCollection.load(tmp_path, model).steps == [1, 2, 3]
    (tmp_path / "index.jsonl").unlink()
    (tmp_path / "index.json").write_text(json.dumps({**old, "progress": {"steps": 1}}))
    with pytest.raises(ValueError, match=r"index\.json: broken index"):
        SampleCollection.load(tmp_path, model)
