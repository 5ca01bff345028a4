"""A folder of samples that is opened again: a chain goes on in it only where it is known to be the same chain."""

import pytest
import torch
from torch import nn

from learned_samplers import SGHMC, PosteriorSamples, SampleCollection

X, Y = torch.linspace(-1, 1, 16).view(8, 2), torch.arange(8) % 2


def build(path, seed=0, optimizer=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    model = nn.Linear(2, 2)
    sampler = optimizer(model.parameters(), lr=0.1)
    return model, sampler, PosteriorSamples(model, sampler, burn_in=3, path=path, **options)


def train(model, sampler, steps):
    for _ in range(steps):
        sampler.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        sampler.step()


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, lambda p, lr: SGHMC(p, lr, num_data=8)])
def test_a_script_that_is_run_again_does_not_mix_two_chains(tmp_path, optimizer):
    """An optimizer of torch counts no steps, and its burn-in was taken to be over."""
    model, sampler, first = build(tmp_path, optimizer=optimizer)
    train(model, sampler, 5)
    first.detach()
    before = files(tmp_path)
    model, sampler, second = build(tmp_path, seed=1, optimizer=optimizer)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"holds a chain up to step 5: .* load the state dicts.* restart\(\)"):
            train(model, sampler, 1)
    assert second.steps == [4, 5]
    assert files(tmp_path) == before
    assert SampleCollection.load(tmp_path, nn.Linear(2, 2)).steps == [4, 5]


def test_an_optimizer_without_steps_is_named(tmp_path):
    model, sampler, first = build(tmp_path)
    train(model, sampler, 4)
    first.detach()
    model, sampler, _ = build(tmp_path)
    with pytest.raises(RuntimeError, match=r"the sampler \(SGD\) counts no steps, so that its place in a chain is not"):
        train(model, sampler, 1)


def test_it_goes_on_from_its_state_dict_and_begins_again_after_restart(tmp_path):
    whole, sampler, expected = build(None)
    train(whole, sampler, 9)
    model, sampler, first = build(tmp_path)
    train(model, sampler, 5)
    state = first.state_dict(), model.state_dict()
    first.detach()
    model, sampler, resumed = build(tmp_path, seed=1)
    model.load_state_dict(state[1])
    resumed.load_state_dict(state[0])
    train(model, sampler, 4)
    assert resumed.steps == expected.steps == [4, 5, 6, 7, 8, 9]
    assert all(torch.equal(a[name], b[name]) for a, b in zip(resumed, expected, strict=True) for name in a)
    resumed.detach()
    model, sampler, again = build(tmp_path, seed=1)
    again.restart()
    train(model, sampler, 4)
    assert again.steps == [4], "with a burn-in of its own"


def test_a_folder_without_a_sample_is_no_chain(tmp_path):
    model, sampler, first = build(tmp_path)
    train(model, sampler, 2)
    first.detach()
    model, sampler, second = build(tmp_path)
    train(model, sampler, 4)
    assert second.steps == [4]
