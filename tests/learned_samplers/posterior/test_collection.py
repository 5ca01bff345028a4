"""Collections of given weights, of draws and of several chains; one sample in a network."""

import contextlib
import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection
from tests.learned_samplers.posterior.common import (
    X,
    collect,
    collection,
    copied,
    ensemble,
    frozen,
    network,
    one_of_many,
    same,
)
from tests.learned_samplers.posterior.common import train as train_on


class Tied(nn.Module):
    """Two layers of one weight, one normalisation under two names, and one mask, with a NaN, of two modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.again = self.norm
        mask = torch.tensor([1.0, float("nan")])
        self.register_buffer("mask", mask)
        self.first.register_buffer("mask", mask)

    def forward(self, x):
        return self.head(self.again(self.second(self.norm(self.first(x)).tanh())))


def probabilities(model):
    with torch.no_grad():
        return model.eval()(X).softmax(1)


@pytest.mark.parametrize("build", [one_of_many, lambda: one_of_many(norm=True), Tied])
def test_from_samples_takes_members_and_an_averaged_model(build):
    model, *others = ensemble(build)
    model.train()(X)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for member in others:
        averaged.update_parameters(member)
    samples = SampleCollection.from_samples(model, [averaged.module.state_dict()])
    torch.testing.assert_close(samples.predict(X), probabilities(averaged))
    torch.testing.assert_close(collection([model, *others]).predict_samples(X)[0], probabilities(model))
    with pytest.raises(ValueError, match=r"samples\[0\]: '"):
        SampleCollection.from_samples(model, [averaged.state_dict()])
    for name, twin in (("second.weight", "first.weight"), ("again.running_mean", "norm.running_mean")):
        if build is Tied:
            with pytest.raises(ValueError, match=rf"samples\[0\]: '{name}' and '{twin}' are one tensor"):
                SampleCollection.from_samples(model, [{**(state := model.state_dict()), name: state[twin] + 1}])


def nudged(model):
    """Input of `from_draws`: a context in which the weights are others."""

    @contextlib.contextmanager
    def draw():
        for p in model.parameters():
            p.add_(1.0)
        yield
        for p in model.parameters():
            p.sub_(1.0)

    return draw


def test_draws_are_told_whose_running_statistics_they_get():
    """Statistics of the optimizer's last weights, which are right for layers that were frozen."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.warns(UserWarning, match=r"'1\.running_mean', .*'reestimate'"):
        kept = SampleCollection.from_draws(model, nudged(model), 2, buffers="snapshot")
    assert "1.running_mean" in kept._store.read(0)
    model = nn.Linear(4, 3)
    model.register_buffer("scale", torch.ones(3))  # a buffer that is no statistic is kept, as before
    samples = SampleCollection.from_draws(model, nudged(model), 2, buffers="snapshot")
    assert set(samples._store.read(0)) == {"weight", "bias", "scale"}


def test_saving_weights_that_are_not_finite_leaves_the_file_as_it_was(tmp_path):
    """The stored tensors are in the user's hands, who may have written to them."""
    file = tmp_path / "samples.safetensors"
    samples = collection(ensemble())
    samples.save(file)
    before = file.read_bytes()
    samples[1]["2.bias"][0] = float("inf")
    with pytest.raises(ValueError, match=r"sample 1: '2\.bias' holds numbers that are not finite"):
        samples.save(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("buffers", ["snapshot", "reestimate"])
@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: torch.compile(model, backend="eager")])
def test_a_network_with_a_sample_predicts_what_the_sample_does(buffers, wrap):
    model, _, posterior = collect(Tied(), thinning=2, buffers=buffers)
    target = wrap(Tied())
    if buffers == "reestimate":
        with pytest.raises(RuntimeError, match="have not been re-estimated"):
            posterior.load_into(target, 0)
        posterior.reestimate_buffers(X)
    kept = copied(model.state_dict())
    expected = posterior.predict_samples(X)
    for index in (0, 1, -1):
        posterior.load_into(target, index)
        torch.testing.assert_close(probabilities(target), expected[index])
        assert target.second.weight is target.first.weight
    assert all(torch.equal(kept[n], t) or "mask" in n for n, t in model.state_dict().items())
    stored = posterior[2]["head.weight"].clone()
    with torch.no_grad():
        target.head.weight.add_(1)  # a copy: the sample stays what it is
    assert torch.equal(posterior[2]["head.weight"], stored)
    posterior.load_into(model, 0)
    torch.testing.assert_close(probabilities(model), expected[0])


