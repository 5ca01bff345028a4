"""Samples on disk: saving, loading, streaming, full disks, wrong files."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from learned_samplers.posterior import PosteriorSamples, SampleCollection


def model_of(hidden=8, norm=False, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, hidden), *([nn.BatchNorm1d(hidden)] if norm else []), nn.Tanh(), nn.Linear(hidden, 3)]
    return nn.Sequential(*layers)


def run(steps=6, path=None, model=None, **options):
    model = model or model_of()
    sampler = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.3)
    posterior = PosteriorSamples(model, sampler, path=path, **options)
    train(model, sampler, steps)
    return model, sampler, posterior


def train(model, sampler, steps):
    x = torch.linspace(-1, 1, 80).view(20, 4)
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(20) % 3).backward()
        sampler.step()


def equal(first, second):
    assert len(first) == len(second)
    assert first.steps == second.steps
    assert first.cycles == second.cycles
    for a, b in zip(first, second):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


# -- one file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_save_and_load(tmp_path, dtype):
    model, _, posterior = run(dtype=dtype, burn_in=1, thinning=2)
    posterior.save(tmp_path / "samples.safetensors")
    loaded = PosteriorSamples.load(tmp_path / "samples.safetensors", model_of(seed=5))
    equal(loaded, posterior)
    x = torch.randn(7, 4)
    assert torch.equal(loaded.predict(x), posterior.predict(x))
    loaded.save(tmp_path / "again.safetensors")
    equal(SampleCollection.load(tmp_path / "again.safetensors", model), posterior)
    assert {file.name for file in tmp_path.iterdir()} == {"samples.safetensors", "again.safetensors"}


def test_frozen_parameters_and_buffers_travel_with_the_file(tmp_path):
    model = model_of(norm=True)
    model[0].requires_grad_(False)
    _, _, posterior = run(model=model, buffers="snapshot")
    posterior.save(tmp_path / "samples.safetensors")
    loaded = PosteriorSamples.load(tmp_path / "samples.safetensors", model_of(norm=True, seed=5))
    x = torch.randn(7, 4)
    assert torch.equal(loaded.predict(x), posterior.predict(x))


class Spectral(nn.Module):
    """A linear layer between frequencies, with a buffer of a complex type."""

    def __init__(self, dtype=torch.complex128):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("frequencies", torch.randn(4, dtype=torch.complex64).to(dtype))

    def forward(self, x):
        return self.layer((x * self.frequencies).real.float())


@pytest.mark.parametrize("buffers", ["refuse", "snapshot"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_buffers_travel_in_pairs_of_reals(tmp_path, dtype, buffers):
    """safetensors has no name for complex128."""
    torch.manual_seed(0)
    _, _, posterior = run(model=Spectral(dtype), path=tmp_path / "run", buffers=buffers)
    x = torch.randn(7, 4)
    expected = posterior.predict(x)
    posterior.save(tmp_path / "samples.safetensors")
    for name in ("run", "samples.safetensors"):
        loaded = SampleCollection.load(tmp_path / name, Spectral(dtype))
        assert torch.equal(loaded.predict(x), expected)
        held = loaded._store.read(0) if buffers == "snapshot" else loaded._fixed()
        assert held["frequencies"].dtype == dtype


def test_a_dtype_that_no_file_holds_is_refused_by_name(tmp_path):
    model = model_of()
    model.register_buffer("codes", torch.zeros(4, dtype=torch.uint8).view(torch.bits8))
    with pytest.raises(ValueError, match=r"its buffer 'codes' is of torch\.bits8.*no file of samples"):
        run(model=model)
    samples = SampleCollection.from_samples(model, [dict(model.named_parameters())])
    with pytest.raises(ValueError, match=r"'fixed/codes' is of torch\.bits8"):
        samples.save(tmp_path / "samples.safetensors")
    assert not list(tmp_path.iterdir())


def test_parameters_that_share_memory_are_saved(tmp_path):
    """Two frozen ones, parts of one tensor that overlap, and the conjugate view of a third."""
    base, third = torch.randn(16, 4), torch.randn(3, dtype=torch.complex64)

    def overlapping():
        model = model_of()
        frozen = nn.Module()
        frozen.first, frozen.second = (nn.Parameter(part, requires_grad=False) for part in (base[:12], base[4:]))
        frozen.third = nn.Parameter(third.conj(), requires_grad=False)
        model[0].frozen = frozen
        return model

    model, _, posterior = run(model=overlapping(), store_frozen=False)
    posterior.save(tmp_path / "samples.safetensors", store_frozen=True)
    loaded = SampleCollection.load(tmp_path / "samples.safetensors", model)
    for name, values in (("first", base[:12]), ("second", base[4:]), ("third", third.conj())):
        assert torch.equal(loaded._fixed()[f"0.frozen.{name}"], values)


def test_reestimated_buffers_travel_with_the_file(tmp_path):
    _, _, posterior = run(model=model_of(norm=True), buffers="reestimate")
    posterior.reestimate_buffers(torch.randn(50, 4))
    posterior.save(tmp_path / "samples.safetensors")
    loaded = PosteriorSamples.load(tmp_path / "samples.safetensors", model_of(norm=True, seed=5))
    x = torch.randn(7, 4)
    assert torch.equal(loaded.predict(x), posterior.predict(x))


def test_wrong_files_are_refused_by_name_and_reason(tmp_path):
    _, _, posterior = run()
    path = tmp_path / "samples.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no such file: .*samples\.safetensors"):
        PosteriorSamples.load(path, model_of())
    posterior.save(path)
    whole = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"samples\.safetensors: '0\.weight' has shape \(8, 4\) there and .*\(9, 4\) in"
    ):
        PosteriorSamples.load(path, model_of(hidden=9))
    for length in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"samples\.safetensors: truncated or not a safetensors file"):
            PosteriorSamples.load(path, model_of())
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"samples\.safetensors: not a file of learned-samplers posterior samples"):
        PosteriorSamples.load(path, model_of())
    path.write_bytes(whole.replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(ValueError, match="version '9' cannot be read, only 1"):
        PosteriorSamples.load(path, model_of())
    path.write_bytes(whole.replace(b"samples/0.bias", b"samples/0.bios"))
    with pytest.raises(ValueError, match=r"samples\.safetensors: its metadata have changed since they were written"):
        PosteriorSamples.load(path, model_of())


def test_a_network_with_more_than_was_stored_is_refused(tmp_path):
    _, _, posterior = run()
    posterior.save(tmp_path / "samples.safetensors")
    larger = model_of()
    larger.append(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"'3\.weight' does not exist there and has shape \(3, 3\) in Sequential"):
        PosteriorSamples.load(tmp_path / "samples.safetensors", larger)
    with pytest.raises(ValueError, match=r"'2\.weight' has shape \(3, 8\) there and does not exist in Sequential"):
        PosteriorSamples.load(tmp_path / "samples.safetensors", model_of()[:2])
    larger = model_of()
    larger.register_buffer("scale", torch.ones(()))
    with pytest.raises(ValueError, match=r"'scale' does not exist there and has shape \(\) in Sequential"):
        PosteriorSamples.load(tmp_path / "samples.safetensors", larger)


def test_nothing_to_predict_save_or_show():
    _, _, posterior = run(steps=2, burn_in=2)
    for use in (lambda: posterior.predict(torch.zeros(1, 4)), lambda: posterior.save("never-written")):
        with pytest.raises(RuntimeError, match="of 2 steps none is kept, for burn_in=2"):
            use()
    with pytest.raises(ValueError, match="chains must hold at least one sample each"):
        posterior.to_arviz()
    assert not Path("never-written").exists()


# -- a folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_samples", [None, 3])
def test_streaming_equals_memory(tmp_path, max_samples):
    folder = tmp_path / "deep" / "samples"
    _, _, memory = run(9, max_samples=max_samples)
    _, _, disk = run(9, path=folder, max_samples=max_samples)
    equal(disk, memory)
    equal(PosteriorSamples.load(folder, model_of(seed=3)), memory)
    names = {file.name for file in folder.iterdir()}
    assert names == {".lock", "index.jsonl", *(f"step-{step:010d}.safetensors" for step in memory.steps)}
    x = torch.randn(5, 4)
    assert torch.equal(disk.predict(x, sample_chunk=2), memory.predict(x, sample_chunk=2))


def test_reopening_continues(tmp_path):
    _, _, memory = run(9)
    model, sampler, posterior = run(5, path=tmp_path)
    posterior.detach()
    again = PosteriorSamples(model, sampler, path=tmp_path)
    equal(again, posterior)
    again.load_state_dict(posterior.state_dict())
    train(model, sampler, 4)
    equal(again, memory)


def test_going_back_on_disk_ends_the_same(tmp_path):
    _, _, memory = run(20, max_samples=4)
    model, sampler, posterior = run(5, path=tmp_path, max_samples=4)
    state, weights = posterior.state_dict(), {name: t.clone() for name, t in model.state_dict().items()}
    train(model, sampler, 10)  # thins the folder on the way
    model.load_state_dict(weights)
    posterior.load_state_dict(state)
    assert set(posterior.steps) <= {2, 4}, "only what thinning has left of the first five"
    train(model, sampler, 15)
    equal(posterior, memory)


def test_folders_that_do_not_fit_are_refused(tmp_path):
    run(3, path=tmp_path / "samples", thinning=1)[2].detach()
    with pytest.raises(ValueError, match=r"thinning=2 differs from 1 in .*samples"):
        run(0, path=tmp_path / "samples", thinning=2)
    with pytest.raises(ValueError, match=r"shapes\['0\.weight'\]=\[9, 4\] differs from \[8, 4\] in .*samples"):
        run(0, path=tmp_path / "samples", model=model_of(hidden=9))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"path='.*mine' is not an empty folder and holds no index\.jsonl"):
        run(0, path=tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match=r"no posterior samples in .*mine: index\.jsonl is missing"):
        PosteriorSamples.load(tmp_path / "mine", model_of())
    index = tmp_path / "samples" / "index.jsonl"
    whole = index.read_text()
    for broken in ("", "[]\n", "null\n", whole[:40] + "\n", "[" * 100_000 + "\n", '["0", "{}"]\n' + whole):
        index.write_text(broken)
        with pytest.raises(ValueError, match=r"index\.jsonl: broken index"):
            PosteriorSamples.load(tmp_path / "samples", model_of())
    index.write_text(whole)
    (tmp_path / "samples" / "step-0000000002.safetensors").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"step-0000000002\.safetensors: truncated"):
        PosteriorSamples.load(tmp_path / "samples", model_of()).predict(torch.zeros(1, 4))
    (tmp_path / "samples" / "step-0000000002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"step-0000000002\.safetensors: the sample of step 2 is missing"):
        PosteriorSamples.load(tmp_path / "samples", model_of())


# -- a full disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["sample", "index"])
@pytest.mark.parametrize("max_samples", [None, 3])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, failing, max_samples):
    folder = tmp_path / "samples"
    # With max_samples=3 the fourth sample is kept and two others go; all of that must be undone.
    model, sampler, posterior = run(3, path=folder, max_samples=max_samples)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    entries, x = posterior.state_dict()["entries"], torch.randn(3, 4)
    prediction = posterior.predict(x)
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        # The sample's file is synced first, then its folder, then the index.
        if len(calls) > (0 if failing == "sample" else 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    name = "index.jsonl" if failing == "index" else "step-0000000004.safetensors"
    with pytest.raises(OSError, match=rf"No space left on device \(.*nothing was changed\).*{name}") as caught:
        train(model, sampler, 1)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert posterior.state_dict()["entries"] == entries
    assert torch.equal(posterior.predict(x), prediction)
    train(model, sampler, 3)
    assert posterior.steps == ([2, 5, 7] if max_samples else [1, 2, 3, 5, 6, 7])
    equal(PosteriorSamples.load(folder, model), posterior)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks the system for a descriptor's path")
def test_a_first_sample_that_fails_leaves_no_trace(tmp_path, monkeypatch):
    model = model_of()
    model[0].requires_grad_(False)
    model, sampler, posterior = run(0, path=tmp_path, model=model)
    real = os.fsync

    def full(descriptor):
        if "step" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        train(model, sampler, 1)
    monkeypatch.undo()
    with torch.no_grad():
        model[0].weight.add_(1)  # no sample is held yet that this could contradict
    train(model, sampler, 2)
    loaded = PosteriorSamples.load(tmp_path, model_of())
    equal(loaded, posterior)
    x = torch.randn(3, 4)
    assert torch.equal(loaded.predict(x), posterior.predict(x))


LIMITED = """
import resource, sys
sys.path[:0] = [{root!r}, {here!r}]
from test_storage import run, train
model, sampler, posterior = run(3, path={folder!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
try:
    train(model, sampler, 1)
except OSError as error:
    print(type(error).__name__, error.errno, error.filename, posterior.steps)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are POSIX")
def test_a_write_that_the_system_really_cuts_short(tmp_path):
    here = Path(__file__).parent
    folder = tmp_path / "samples"
    script = LIMITED.format(root=str(here.parents[2]), here=str(here), folder=str(folder))
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    file = folder / "step-0000000004.safetensors"
    assert output.stdout.strip() == f"OSError {errno.EFBIG} {file} [1, 2, 3]"
    assert {f.name for f in folder.iterdir()} == {"index.jsonl", *(f"step-000000000{k}.safetensors" for k in (1, 2, 3))}


def test_save_on_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    _, _, posterior = run()
    path = tmp_path / "samples.safetensors"
    path.write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*samples\.safetensors"):
        posterior.save(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
