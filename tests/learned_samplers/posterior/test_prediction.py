"""Predicting with a collection: equal to a plain loop over samples, and nothing about the model changes."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import SGHMC, SGLD, PosteriorSamples
from learned_samplers.posterior.collect import SampleCollection


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder transposed, and whose embedding is used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x.unsqueeze(1))[0][:, -1])


NETWORKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "convolutional": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)
    ),
    "batch_norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "tied": Tied,
}


def ensemble(build, count=5):
    torch.manual_seed(0)
    members = [build() for _ in range(count)]
    with torch.no_grad():
        for member in members:
            for name, buffer in member.named_buffers():
                if name.endswith("running_var"):
                    buffer.uniform_(0.5, 2)
                elif buffer.is_floating_point():
                    buffer.normal_()
    return members


def collection(members):
    return SampleCollection.from_samples(copy.deepcopy(members[0]), [member.state_dict() for member in members])


def by_loop(members, x):
    with torch.no_grad():
        return torch.stack([member.eval()(x).softmax(dim=1) for member in members])


@pytest.mark.parametrize("vectorize", [True, False, None])
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_plain_loop(network, vectorize):
    members = ensemble(NETWORKS[network])
    x = torch.randn(11, 4)
    expected = by_loop(members, x)
    assert expected.std(dim=0).mean() > 0.01, "the samples must differ for this to be a test"
    samples = collection(members)
    options = {"batch_size": 4, "sample_chunk": 2, "vectorize": vectorize}
    torch.testing.assert_close(samples.predict_samples(x, **options), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(samples.predict(x, **options), expected.mean(0), atol=1e-6, rtol=0)
    running = torch.stack([expected[: k + 1].mean(0) for k in range(5)])
    torch.testing.assert_close(samples.predict(x, cumulative=True, **options), running, atol=1e-6, rtol=0)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 6),
    rows=st.integers(1, 9),
    batch_size=st.integers(1, 10),
    sample_chunk=st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    data=st.data(),
)
def test_shapes_dtypes_and_chunking(count, rows, batch_size, sample_chunk, dtype, data):
    members = [member.to(dtype) for member in ensemble(NETWORKS["mlp"], count)]
    x = torch.randn(rows, 4, dtype=dtype)
    samples = collection(members)
    num_samples = data.draw(st.integers(1, count))
    options = {"batch_size": batch_size, "sample_chunk": sample_chunk, "num_samples": num_samples}
    average, running = samples.predict(x, **options), samples.predict(x, cumulative=True, **options)
    assert average.shape == (rows, 3)
    assert running.shape == (num_samples, rows, 3)
    assert average.dtype == running.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(running[-1], average)
    torch.testing.assert_close(average.sum(1), torch.ones(rows, dtype=average.dtype))
    whole = samples.predict(x, num_samples=num_samples)
    torch.testing.assert_close(average, whole, atol=1e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0)


def test_num_samples_are_evenly_spaced_and_end_with_the_last():
    members = ensemble(NETWORKS["mlp"], 6)
    x = torch.randn(3, 4)
    chosen = collection(members).predict_samples(x, num_samples=3)
    torch.testing.assert_close(chosen, by_loop(members, x)[[1, 3, 5]], atol=1e-6, rtol=0)


def test_the_model_is_left_as_it_was():
    members = ensemble(NETWORKS["batch_norm"])
    samples = collection(members)
    model = samples.model
    model.train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    x = torch.randn(6, 4, requires_grad=True)
    assert not samples.predict(x).requires_grad
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        samples.predict(torch.randn(6, 5))
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_outputs_other_than_probabilities():
    members = ensemble(NETWORKS["mlp"])
    samples = collection(members)
    x = torch.randn(7, 4)
    with torch.no_grad():
        raw = torch.stack([member.eval()(x) for member in members])
    torch.testing.assert_close(samples.predict(x, output="regression"), raw.mean(0), atol=1e-6, rtol=0)
    largest = samples.predict(x, output=lambda logits: logits.amax(1))
    torch.testing.assert_close(largest, raw.amax(2).mean(0), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match=r"turned 7 examples into a tensor of shape \(3,\)"):
        samples.predict(x, output=lambda logits: logits.sum(0))
    with pytest.raises(ValueError, match=r"output must be 'softmax', 'binary', 'regression' or a function.*'logits'"):
        samples.predict(x, output="logits")


def test_what_vmap_cannot_run_needs_vectorize_false():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return x @ self.weight if self.weight.sum() > 0 else -x @ self.weight

    members = ensemble(Branching)
    samples = collection(members)
    x = torch.randn(6, 4)
    with pytest.raises(RuntimeError, match=r"vmap cannot run Branching.*pass vectorize=False"):
        samples.predict(x, vectorize=True)
    expected = by_loop(members, x)
    torch.testing.assert_close(samples.predict_samples(x, vectorize=False), expected, atol=1e-6, rtol=0)


def test_recurrent_network_one_by_one():
    members = ensemble(Recurrent)
    x = torch.randn(6, 4)
    predicted = collection(members).predict_samples(x, vectorize=False)
    torch.testing.assert_close(predicted, by_loop(members, x), atol=1e-6, rtol=0)


def test_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(2, 4), nn.Linear(3, 4)

        def forward(self, a, b):
            return self.left(a) * self.right(b)

    members = ensemble(Two, 3)
    x = torch.randn(5, 2), torch.randn(5, 3)
    with torch.no_grad():
        expected = torch.stack([member(*x).softmax(1) for member in members])
    torch.testing.assert_close(collection(members).predict_samples(x, batch_size=2), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        ([1.0], {}, TypeError, "x must be a tensor, an array, a tuple or .* of them, or a DataLoader, got list"),
        (torch.zeros(0, 4), {}, ValueError, "x must hold at least one example"),
        ((torch.zeros(2, 4), torch.zeros(3, 4)), {}, ValueError, r"got lengths \[2, 3\]"),
        (torch.zeros(2, 4), {"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        (torch.zeros(2, 4), {"sample_chunk": 1.0}, TypeError, "sample_chunk must be an integer, got 1.0"),
        (torch.zeros(2, 4), {"num_samples": 6}, ValueError, "num_samples must be at most the 5 samples held, got 6"),
    ],
)
def test_bad_arguments_are_named(x, options, error, message):
    with pytest.raises(error, match=message):
        collection(ensemble(NETWORKS["mlp"])).predict(x, **options)


def test_from_samples_checks_names_and_shapes():
    members = ensemble(NETWORKS["batch_norm"], 2)
    states = [member.state_dict() for member in members]
    with pytest.raises(ValueError, match="samples must hold at least one set of weights"):
        SampleCollection.from_samples(members[0], [])
    with pytest.raises(ValueError, match=r"samples\[1\]: '0\.weight' has shape \[2\], the model's is \[8, 4\]"):
        SampleCollection.from_samples(members[0], [states[0], {**states[1], "0.weight": torch.zeros(2)}])
    parameters = [dict(member.named_parameters()) for member in members]
    with pytest.raises(ValueError, match=r"lacks the running statistics '1\.running_mean'"):
        SampleCollection.from_samples(members[0], parameters)


@pytest.mark.parametrize("network", ["mlp", "batch_norm", "tied"])
def test_from_samples_takes_an_averaged_model(network):
    model = ensemble(NETWORKS[network], 1)[0]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(ensemble(NETWORKS[network], 2)[1])
    averaged.update_parameters(ensemble(NETWORKS[network], 3)[2])
    x = torch.randn(5, 4)
    samples = SampleCollection.from_samples(model, [averaged.state_dict(), averaged.module.state_dict()])
    torch.testing.assert_close(samples.predict_samples(x), by_loop([averaged, averaged], x))
    with pytest.raises(ValueError, match=r"samples\[0\]: 'n_averaged' has shape \[\], the model's is None"):
        SampleCollection.from_samples(model, [{**model.state_dict(), "n_averaged": torch.tensor(3)}])


# -- re-estimated running statistics ----------------------------------------------------------------------------------


def reestimating(members):
    samples = collection(members)
    samples._settings["buffers"] = "reestimate"
    return samples


@pytest.mark.parametrize("source", ["tensor", "loader", "generator"])
def test_reestimated_statistics_are_those_of_the_data(source):
    members = ensemble(NETWORKS["batch_norm"])
    samples = reestimating(members)
    x = torch.randn(24, 4)
    with pytest.raises(RuntimeError, match=r"sample 0 \(step 1\) have not been re-estimated: call reestimate_buffers"):
        samples.predict(x)
    batches = x.split(8)
    dataset = torch.utils.data.TensorDataset(x, torch.zeros(24))
    given = {
        "tensor": x,
        "loader": torch.utils.data.DataLoader(dataset, batch_size=8),
        "generator": (batch for batch in batches),
    }
    samples.reestimate_buffers(given[source], batch_size=8)
    with torch.no_grad():
        expected = []
        for member in members:
            hidden = torch.stack([member[0](batch) for batch in batches])
            mean, variance = hidden.mean(1).mean(0), hidden.var(1).mean(0)
            scaled = (member[0](x) - mean) / (variance + member[1].eps).sqrt()
            expected.append(member[3](member[2](scaled)).softmax(1))  # scale 1 and shift 0, as initialised
    torch.testing.assert_close(samples.predict_samples(x), torch.stack(expected), atol=1e-5, rtol=0)


def test_reestimating_needs_its_policy_and_data():
    samples = collection(ensemble(NETWORKS["batch_norm"]))
    with pytest.raises(ValueError, match="reestimate_buffers needs buffers='reestimate', got 'snapshot'"):
        samples.reestimate_buffers(torch.zeros(2, 4))
    samples = reestimating(ensemble(NETWORKS["batch_norm"]))
    with pytest.raises(ValueError, match="data holds no batch"):
        samples.reestimate_buffers([])
    with pytest.raises(TypeError, match="data must be a tensor, a tuple of tensors or a loader, got int"):
        samples.reestimate_buffers(3)


def test_reestimated_statistics_of_instance_norm_are_those_of_the_data():
    """Its momentum of None means none at all, not the plain average that it means for batch norm."""
    torch.manual_seed(0)
    layers = nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(10, 2)
    model, x = nn.Sequential(*layers), torch.randn(64, 1, 5) * 3 + 5
    sampler = SGHMC(model.parameters(), lr=0.01, num_data=100)
    samples = PosteriorSamples(model, sampler, buffers="reestimate")
    model(x).square().mean().backward()
    sampler.step()
    samples.reestimate_buffers(x, batch_size=16)
    (found,) = samples._reestimated.values()
    expected = model[0](x).mean((0, 2)).detach()
    torch.testing.assert_close(found["1.running_mean"], expected, rtol=1e-4, atol=1e-4)


def test_a_batch_of_one_example_has_no_variance():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    sampler = SGLD(model.parameters(), lr=1e-3, num_data=10)
    samples = PosteriorSamples(model, sampler, buffers="reestimate")
    model(torch.randn(4, 3)).square().mean().backward()
    sampler.step()
    with pytest.raises(ValueError, match="batch of 1 example, of which batch norm has no variance"):
        samples.reestimate_buffers(DataLoader(TensorDataset(torch.randn(5, 3)), batch_size=2))
