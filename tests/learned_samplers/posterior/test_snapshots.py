"""Content of a sample: what is not sampled is stored once or never, names are plain, dtypes hold what they must."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection
from tests.learned_samplers.posterior.common import sgd
from tests.learned_samplers.posterior.common import train as train_on

X = torch.linspace(-1, 1, 240).view(6, 40)
SAMPLED, FROZEN = 2 * 40 * 2 + 40 * 3 + 3, 40 * 40 + 40


class LoRA(nn.Module):
    """A frozen linear layer and its low-rank correction."""

    def __init__(self, size=40, rank=2):
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, size, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(LoRA(), nn.Tanh(), nn.Linear(40, 3))


def train(model, sampler, steps):
    train_on(model, sampler, steps, X)


def chain(model=None, steps=3, groups="trainable", **options):
    model = model or lora()
    sampler = torch.optim.SGD(model.parameters(), lr=0.1) if groups == "all" else sgd(model, 0.1)
    posterior = PosteriorSamples(model, sampler, **options)
    train(model, sampler, steps)
    return model, sampler, posterior


def numbers(tensors):
    return sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.parametrize("groups", ["all", "trainable"])
@pytest.mark.parametrize("store_frozen", [True, False])
def test_frozen_parameters_are_stored_once_or_never(tmp_path, groups, store_frozen):
    model, _, posterior = chain(groups=groups, store_frozen=store_frozen, path=tmp_path)
    assert [numbers(sample) for sample in posterior] == [SAMPLED] * 3
    assert numbers(posterior._fixed()) == (FROZEN if store_frozen else 0)
    target = lora(seed=7)
    if not store_frozen:
        with pytest.raises(ValueError, match=r"not stored there.*'0\.base\.weight'"):
            SampleCollection.load(tmp_path, target)
        target[0].base.load_state_dict(model[0].base.state_dict())
    assert torch.equal(SampleCollection.load(tmp_path, target).predict(X), posterior.predict(X))


def test_a_file_without_the_base_model(tmp_path):
    model, _, posterior = chain()
    posterior.save(tmp_path / "whole.safetensors")
    posterior.save(tmp_path / "small.safetensors", store_frozen=False)
    saved = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("whole", "small")]
    assert saved[0] - saved[1] > 4 * FROZEN * 0.9
    loaded = SampleCollection.load(tmp_path / "small.safetensors", model)
    assert torch.equal(loaded.predict(X), posterior.predict(X))
    with pytest.raises(ValueError, match=r"small\.safetensors: the frozen parameters are not stored there"):
        SampleCollection.load(tmp_path / "small.safetensors", lora(seed=7))
    loaded.save(tmp_path / "same.safetensors")
    assert (tmp_path / "same.safetensors").stat().st_size == saved[1], "as small as it was"
    loaded.save(tmp_path / "again.safetensors", store_frozen=True)  # and with it again, from the model
    again = SampleCollection.load(tmp_path / "again.safetensors", lora(seed=7))
    assert torch.equal(again.predict(X), posterior.predict(X))
    with torch.no_grad():
        model[0].base.bias.add_(1)
    for use in (lambda: loaded.predict(X), lambda: loaded.save(tmp_path / "never.safetensors", store_frozen=True)):
        with pytest.raises(ValueError, match=r"'0\.base\.bias' of this Sequential has other values"):
            use()
    assert not (tmp_path / "never.safetensors").exists()


def test_the_state_dict_knows_the_base_model_too():
    model, _, posterior = chain(store_frozen=False)
    state = posterior.state_dict()
    assert state["fixed"] == {}
    again, _, resumed = chain(lora(seed=7), 0, store_frozen=False)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="has other values"):
        resumed.predict(X)
    again[0].base.load_state_dict(model[0].base.state_dict())
    assert torch.equal(resumed.predict(X), posterior.predict(X))


@pytest.mark.parametrize("store_frozen", [True, False])
def test_frozen_parameters_may_be_written_anew_and_not_changed(store_frozen):
    model, sampler, posterior = chain(steps=1, store_frozen=store_frozen)
    model.load_state_dict(model.state_dict())
    train(model, sampler, 2)
    with torch.no_grad():
        model[0].base.weight.mul_(1.001)
    with pytest.raises(ValueError, match=r"'0\.base\.weight' is not sampled but changed"):
        train(model, sampler, 1)
    assert len(posterior) == 3


@pytest.mark.parametrize("store_frozen", [True, False])
@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_what_a_fused_optimizer_moves_is_seen(other, store_frozen):
    """Its step raises no version of the parameters."""
    model = nn.Sequential(nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 3))
    sampler, fused = torch.optim.SGD(model[2].parameters(), lr=0.1), other(model[0].parameters(), lr=0.01, fused=True)
    posterior = PosteriorSamples(model, sampler, store_frozen=store_frozen)
    train(model, sampler, 3)
    fused.step()
    with pytest.raises(ValueError, match=r"'0\.weight' is not sampled but changed .*step 4"):
        train(model, sampler, 1)
    assert len(posterior) == 3


class Masked(nn.Module):
    """A linear layer and a mask of attention, which holds −∞, and a buffer that holds NaN."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(40, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.register_buffer("unknown", torch.tensor([float("nan"), 1.0]))

    def forward(self, x):
        return self.layer(x) @ self.mask.exp()


@pytest.mark.parametrize("buffers", ["refuse", "snapshot"])
def test_buffers_that_are_not_finite_are_kept_and_read(tmp_path, buffers):
    model, sampler, posterior = chain(Masked(), path=tmp_path / "run", buffers=buffers)
    expected = posterior.predict(X)
    posterior.save(tmp_path / "saved.safetensors")
    for path in ("run", "saved.safetensors"):
        torch.testing.assert_close(SampleCollection.load(tmp_path / path, Masked()).predict(X), expected)
    posterior.detach()
    assert len(PosteriorSamples(model, sampler, path=tmp_path / "run", buffers=buffers)) == 3


@pytest.mark.parametrize("name", ["mask", "unknown"])
def test_constant_buffers_need_no_policy_but_must_stay_constant(name):
    model, sampler, posterior = chain(Masked())
    getattr(model, name)[-1] = 2.0
    with pytest.raises(ValueError, match=rf"'{name}' is not sampled but changed.*buffers='snapshot'"):
        train(model, sampler, 1)
    assert posterior.steps == [1, 2, 3]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_running_statistics_are_stored_as_they_are(tmp_path, dtype, on_disk):
    """A variance of unscaled inputs is beyond the largest number of float16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(40), nn.Linear(40, 3))
    sampler = sgd(model, 1e-4)
    posterior = PosteriorSamples(
        model, sampler, buffers="snapshot", dtype=dtype, path=tmp_path / "run" if on_disk else None
    )
    x, held = 1000 * torch.randn(2, 64, 40)
    train_on(model, sampler, 20, x, torch.arange(64) % 3)
    model.eval()
    assert model[0].running_var.min() > torch.finfo(torch.float16).max
    kept = posterior._store.read(-1)
    assert kept["1.weight"].dtype == dtype
    assert all(torch.equal(kept[f"0.{name}"], buffer) for name, buffer in model[0].named_buffers())
    outputs = posterior.predict_samples(held, output="regression")[-1]
    torch.testing.assert_close(outputs, model(held).detach(), rtol=0, atol=0.05)
