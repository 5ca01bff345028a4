"""Running statistics: kept with each sample, re-estimated from data, or constants of layers in evaluation mode."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection
from tests.learned_samplers.posterior.common import collect, copied, network, sghmc, train

KEPT = [f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
# Where two chains are merged they are the same one.
pytestmark = pytest.mark.filterwarnings("ignore:chains 0 and 1 begin with the same sample")
X = 2 * torch.linspace(-1, 1, 80).view(20, 4).sin() + 1


@pytest.mark.parametrize("source", ["tensor", "array", "loader", "generator"])
def test_reestimated_statistics_are_those_of_the_data(source):
    _, _, samples = collect(network(norm=True), 3, buffers="reestimate")
    x = torch.randn(24, 4)
    with pytest.raises(RuntimeError, match=r"sample 0 \(step 1\) have not been re-estimated"):
        samples.predict(x)
    sources = {
        "tensor": x,
        "array": x.double().numpy(),
        "loader": DataLoader(TensorDataset(x, torch.zeros(24)), batch_size=8),
        "generator": (batch for batch in x.split(8)),
    }
    samples.reestimate_buffers(sources[source], batch_size=8)
    expected = []
    for s in samples:
        hidden = x @ s["0.weight"].T + s["0.bias"]
        mean, variance = hidden.mean(0), hidden.view(3, 8, 8).var(1).mean(0)
        normed = nn.functional.batch_norm(hidden, mean, variance, s["1.weight"], s["1.bias"])
        expected.append((normed.tanh() @ s["3.weight"].T + s["3.bias"]).softmax(1))
    torch.testing.assert_close(samples.predict_samples(x), torch.stack(expected), atol=1e-5, rtol=0)


class Siamese(nn.Module):
    """Runs its normalisation twice."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.last = norm, nn.Linear(2, 2)

    def forward(self, a, b):
        return self.last(torch.stack([self.norm(a).flatten(1).mean(1), self.norm(b).flatten(1).mean(1)], 1))


# A momentum of None means none at all for instance norm, not the plain average that it means for batch norm.
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
@pytest.mark.parametrize("batch_size", [16, 64])
def test_running_statistics_of_a_layer_that_runs_twice_are_of_both_calls(norm, batch_size):
    torch.manual_seed(0)
    a, b = torch.randn(64, 3, 7), torch.randn(64, 3, 7) + 10
    model = Siamese(norm)
    sampler = sghmc(model)
    samples = PosteriorSamples(model, sampler, buffers="reestimate")
    model(a, b).square().mean().backward()
    sampler.step()
    pairs = DataLoader(TensorDataset(a, b), batch_size=batch_size)
    for data, targets in (((a, b), None), (pairs, False)):
        samples.reestimate_buffers(data, batch_size=batch_size, targets=targets)
        (statistics,) = samples._reestimated.values()
        expected = torch.cat([a, b]).mean((0, 2))
        torch.testing.assert_close(statistics["norm.running_mean"], expected, rtol=0, atol=1e-4)


# -- layers in evaluation mode while a chain runs: their statistics are constants --------------------------------------


def build(live, seed=0):
    """A frozen backbone with statistics of other data; ``live`` puts a second normalisation into the head."""
    torch.manual_seed(seed)
    backbone = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()]
    model = nn.Sequential(*backbone, nn.BatchNorm1d(6) if live else nn.Identity(), nn.Linear(6, 3))
    for _ in range(50):
        model(torch.randn(64, 4))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False).eval()
    return model


def chain(model, steps=8, **options):
    return collect(model, steps, sghmc, thinning=2, **{"buffers": "reestimate", **options})[1:]


@pytest.mark.parametrize("buffers", ["reestimate", "refuse"])
def test_a_frozen_backbone_keeps_its_statistics(tmp_path, buffers):
    model = build(live=False)
    sampler, posterior = chain(model, path=tmp_path / "run", buffers=buffers)
    features = model[:3](X).detach()
    right = torch.stack([(features @ s["4.weight"].T + s["4.bias"]).softmax(1) for s in posterior])
    torch.testing.assert_close(posterior.predict_samples(X), right)
    torch.testing.assert_close(posterior.function_of_weights(X)(posterior[-1]), right[-1])
    if buffers == "reestimate":
        with pytest.warns(UserWarning, match="every normalisation layer was in evaluation mode"):
            posterior.reestimate_buffers(X)
    posterior.save(tmp_path / "saved.safetensors")
    for path in (tmp_path / "run", tmp_path / "saved.safetensors"):
        target = build(live=False, seed=1)
        loaded = SampleCollection.load(path, target)
        torch.testing.assert_close(loaded.predict_samples(X), right)
        loaded.load_into(target, 2)
        torch.testing.assert_close(target.eval()(X).softmax(1), right[2])
    merged = SampleCollection.merge([posterior, tmp_path / "saved.safetensors"], build(live=False, seed=1))
    torch.testing.assert_close(merged.predict_samples(X), torch.cat([right, right]))
    if buffers == "refuse":
        model.train()
        with pytest.raises(ValueError, match=r"'1\.running_mean' is not sampled but changed .*buffers='snapshot'"):
            train(model, sampler, 2)


