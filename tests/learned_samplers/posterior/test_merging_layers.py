"""Layers that merge an adapter into their weight in evaluation mode, as loralib's do, and layers that run twice."""

import copy

import pytest
import torch
from torch import nn

from learned_samplers import SGLD, PosteriorSamples


class LoRA(nn.Linear):
    """A frozen linear layer with an adapter of rank 2, which its ``train`` merges and unmerges."""

    def __init__(self):
        super().__init__(4, 3)
        self.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))
        self.merged = False

    def train(self, mode=True):
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * (self.up @ self.down).data
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        return super().forward(x) + (0 if self.merged else x @ self.down.T @ self.up.T)


def collected(model, **options):
    sampler = SGLD([p for p in model.parameters() if p.requires_grad], 0.01, 5, temperature=0.1)
    posterior = PosteriorSamples(model, sampler, **options)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        sampler.step()
    return posterior


def test_a_layer_that_merges_in_evaluation_mode_is_neither_merged_nor_changed():
    torch.manual_seed(0)
    model, x = LoRA(), torch.randn(5, 4)
    weight = model.weight.clone()
    posterior = collected(model)
    outputs = [nn.functional.linear(x, weight + each["up"] @ each["down"], model.bias) for each in posterior]
    assert torch.stack(outputs).std(0).max() > 1e-3
    torch.testing.assert_close(posterior.predict(x), torch.stack(outputs).softmax(-1).mean(0))
    assert model.training
    assert not model.merged
    assert torch.equal(model.weight, weight)


def test_a_layer_that_is_merged_is_refused_where_its_adapter_is_sampled():
    torch.manual_seed(0)
    model, x = nn.Sequential(LoRA()), torch.randn(5, 4)
    posterior = collected(model)
    right = posterior.predict(x)
    model.eval()
    with pytest.raises(ValueError, match=r"its layer '0' has merged its adapter into its weight \(merged=True\)"):
        posterior.predict(x)
    model.train()
    torch.testing.assert_close(posterior.predict(x), right)
    head = nn.Sequential(LoRA().eval(), nn.Linear(3, 3))  # merged for good: its adapter is not sampled
    head[0].requires_grad_(False)
    assert collected(head).predict(x).shape == (5, 3)


def test_a_sample_is_not_loaded_beside_a_merged_adapter():
    """It would be added to nothing: the network ran without any adapter."""
    torch.manual_seed(0)
    model, x = nn.Sequential(LoRA()), torch.randn(5, 4)
    posterior = collected(model)
    one = copy.deepcopy(model).eval()
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    with pytest.raises(ValueError, match=r"its layer '0' has merged its adapter .*unmerge it first, by model\.train"):
        posterior.load_into(one, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state_dict().items())
    one.train()
    posterior.load_into(one, 0)
    torch.testing.assert_close(one.eval()(x).softmax(1), posterior.predict_samples(x)[0])


class Siamese(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.last = norm, nn.Linear(2, 2)

    def forward(self, a, b):
        return self.last(torch.stack([self.norm(a).flatten(1).mean(1), self.norm(b).flatten(1).mean(1)], 1))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
@pytest.mark.parametrize("batch_size", [16, 64])
def test_running_statistics_of_a_layer_that_runs_twice_are_of_both_calls(norm, batch_size):
    torch.manual_seed(0)
    a, b = torch.randn(64, 3, 7), torch.randn(64, 3, 7) + 10
    model = Siamese(norm)
    samples = collected(model, buffers="reestimate")
    samples.reestimate_buffers((a, b), batch_size=batch_size)
    for statistics in samples._reestimated.values():
        mean = statistics["norm.running_mean"]
        torch.testing.assert_close(mean, torch.cat([a, b]).mean((0, 2)), rtol=0, atol=1e-4)


def test_arrays_for_running_statistics_get_the_dtype_of_the_network():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = torch.randn(20, 4)
    samples = collected(model, buffers="reestimate")
    samples.reestimate_buffers(x.double().numpy())
    found = samples.predict(x)
    samples.reestimate_buffers(x)
    torch.testing.assert_close(found, samples.predict(x))
