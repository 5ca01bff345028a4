"""Several chains as one collection."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from learned_samplers import PosteriorSamples, SampleCollection, diagnostics

X = torch.linspace(-1, 1, 24).view(6, 4)


def network(hidden=5, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), torch.arange(6) % 3).backward()
        sampler.step()


def chain(seed, steps=4, model=None, **options):
    model = model or network(seed=seed)
    sampler = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    posterior = PosteriorSamples(model, sampler, **options)
    train(model, sampler, steps)
    return posterior


def same(first, second):
    return len(first) == len(second) and all(torch.equal(a[n], b[n]) for a, b in zip(first, second) for n in a)


def test_chains_keep_their_numbers_and_average_together(tmp_path):
    chains = [chain(0), chain(1, steps=3), chain(2, path=tmp_path / "c")]
    chains[1].save(tmp_path / "b.safetensors")
    merged = PosteriorSamples.merge([chains[0], tmp_path / "b.safetensors", tmp_path / "c"], network())
    assert merged.chains == [0] * 4 + [1] * 3 + [2] * 4
    assert merged.steps == [1, 2, 3, 4, 1, 2, 3, 1, 2, 3, 4]
    expected = torch.cat([each.predict_samples(X) for each in chains])
    torch.testing.assert_close(merged.predict_samples(X), expected)
    torch.testing.assert_close(merged.predict(X), expected.mean(0))
    merged.save(tmp_path / "all.safetensors")
    loaded = SampleCollection.load(tmp_path / "all.safetensors", network(seed=5))
    assert loaded.chains == merged.chains
    assert same(loaded, merged)
    assert [each.steps for each in loaded.split()] == [each.steps for each in chains]
    assert all(same(a, b) for a, b in zip(loaded.split(), chains))
    again = SampleCollection.merge([loaded, chain(7)])
    assert again.chains == [*merged.chains, 3, 3, 3, 3]


def test_rhat_is_over_chains():
    generator = torch.Generator().manual_seed(0)

    def drawn(shift):
        model = network()
        rows = [
            {name: torch.randn(p.shape, generator=generator) + shift for name, p in model.named_parameters()}
            for _ in range(60)
        ]
        return SampleCollection.from_samples(model, rows)

    close, apart = ([drawn(shift) for shift in shifts] for shifts in ((0, 0, 0), (0, 0, 4)))
    for chains, low, high in ((close, 0.9, 1.1), (apart, 1.5, 9)):
        merged = SampleCollection.merge(chains)
        values = diagnostics.split_rhat(merged)
        np.testing.assert_allclose(values, diagnostics.split_rhat(chains))
        assert low < np.median(values) < high
        assert merged.to_arviz().posterior.sizes["chain"] == 3


def test_a_chain_that_goes_on_does_not_change_what_was_merged():
    running = chain(0, max_samples=4)
    merged = SampleCollection.merge([running, chain(1)])
    before = merged.predict_samples(X)
    model = running.model
    train(model, running._sampler, 4)  # thins the running chain
    assert running.steps != [1, 2, 3, 4]
    assert torch.equal(merged.predict_samples(X), before)


def test_reestimated_statistics_stay_with_their_samples(tmp_path):
    def normalised(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))

    chains = [chain(seed, model=normalised(seed), buffers="reestimate") for seed in (0, 1)]
    with pytest.raises(RuntimeError, match=r"sample 0 \(step 1\) have not been re-estimated"):
        SampleCollection.merge(chains).predict(X)
    for each in chains:
        each.reestimate_buffers(X)
    merged = SampleCollection.merge(chains)
    expected = torch.cat([each.predict_samples(X) for each in chains])
    torch.testing.assert_close(merged.predict_samples(X), expected)
    merged.save(tmp_path / "all.safetensors")
    loaded = SampleCollection.load(tmp_path / "all.safetensors", normalised(3))
    torch.testing.assert_close(loaded.predict_samples(X), expected)
    for part, each in zip(loaded.split(), chains):
        torch.testing.assert_close(part.predict_samples(X), each.predict_samples(X))


def test_what_does_not_belong_together_is_refused(tmp_path):
    first = chain(0)
    with pytest.raises(ValueError, match="collections must hold at least one collection"):
        SampleCollection.merge([])
    with pytest.raises(ValueError, match=r"shapes\['0\.weight'\]=\[5, 4\] differs from \[6, 4\] in collections\[1\]"):
        SampleCollection.merge([first, chain(0, model=network(6))])
    with pytest.raises(ValueError, match=r"collections\[1\] holds no sample"):
        SampleCollection.merge([first, chain(0, steps=0)])
    first.save(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"model must be given to read collections\[0\]"):
        SampleCollection.merge([tmp_path / "a.safetensors"])

    def frozen(seed):
        model = network(seed=seed)
        model[0].requires_grad_(False)
        return model

    with pytest.raises(ValueError, match=r"'0\.weight', which is not sampled, differs between collections\[0\] and"):
        SampleCollection.merge([chain(0, model=frozen(0)), chain(0, model=frozen(1))])
    for stored in ((False, False), (True, False), (False, True)):
        chains = [chain(0, model=frozen(s), store_frozen=store) for s, store in enumerate(stored)]
        with pytest.raises(
            ValueError, match=r"'0\.weight', which is not sampled, differs between collections\[0\] and"
        ):
            SampleCollection.merge(chains)
        chains = [chain(0, k + 1, model=frozen(3), store_frozen=store, burn_in=k) for k, store in enumerate(stored)]
        merged = SampleCollection.merge(chains)
        assert set(merged._fixed()) == ({"0.weight", "0.bias"} if any(stored) else set())
        both = torch.cat([each.predict_samples(X) for each in chains])
        torch.testing.assert_close(merged.predict_samples(X), both)
    with pytest.raises(ValueError, match=r"buffers='snapshot' differs from 'refuse' in collections\[1\]"):
        SampleCollection.merge([chain(0, buffers="snapshot"), first])


def test_a_chain_and_its_copy_are_no_two_chains(tmp_path):
    first, second = chain(0), chain(1)
    first.save(tmp_path / "copy.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SampleCollection.merge([first, second])
    with pytest.warns(UserWarning, match="chains 0 and 2 begin with the same sample") as caught:
        SampleCollection.merge([first, second, tmp_path / "copy.safetensors"], first.model)
    assert caught[0].filename == __file__