@pytest.mark.parametrize("way", ["memory", "file", "folder", "state", "merge"])
def test_only_the_other_layers_are_re_estimated(tmp_path, way):
    model = build(live=True)
    _, posterior = chain(model, path=tmp_path / "run" if way == "folder" else None)
    constants = copied({name: tensor for name, tensor in model.state_dict().items() if name in KEPT})
    held = posterior
    if way == "file":
        posterior.save(tmp_path / "saved.safetensors")
        held = SampleCollection.load(tmp_path / "saved.safetensors", build(live=True, seed=1))
    elif way == "folder":
        held = SampleCollection.load(tmp_path / "run", build(live=True, seed=1))
    elif way == "merge":
        held = SampleCollection.merge([posterior, posterior]).split()[1]
    elif way == "state":
        _, held = chain(build(live=True, seed=1), 0)
        held.load_state_dict(posterior.state_dict())
    with pytest.raises(RuntimeError, match="have not been re-estimated"):
        held.predict(X)
    held.reestimate_buffers(X)
    predictions = held.predict_samples(X)
    assert all(torch.equal(held._store.fixed[name], tensor) for name, tensor in constants.items())
    features = model[:3](X).detach()
    for k, s in enumerate(held):
        normed = nn.functional.batch_norm(features, features.mean(0), features.var(0), s["3.weight"], s["3.bias"])
        torch.testing.assert_close(predictions[k], (normed @ s["4.weight"].T + s["4.bias"]).softmax(1))
    held.save(tmp_path / "again.safetensors")
    again = SampleCollection.load(tmp_path / "again.safetensors", build(live=True, seed=2))
    torch.testing.assert_close(again.predict_samples(X), predictions)


@pytest.mark.parametrize(("first", "now"), [("evaluation", "training"), ("training", "evaluation")])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_layer_whose_mode_changes_is_refused_by_name(tmp_path, first, now, reopened):
    model = build(live=True)
    model[0].requires_grad_(True)
    model[1].train(first == "training")
    sampler, posterior = chain(model, 4, path=tmp_path / "run")
    if reopened:
        posterior.detach()
        posterior = PosteriorSamples(model, sampler, thinning=2, buffers="reestimate", path=tmp_path / "run")
    model[1].train(now == "training")
    train(model, sampler, 1)  # not due
    with pytest.raises(ValueError, match=rf"'1\.running_mean' is in {now} mode at step 6, but was in {first} mode"):
        train(model, sampler, 1)
    assert posterior.steps == [2, 4]
    if not reopened and first == "training":
        model[1].train()
        train(model, sampler, 2)
        assert posterior.steps == [2, 4, 8]


def test_frozen_statistics_that_change_or_are_missing_are_an_error(tmp_path):
    model = build(live=False)
    sampler, posterior = chain(model, 2, path=tmp_path / "run")
    model[1].running_mean.add_(1)
    with pytest.raises(ValueError, match=r"'1\.running_mean' is not sampled but changed"):
        train(model, sampler, 2)
    assert posterior.steps == [2]
    posterior.detach()
    (tmp_path / "run/fixed.safetensors").unlink()
    model[1].train()  # else its statistics are missed first
    PosteriorSamples(model, sampler, thinning=2, buffers="reestimate", path=tmp_path / "run")
    with pytest.raises(ValueError, match=r"'0\.weight' .*fixed\.safetensors .*is missing"):
        train(model, sampler, 2)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")  # torch deprecates it; models still have it
def test_a_network_that_keeps_a_computed_weight_is_copied_all_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.BatchNorm1d(4), nn.Linear(4, 1))
    sampler = SGHMC(model.parameters(), 1e-3, 20)
    posterior = PosteriorSamples(model, sampler, burn_in=0, thinning=1, buffers="reestimate")
    x = torch.randn(20, 3)
    for _ in range(3):
        sampler.zero_grad()
        model(x).square().mean().backward()
        sampler.step()
    posterior.reestimate_buffers(x)
    assert posterior.predict(x, output="regression", vectorize=False).shape == (20, 1)