def test_frozen_weights_come_too_or_must_be_there():
    model, _, stored = collect(frozen(), dtype=torch.bfloat16)
    target = frozen(1).double()
    stored.load_into(target, 1)
    torch.testing.assert_close(target[0].weight.float(), model[0].weight)
    torch.testing.assert_close(target[2].weight.bfloat16(), stored[1]["2.weight"])
    assert target[2].weight.dtype == torch.float64
    model, _, left_out = collect(frozen(), store_frozen=False)
    target = frozen(1)
    before = copied(target.state_dict())
    with pytest.raises(ValueError, match=r"the frozen parameters are not stored there.*'0\.weight'"):
        left_out.load_into(target, 0)
    assert same(before, target.state_dict())
    left_out.load_into(model, 0)
    torch.testing.assert_close(probabilities(model), left_out.predict_samples(X)[0])


class MergingLoRA(nn.Linear):
    """A frozen linear layer with an adapter of rank 2, which its ``train`` merges and unmerges, as loralib's do."""

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


def test_a_layer_that_merges_in_evaluation_mode_is_neither_merged_nor_changed():
    model = nn.Sequential(MergingLoRA())
    weight = model[0].weight.clone()
    _, _, posterior = collect(model)
    outputs = [nn.functional.linear(X, weight + s["0.up"] @ s["0.down"], model[0].bias) for s in posterior]
    assert torch.stack(outputs).std(0).max() > 1e-3
    right = torch.stack(outputs).softmax(-1).mean(0)
    torch.testing.assert_close(posterior.predict(X), right)
    assert model.training
    assert not model[0].merged
    assert torch.equal(model[0].weight, weight)
    merged = copy.deepcopy(model).eval()
    before = copied(merged.state_dict())
    model.eval()
    for use in (lambda: posterior.predict(X), lambda: posterior.load_into(merged, 0)):
        with pytest.raises(ValueError, match=r"its layer '0' has merged its adapter"):
            use()
    assert same(before, merged.state_dict())
    model.train()
    torch.testing.assert_close(posterior.predict(X), right)
    posterior.load_into(merged.train(), 0)
    torch.testing.assert_close(probabilities(merged), posterior.predict_samples(X)[0])
    head = nn.Sequential(MergingLoRA().eval(), nn.Linear(3, 3))  # merged for good: its adapter is not sampled
    head[0].requires_grad_(False)
    assert collect(head)[2].predict(X).shape == (20, 3)


def chain(seed, steps=4, model=None, **options):
    return collect(model or network(seed=seed), steps, **options)[2]


def test_chains_keep_their_numbers_and_average_together(tmp_path):
    chains = [chain(0), chain(1, steps=3), chain(2, path=tmp_path / "c")]
    chains[1].save(tmp_path / "b.safetensors")
    merged = PosteriorSamples.merge([chains[0], tmp_path / "b.safetensors", tmp_path / "c"], network())
    assert merged.chains == [0] * 4 + [1] * 3 + [2] * 4
    assert merged.steps == [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4]
    expected = torch.cat([samples.predict_samples(X) for samples in chains])
    torch.testing.assert_close(merged.predict_samples(X), expected)
    torch.testing.assert_close(merged.predict(X), expected.mean(0))
    merged.save(tmp_path / "all.safetensors")
    loaded = SampleCollection.load(tmp_path / "all.safetensors", network(seed=5))
    assert loaded.chains == merged.chains
    assert all(same(a, b) for a, b in zip(loaded, merged, strict=True))
    for part, samples in zip(loaded.split(), chains, strict=True):
        assert part.steps == samples.steps
        assert all(same(a, b) for a, b in zip(part, samples, strict=True))
    assert SampleCollection.merge([loaded, chain(7)]).chains == [*merged.chains, 3, 3, 3, 3]


def test_a_chain_that_goes_on_does_not_change_what_was_merged():
    model, sampler, running = collect(steps=4, max_samples=4)
    merged = SampleCollection.merge([running, chain(1)])
    before = merged.predict_samples(X)
    train_on(model, sampler, 4)  # thins the running chain
    assert running.steps != [1, 2, 3, 4]
    assert torch.equal(merged.predict_samples(X), before)


