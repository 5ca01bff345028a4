"""Weights that are given: what is no sample is refused by name, and no file that is good is lost to one that is not."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection


def states(count=2):
    torch.manual_seed(0)
    return [nn.Linear(4, 3).state_dict() for _ in range(count)]


def spoiled(state):
    return {**state, "weight": torch.full((3, 4), float("nan"))}


def test_weights_that_are_not_finite_are_refused():
    """Those of a member that diverged make all predictions NaN."""
    model, (first, second) = nn.Linear(4, 3), states()
    with pytest.raises(ValueError, match=r"samples\[1\]: 'weight' holds numbers that are not finite"):
        SampleCollection.from_samples(model, [first, spoiled(second)])

    @contextlib.contextmanager
    def draw():
        model.weight[0, 0] = float("inf")
        yield

    with pytest.raises(ValueError, match=r"samples\[0\]: 'weight' holds numbers that are not finite"):
        SampleCollection.from_draws(model, draw, 2)


def collector():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    sampler = torch.optim.SGD(model.parameters(), lr=0.1)
    posterior = PosteriorSamples(model, sampler)
    for _ in range(3):
        sampler.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        sampler.step()
    return posterior


def test_a_state_dict_with_such_weights_changes_nothing():
    posterior = collector()
    state = copy.deepcopy(posterior.state_dict())
    state["samples"][1]["bias"][0] = float("nan")
    resumed = collector()
    before = [{name: tensor.clone() for name, tensor in sample.items()} for sample in resumed]
    with pytest.raises(ValueError, match="the sample of step 2: 'bias' holds numbers that are not finite"):
        resumed.load_state_dict(state)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(resumed, before, strict=True) for name in a)


def test_saving_such_weights_leaves_the_file_as_it_was(tmp_path):
    """The stored tensors are in the user's hands, who may have written to them."""
    file = tmp_path / "samples.safetensors"
    samples = SampleCollection.from_samples(nn.Linear(4, 3), states())
    samples.save(file)
    before = file.read_bytes()
    samples[1]["weight"][0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"sample 1: 'weight' holds numbers that are not finite"):
        samples.save(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


class ExtraState(nn.Linear):
    """A layer whose state dict holds something that is no tensor."""

    def get_extra_state(self):
        return {"scale": 2.0}

    def set_extra_state(self, state):
        pass


def test_what_is_no_tensor_is_refused_by_name():
    model = ExtraState(4, 3)
    with pytest.raises(TypeError, match=r"samples\[0\]: '_extra_state' is a dict and no tensor: leave it out"):
        SampleCollection.from_samples(model, [model.state_dict()])


class Shared(nn.Module):
    """One normalisation layer under two names, and one mask, with a NaN, that two modules have."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.again = self.norm
        mask = torch.tensor([1.0, float("nan")])
        self.register_buffer("mask", mask)
        self.layer.register_buffer("mask", mask)

    def forward(self, x):
        return self.again(self.layer(self.norm(x)))


def test_a_buffer_under_two_names():
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(16, 4)
    model(x)
    model.eval()
    state = model.state_dict()
    assert {"norm.running_mean", "again.running_mean", "mask", "layer.mask"} <= set(state)
    samples = SampleCollection.from_samples(model, [state])
    torch.testing.assert_close(samples.predict(x), model(x).softmax(1).detach())
    other = {**state, "again.running_mean": state["norm.running_mean"] + 1}
    with pytest.raises(
        ValueError, match=r"'again\.running_mean' and 'norm\.running_mean' are one tensor .*differ here"
    ):
        SampleCollection.from_samples(model, [other])


def test_draws_are_told_whose_running_statistics_they_get():
    """Those of the optimizer's last weights, which are right for layers that were frozen."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.warns(UserWarning, match=r"\('1\.running_mean', .*right if its .* evaluation mode .*'reestimate'"):
        kept = SampleCollection.from_draws(model, contextlib.nullcontext, 2, buffers="snapshot")
    assert "1.running_mean" in kept._store.read(0)
    model = nn.Linear(4, 3)
    model.register_buffer("scale", torch.ones(3))  # a buffer that is no statistic is kept, as before
    samples = SampleCollection.from_draws(model, contextlib.nullcontext, 2, buffers="snapshot")
    assert set(samples._store.read(0)) == {"weight", "bias", "scale"}
