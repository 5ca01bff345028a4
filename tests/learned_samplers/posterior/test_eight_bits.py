"""Samples stored in floating-point types of eight bits, of which torch knows little: they work or are refused."""

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection
from learned_samplers.diagnostics import loss_lines, network_loss

EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
X, Y = torch.linspace(-1, 1, 80).view(20, 4), torch.arange(20) % 3


def collect(dtype, steps=3, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    sampler = torch.optim.SGD(model.parameters(), lr=0.3)
    posterior = PosteriorSamples(model, sampler, dtype=dtype, **options)
    train(model, sampler, steps)
    return model, sampler, posterior


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_they_are_collected_saved_and_read(tmp_path, dtype):
    model, _, posterior = collect(dtype, path=tmp_path / "run")
    assert torch.equal(posterior[-1]["weight"].float(), model.weight.detach().to(dtype).float())
    weights, bias = posterior[-1]["weight"].float(), posterior[-1]["bias"].float()
    torch.testing.assert_close(posterior.predict_samples(X)[-1], (X @ weights.T + bias).softmax(1))
    posterior.save(tmp_path / "saved.safetensors")
    for name in ("run", "saved.safetensors"):
        loaded = SampleCollection.load(tmp_path / name, nn.Linear(4, 3))
        assert loaded[0]["weight"].dtype == dtype
        assert torch.equal(loaded.predict(X), posterior.predict(X))
    _, _, memory = collect(dtype)
    torch.save(memory.state_dict(), tmp_path / "state.pt")
    _, _, resumed = collect(dtype, steps=0)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(resumed.predict(X), posterior.predict(X))


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("value", [1e6, -1e6, float("inf"), float("nan")])
def test_a_weight_beyond_their_range_is_refused(dtype, value):
    """Some of these types have no infinity, and cut a larger number off at their largest."""
    model, sampler, posterior = collect(dtype)
    with torch.no_grad():
        model.bias[1] = value
        model.bias.grad = model.weight.grad = None
    with pytest.raises(ValueError, match=rf"'bias' is not finite at step 4 \(stored as {dtype}\): not collected"):
        sampler.step()
    assert posterior.steps == [1, 2, 3]


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_file_with_what_is_not_finite_is_refused(tmp_path, dtype):
    _, _, posterior = collect(dtype)
    posterior[1]["bias"][0] = float("nan")
    with pytest.raises(ValueError, match="sample 1: 'bias' holds numbers that are not finite"):
        posterior.save(tmp_path / "saved.safetensors")


@pytest.mark.parametrize("name", ["float8_e8m0fnu", "float4_e2m1fn_x2"])
def test_types_that_hold_no_weights_are_refused_before_the_burn_in(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(ValueError, match=rf"dtype=torch\.{name} cannot hold weights \(\[-1\.0, 0\.5\] becomes"):
        collect(getattr(torch, name), steps=0)


def test_losses_between_samples_of_eight_bits():
    posterior = collect(torch.float8_e5m2)[2]
    loss = network_loss(posterior, X, Y)
    assert torch.isfinite(torch.as_tensor(loss_lines(posterior, loss).losses)).all()