def test_reestimated_statistics_stay_with_their_samples(tmp_path):
    chains = [chain(seed, model=network(norm=True, seed=seed), buffers="reestimate") for seed in (0, 1)]
    with pytest.raises(RuntimeError, match=r"sample 0 \(step 1\) have not been re-estimated"):
        SampleCollection.merge(chains).predict(X)
    for samples in chains:
        samples.reestimate_buffers(X)
    merged = SampleCollection.merge(chains)
    expected = torch.cat([samples.predict_samples(X) for samples in chains])
    torch.testing.assert_close(merged.predict_samples(X), expected)
    merged.save(tmp_path / "all.safetensors")
    loaded = SampleCollection.load(tmp_path / "all.safetensors", network(norm=True, seed=3))
    torch.testing.assert_close(loaded.predict_samples(X), expected)
    for part, samples in zip(loaded.split(), chains):
        torch.testing.assert_close(part.predict_samples(X), samples.predict_samples(X))


@pytest.mark.parametrize("stored", [(True, True), (False, False), (True, False), (False, True)])
def test_chains_over_other_frozen_weights_are_refused(stored):
    chains = [chain(0, model=frozen(s), store_frozen=store) for s, store in enumerate(stored)]
    with pytest.raises(ValueError, match=r"'0\.weight', which is not sampled, differs between collections\[0\]"):
        SampleCollection.merge(chains)
    chains = [chain(0, k + 1, frozen(3), store_frozen=store, burn_in=k) for k, store in enumerate(stored)]
    merged = SampleCollection.merge(chains)
    assert set(merged._fixed()) == ({"0.weight", "0.bias"} if any(stored) else set())
    both = torch.cat([samples.predict_samples(X) for samples in chains])
    torch.testing.assert_close(merged.predict_samples(X), both)


def test_a_chain_and_its_copy_are_no_two_chains(tmp_path):
    first, second = chain(0), chain(1)
    first.save(tmp_path / "copy.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SampleCollection.merge([first, second])
    with pytest.warns(UserWarning, match="chains 0 and 2 begin with the same sample") as caught:
        SampleCollection.merge([first, second, tmp_path / "copy.safetensors"], first.model)
    assert caught[0].filename == __file__


def test_the_prediction_as_a_function_of_weights():
    model, _, posterior = collect()
    for log in (False, True):
        predict = posterior.function_of_weights(X, log=log, batch_size=7)
        outputs = posterior.predict_samples(X)
        for k, sample in enumerate(posterior):
            torch.testing.assert_close(predict(sample).exp() if log else predict(sample), outputs[k])
    halfway = {name: (posterior[0][name] + posterior[-1][name]) / 2 for name in posterior[0]}
    one = SampleCollection.from_samples(model, [halfway])
    torch.testing.assert_close(posterior.function_of_weights(X)(halfway), one.predict(X))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_burn_in_that_is_chosen_afterwards(tmp_path, on_disk):
    _, _, posterior = collect(steps=12, thinning=2, path=tmp_path if on_disk else None)
    late = posterior[2:]
    assert (type(late), len(late), late.steps) == (SampleCollection, 4, [6, 8, 10, 12])
    assert posterior[::-2].steps == [12, 8, 4]
    assert late[-1:].steps == [12]
    torch.testing.assert_close(late.predict(X), posterior.predict_samples(X)[2:].mean(0))
    late.save(tmp_path / "late.safetensors")
    assert SampleCollection.load(tmp_path / "late.safetensors", network()).steps == late.steps
    second = collect(network(seed=1), 12, thinning=2)[2]
    merged = SampleCollection.merge([posterior, second])
    cut = SampleCollection.merge([chain[2:] for chain in merged.split()])
    assert (cut.steps, cut.chains) == (late.steps * 2, [0] * 4 + [1] * 4)
    with pytest.raises(RuntimeError, match="no sample to predict with"):
        posterior[9:].predict(X)


def test_a_collection_that_cannot_be_pickled_says_how_it_is_saved():
    _, _, posterior = collect(steps=2)
    for use in (pickle.dumps, copy.deepcopy, lambda value: torch.save(value, io.BytesIO())):
        with pytest.raises(TypeError, match=r"posterior\.save\(path\)"):
            use(posterior)
    again = pickle.loads(pickle.dumps(posterior[:]))
    torch.testing.assert_close(again.predict(X), posterior.predict(X))
