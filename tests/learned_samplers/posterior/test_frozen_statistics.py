"""Normalisation layers in evaluation mode while a chain runs: their statistics are constants of the network."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection

KEPT = [f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
# Where two chains are merged they are the same one.
pytestmark = pytest.mark.filterwarnings("ignore:chains 0 and 1 begin with the same sample")
X, Y = 2 * torch.linspace(-1, 1, 128).view(32, 4).sin() + 1, torch.arange(32) % 3


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


def collect(model, steps=8, **options):
    sampler = SGHMC([p for p in model.parameters() if p.requires_grad], 0.05, 32)
    posterior = PosteriorSamples(model, sampler, thinning=2, **{"buffers": "reestimate", **options})
    train(model, sampler, steps)
    return sampler, posterior


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


def outputs(model, posterior):
    """What the networks that were sampled predict, by hand."""
    model[1].eval()
    with torch.no_grad():
        features = model[:3](X)
        return torch.stack([(features @ s["4.weight"].T + s["4.bias"]).softmax(1) for s in posterior])


def test_a_frozen_backbone_keeps_its_statistics(tmp_path):
    model = build(live=False)
    _, posterior = collect(model, path=tmp_path / "run")
    right = outputs(model, posterior)
    torch.testing.assert_close(posterior.predict_samples(X), right)
    with pytest.warns(UserWarning, match="every normalisation layer was in evaluation mode .*nothing is re-estimated"):
        posterior.reestimate_buffers(X)
    posterior.save(tmp_path / "saved.safetensors")
    for path in (tmp_path / "run", tmp_path / "saved.safetensors"):
        other = build(live=False, seed=1)
        loaded = SampleCollection.load(path, other)
        torch.testing.assert_close(loaded.predict_samples(X), right)
        loaded.load_into(other, 2)
        torch.testing.assert_close(other.eval()(X).softmax(1), right[2])
    merged = SampleCollection.merge([posterior, tmp_path / "saved.safetensors"], build(live=False, seed=1))
    torch.testing.assert_close(merged.predict_samples(X), torch.cat([right, right]))


@pytest.mark.parametrize("way", ["memory", "file", "folder", "state", "merge"])
def test_only_the_other_layers_are_re_estimated(tmp_path, way):
    model = build(live=True)
    _, posterior = collect(model, path=tmp_path / "run" if way == "folder" else None)
    frozen = {name: tensor.clone() for name, tensor in model.state_dict().items() if name in KEPT}
    held = posterior
    if way == "file":
        posterior.save(tmp_path / "saved.safetensors")
        held = SampleCollection.load(tmp_path / "saved.safetensors", build(live=True, seed=1))
    elif way == "folder":
        held = SampleCollection.load(tmp_path / "run", build(live=True, seed=1))
    elif way == "merge":
        held = SampleCollection.merge([posterior, posterior]).split()[1]
    elif way == "state":
        _, held = collect(build(live=True, seed=1), steps=0)
        held.load_state_dict(posterior.state_dict())
    with pytest.raises(RuntimeError, match="have not been re-estimated"):
        held.predict(X)
    held.reestimate_buffers(X)
    found = held.predict_samples(X)
    assert all(torch.equal(held._store.fixed[name], tensor) for name, tensor in frozen.items())
    for k, sample in enumerate(held):
        with torch.no_grad():
            features = model[:3](X)
            normed = nn.functional.batch_norm(
                features, features.mean(0), features.var(0), sample["3.weight"], sample["3.bias"]
            )
            right = (normed @ sample["4.weight"].T + sample["4.bias"]).softmax(1)
        torch.testing.assert_close(found[k], right)
    held.save(tmp_path / "again.safetensors")
    again = SampleCollection.load(tmp_path / "again.safetensors", build(live=True, seed=2))
    torch.testing.assert_close(again.predict_samples(X), found)


@pytest.mark.parametrize(("first", "now"), [("evaluation", "training"), ("training", "evaluation")])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_layer_whose_mode_changes_is_refused_by_name(tmp_path, first, now, reopened):
    model = build(live=True)
    model[0].requires_grad_(True)
    model[1].train(first == "training")
    sampler, posterior = collect(model, steps=4, path=tmp_path / "run")
    if reopened:
        posterior.detach()
        posterior = PosteriorSamples(model, sampler, thinning=2, buffers="reestimate", path=tmp_path / "run")
    model[1].train(now == "training")
    train(model, sampler, 1)  # not due
    message = (
        rf"the layer of '1\.running_mean' is in {now} mode at step 6, but was in {first} mode at the first sample.*"
        rf"call \.train\({first == 'training'}\) on it if that mode was meant"
    )
    with pytest.raises(ValueError, match=message):
        train(model, sampler, 1)
    assert posterior.steps == [2, 4]
    if not reopened and first == "training":
        model[1].train()
        train(model, sampler, 2)
        assert posterior.steps == [2, 4, 8]


def test_frozen_statistics_that_change_are_an_error():
    model = build(live=False)
    sampler, posterior = collect(model, steps=2)
    model[1].running_mean.add_(1)
    with pytest.raises(ValueError, match=r"'1\.running_mean' is not sampled but changed since the first sample"):
        train(model, sampler, 2)
    assert posterior.steps == [2]


def test_samples_of_before_are_re_estimated_in_all_layers(tmp_path):
    """What an earlier version collected says nothing of modes, and no statistics are with it."""
    model = build(live=True)
    _, posterior = collect(model)
    old = posterior.state_dict()
    old["fixed"] = {name: tensor for name, tensor in old["fixed"].items() if name not in KEPT}
    _, held = collect(build(live=True), steps=0)
    held.load_state_dict(old)
    held.reestimate_buffers(X)
    assert set(held._reestimated[0, 2]) == {name.replace("1.", f"{k}.", 1) for name in KEPT for k in (1, 3)}
    held.save(tmp_path / "old.safetensors")
    loaded = SampleCollection.load(tmp_path / "old.safetensors", build(live=True, seed=1))
    torch.testing.assert_close(loaded.predict(X), held.predict(X))


def test_a_folder_without_what_is_stored_once_says_so(tmp_path):
    model = build(live=False)
    sampler, posterior = collect(model, path=tmp_path / "run")
    posterior.detach()
    (tmp_path / "run/fixed.safetensors").unlink()
    model[1].train()  # else its statistics are missed first
    PosteriorSamples(model, sampler, thinning=2, buffers="reestimate", path=tmp_path / "run")
    with pytest.raises(ValueError, match=r"nothing is stored of '0\.weight'.*fixed\.safetensors .*is missing"):
        train(model, sampler, 2)
