"""Inputs of predictions in every form, and what a loader's further items are taken for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from learned_samplers import SampleCollection
from learned_samplers.posterior.inputs import as_batches
from tests.learned_samplers.posterior.test_outputs import Net, X, collection


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, first, second):
        return self.left(first) - self.right(second)


def loader(data, **options):
    return DataLoader(data, batch_size=3, **options)


def test_every_form_of_the_same_inputs_predicts_the_same():
    samples, raw = collection(3)
    expected = raw.softmax(2).mean(0)
    pairs, alone = TensorDataset(X, torch.zeros(7)), list(X)
    for x in (X, X.numpy(), X.double().numpy(), (X,), {"x": X}, {"x": X.numpy()}, loader(pairs), loader(alone)):
        torch.testing.assert_close(samples.predict(x, sample_chunk=2, batch_size=4), expected)
    torch.manual_seed(0)
    members = [Two() for _ in range(3)]
    samples = SampleCollection.from_samples(members[0], [member.state_dict() for member in members])
    first, second = X[:, :2], X[:, 2:]
    expected = torch.stack([member(first, second) for member in members]).softmax(2).mean(0)
    rows = [{"first": a, "second": b} for a, b in zip(first, second)]
    for x in ((first, second), (first.numpy(), second), {"second": second, "first": first}, loader(rows)):
        torch.testing.assert_close(samples.predict(x, batch_size=4), expected)


def test_inputs_that_cannot_be_used():
    samples, _ = collection(3)
    with pytest.raises(ValueError, match="x shuffles, so that predictions could not be matched"):
        samples.predict(loader(TensorDataset(X), shuffle=True))
    for sampler in (SubsetRandomSampler(range(4)), WeightedRandomSampler([1.0] * len(X), 4)):
        with pytest.raises(ValueError, match="x shuffles"):
            samples.predict(loader(TensorDataset(X), sampler=sampler))
    batches = BatchSampler(RandomSampler(TensorDataset(X)), 4, drop_last=False)
    with pytest.raises(ValueError, match="x shuffles"):
        samples.predict(DataLoader(TensorDataset(X), batch_sampler=batches))
    with pytest.raises(ValueError, match="x shuffles"):  # torch's idiom for data sets that index many rows at once
        samples.predict(DataLoader(TensorDataset(X), sampler=batches, batch_size=None))
    with pytest.raises(ValueError, match="got a loader of no batch"):
        samples.predict(loader([]))
    with pytest.raises(TypeError, match="a tuple or dictionary of them, or a DataLoader, got str"):
        samples.predict({"x": "text"})
    with pytest.raises(ValueError, match=r"as many in each tensor; got lengths \[7, 3\]"):
        samples.predict({"x": X, "y": X[:3]})
    with pytest.raises(ValueError, match="at least one example"):
        samples.predict(np.zeros((0, 4)))


def test_a_loader_of_more_than_inputs_and_targets_is_refused():
    x = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"batch of the loader must be inputs or \(inputs, targets\), got 3 items"):
        as_batches(DataLoader(TensorDataset(x, x, torch.zeros(4)), batch_size=2), 2)


def test_several_inputs_come_as_a_tuple_beside_the_target():
    pairs = [((torch.full((3,), float(i)), torch.ones(2)), i) for i in range(4)]
    first, _ = as_batches(DataLoader(pairs, batch_size=2), 2)
    assert [tuple(each.shape) for each in first.args] == [(2, 3), (2, 2)]


def test_one_example_without_a_batch_axis():
    samples, _ = collection(3)
    alone = DataLoader(TensorDataset(X, torch.zeros(7)), batch_size=None)
    for x in (X[0], alone):
        with pytest.raises(ValueError, match=r"got \(3,\).*one example alone needs a batch axis, x\.unsqueeze\(0\)"):
            samples.predict(x)
    with pytest.raises(ValueError, match=r"turned 4 examples into a tensor of shape \(3,\).*needs a batch axis"):
        samples.predict(X[0], output="regression")
    with pytest.raises(ValueError, match=r"got lengths \[0\] \(one example alone needs a batch axis"):
        samples.predict(X[0, 0])
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    images = SampleCollection.from_samples(model, [model.state_dict()])
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        images.predict(torch.zeros(5, 3, 2, 2)[0])
    assert "x was read as 3 examples of shape (2, 2); one example alone needs" in raised.value.__notes__[0]


def two_inputs():
    torch.manual_seed(0)
    members = [Two() for _ in range(3)]
    return SampleCollection.from_samples(members[0], [member.state_dict() for member in members])


class Optional(Two):
    def forward(self, first, second=None):
        return super().forward(first, torch.zeros_like(first) if second is None else second)


class Training(Net):
    def forward(self, x, labels=None):
        return super().forward(x)


class Switched(Net):
    def forward(self, x, features=False):
        return super().forward(x)


def test_a_loader_of_two_inputs(recwarn):
    samples = two_inputs()
    first, second = X[:, :2], X[:, 2:]
    pairs = loader(TensorDataset(first, second))
    torch.testing.assert_close(samples.predict(pairs, targets=False), samples.predict((first, second)))
    alone = collection(3)[0]
    torch.testing.assert_close(alone.predict(loader(TensorDataset(X)), targets=False), alone.predict(X))
    assert not recwarn


def test_an_input_that_is_taken_for_the_target_is_warned_of_once(recwarn):
    model = Optional()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    first, second = X[:, :2], X[:, 2:]
    pairs = loader(TensorDataset(first, second))
    expected = samples.predict(first)
    assert torch.equal(samples.predict(pairs, targets=True, batch_size=3), samples.predict(first, batch_size=3))
    assert not recwarn
    for collected in (samples, SampleCollection.from_samples(model, [model.state_dict()])):
        with pytest.warns(UserWarning, match=r"not for 'second' of the network: pass targets=False") as said:
            torch.testing.assert_close(collected.predict(pairs), expected)
        assert len(said) == 1
        collected.predict(pairs)


@pytest.mark.parametrize("network", [Training, Switched])
def test_a_second_argument_that_is_no_input_is_no_reason_to_warn(network):
    model = network(3)
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    torch.testing.assert_close(samples.predict(loader(TensorDataset(X, torch.zeros(7)))), samples.predict(X))


def test_statistics_from_a_loader_of_two_inputs():
    class Normed(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, first, second):
            return self.norm(super().forward(first, second))

    model = Normed()
    samples = SampleCollection.from_samples(model, [model.state_dict()])
    samples._settings["buffers"] = "reestimate"
    samples.reestimate_buffers(loader(TensorDataset(X[:, :2], X[:, 2:]), drop_last=True), targets=False)
    found = samples.predict((X[:, :2], X[:, 2:]))
    samples.reestimate_buffers((X[:6, :2], X[:6, 2:]), batch_size=3)
    torch.testing.assert_close(samples.predict((X[:, :2], X[:, 2:])), found)
