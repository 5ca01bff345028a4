"""A collection in one file: what is given back, and files that are refused by name and reason."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.posterior.tensor_files import write_tensors
from tests.learned_samplers.posterior.common import X, collect, equal, network

SAMPLES = "samples.safetensors"


class Spectral(nn.Module):
    """A linear layer between frequencies, with a buffer of a complex type, for one of which safetensors has no name."""

    def __init__(self, dtype=torch.complex128):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("frequencies", torch.randn(4, dtype=torch.complex64).to(dtype))

    def forward(self, x):
        return self.layer((x * self.frequencies).real.float())


def partly_frozen():
    model = network(norm=True)
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (network, {"burn_in": 1, "thinning": 2}),
        (network, {"dtype": torch.bfloat16}),
        (partly_frozen, {"buffers": "snapshot"}),
        (lambda: network(norm=True), {"buffers": "reestimate"}),
        *[
            (lambda dtype=dtype: Spectral(dtype), {"buffers": buffers})
            for dtype in (torch.complex64, torch.complex128)
            for buffers in ("refuse", "snapshot")
        ],
    ],
)
def test_a_file_and_a_folder_give_back_what_was_collected(tmp_path, build, options):
    posterior = collect(build(), path=tmp_path / "run", **options)[2]
    if options.get("buffers") == "reestimate":
        posterior.reestimate_buffers(X)
    posterior.save(tmp_path / SAMPLES)
    expected, held = posterior.predict(X), {**posterior._store.read(0), **posterior._fixed()}
    for path in (tmp_path / SAMPLES, tmp_path / "run"):
        loaded = PosteriorSamples.load(path, build())
        equal(loaded, posterior)
        tensors = {**loaded._store.read(0), **loaded._fixed()}
        assert {name: t.dtype for name, t in tensors.items()} == {name: t.dtype for name, t in held.items()}
        if path.is_file():
            assert torch.equal(loaded.predict(X), expected)
            loaded.save(tmp_path / "again.safetensors")
            assert torch.equal(SampleCollection.load(tmp_path / "again.safetensors", build()).predict(X), expected)
    assert {file.name for file in tmp_path.iterdir()} == {SAMPLES, "again.safetensors", "run"}


def test_a_dtype_that_no_file_holds_is_refused_by_name(tmp_path):
    model = network()
    model.register_buffer("codes", torch.zeros(4, dtype=torch.uint8).view(torch.bits8))
    with pytest.raises(ValueError, match=r"'codes' is of torch\.bits8"):
        collect(model)
    samples = SampleCollection.from_samples(model, [dict(model.named_parameters())])
    with pytest.raises(ValueError, match=r"'fixed/codes' is of torch\.bits8"):
        samples.save(tmp_path / SAMPLES)
    assert not list(tmp_path.iterdir())


def test_parameters_that_share_memory_are_saved(tmp_path):
    """Two frozen ones, parts of one tensor that overlap, and the conjugate view of a third."""
    base, third = torch.randn(16, 4), torch.randn(3, dtype=torch.complex64)
    model = network()
    model[0].frozen = part = nn.Module()
    parts = {"first": base[:12], "second": base[4:], "third": third.conj()}
    for name, values in parts.items():
        setattr(part, name, nn.Parameter(values, requires_grad=False))
    _, _, posterior = collect(model, store_frozen=False)
    posterior.save(tmp_path / SAMPLES, store_frozen=True)
    loaded = SampleCollection.load(tmp_path / SAMPLES, model)
    assert all(torch.equal(loaded._fixed()[f"0.frozen.{name}"], values) for name, values in parts.items())


def test_wrong_files_are_refused_by_name_and_reason(tmp_path):
    _, _, posterior = collect()
    path = tmp_path / SAMPLES
    with pytest.raises(FileNotFoundError, match=r"no such file: .*samples\.safetensors"):
        PosteriorSamples.load(path, network())
    posterior.save(path)
    file_bytes = path.read_bytes()
    larger, buffered = network(), network()
    larger.append(nn.Linear(3, 3))
    buffered.register_buffer("scale", torch.ones(()))
    for model, reason in (
        (network(9), r"'0\.weight' has shape \(8, 4\) there and .*\(9, 4\)"),
        (larger, r"'3\.weight' does not exist there and has shape \(3, 3\)"),
        (network()[:2], r"'2\.weight' has shape \(3, 8\) there and does not exist"),
        (buffered, r"'scale' does not exist there and has shape \(\)"),
    ):
        with pytest.raises(ValueError, match=rf"samples\.safetensors: {reason}"):
            PosteriorSamples.load(path, model)
    length = int.from_bytes(file_bytes[:8], "little")
    header = json.loads(file_bytes[8 : 8 + length])

    def with_metadata(metadata):
        text = json.dumps({**header, "__metadata__": metadata}).encode()
        return len(text).to_bytes(8, "little") + text + file_bytes[8 + length :]

    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    for content, reason in (
        *((file_bytes[:size], "truncated or not a safetensors file") for size in (0, 4, 100, len(file_bytes) - 1)),
        ((tmp_path / "other").read_bytes(), "not a file of learned-samplers posterior samples"),
        (file_bytes.replace(b'"version":"1"', b'"version":"9"'), "version '9' cannot be read"),
        (file_bytes.replace(b"samples/0.bias", b"samples/0.bios"), "its metadata have changed"),
        *((with_metadata(m), r"[^\n]*$") for m in (None, {}, {**header["__metadata__"], "content": "null"})),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"samples\.safetensors: {reason}"):
            PosteriorSamples.load(path, network())


def rewritten(path, change):
    """The file with other metadata or tensors, as if it had been written so."""
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    content = json.loads(header["content"])
    change(content, tensors)
    write_tensors(path, tensors, content)


def poke(name, value):
    return lambda content, tensors: tensors[name].view(-1)[0].fill_(value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c, t: None, None),
        (poke("samples/0.weight", float("nan")), "'0.weight' .*not finite"),
        (poke("samples/2.bias", float("inf")), "'2.bias' .*not finite"),
        (lambda c, t: c.update(steps=[1, 1]), "step 1 occurs twice"),
        (lambda c, t: c.update(steps=[1, 2**70]), f"step={2**70}"),
        (lambda c, t: c.update(steps=[1, -2]), "step=-2"),
        (lambda c, t: c.update(steps=[1, 2.5]), "step=2.5"),
        (lambda c, t: c.update(cycles=[0, "x"]), "cycle='x'"),
        (lambda c, t: c.update(chains=[0, 2**60]), f"chain={2**60}"),
        (lambda c, t: c.update(steps=[1]), "not a file"),
        (lambda c, t: c.update(steps=None), "not a file"),
        (lambda c, t: c.update(settings=[]), "not a file"),
        (lambda c, t: c["settings"]["shapes"].update({"0.bias": [2**40]}), "'0.bias' has shape"),
        (lambda c, t: t.update(loose=torch.zeros(2)), "not a file"),
    ],
)
def test_samples_that_make_no_sense(tmp_path, change, reason):
    _, _, posterior = collect(steps=2)
    path = tmp_path / SAMPLES
    posterior.save(path)
    rewritten(path, change)
    if reason is None:
        assert SampleCollection.load(path, network()).steps == [1, 2], "the rewriting itself does no harm"
        return
    with pytest.raises(ValueError, match=rf"samples\.safetensors: {reason}[^\n]*$"):
        SampleCollection.load(path, network())
