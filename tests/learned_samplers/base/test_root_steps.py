"""Tensors that lack gradients in the steps in which the roots of covariances are made have roots all the same."""

import copy

import pytest
import torch

from learned_samplers import WhitenedSGHMC
from learned_samplers.base import matrices
from tests.harness import same


def make(params, **settings):
    return WhitenedSGHMC(params, num_data=100, missing_gradient="skip", generator=torch.Generator(), **settings)


def two():
    return [torch.nn.Parameter(torch.zeros(4, 5)) for _ in range(2)]


def odd(step):
    return step % 2 == 1


def chain(steps=60, has_gradient=odd, *, resumed=None, fails=None):
    """Of two matrices, the second with gradients in some steps only; in step ``resumed`` a copy of it goes on."""
    params = two()
    sampler = make(params)
    sampler.generator.manual_seed(0)
    for step in range(steps):
        if step == resumed:
            params = [torch.nn.Parameter(p.detach().clone()) for p in params]
            saved, sampler = copy.deepcopy(sampler.state_dict()), make(params)
            sampler.load_state_dict(saved)
        a, b = params
        if step == fails:
            before, state = b.detach().clone(), copy.deepcopy(sampler.state_dict())
            a.grad, b.grad = None, torch.full((4, 5), 3e37)
            b.data.fill_(3.4e38)
            with pytest.raises(FloatingPointError, match="nothing was changed"):
                sampler.step()
            b.data.copy_(before)
            assert same(sampler.state_dict(), state)
        slopes = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(step)) * torch.arange(1.0, 6)
        a.grad, b.grad = slopes[0], slopes[1] if has_gradient(step) else None
        sampler.step()
    return sampler, a, b


def test_a_matrix_that_lacks_gradients_in_every_tenth_step_is_whitened_all_the_same(monkeypatch):
    made = []
    ordinary = matrices._inverse_root
    monkeypatch.setattr(matrices, "_inverse_root", lambda x: made.append(tuple(x.shape)) or ordinary(x))
    sampler, _, b = chain()
    covariance, root = sampler.state[b]["whitening"]
    torch.testing.assert_close(root, ordinary(covariance), rtol=0.35, atol=0.15)
    alone = [shape for shape in made if len(shape) == 3]
    assert 4 <= len(alone) <= 5  # steps 19, 29, 39, 49 and 59: those of one matrix by itself


def irregular(start, end):
    return lambda step: not start <= step < end and step != 20


@pytest.mark.parametrize("has_gradient", [odd, irregular(4, 13), irregular(20, 21)])
@pytest.mark.parametrize("resumed", [4, 8, 10, 12, 17, 34])
def test_it_resumes_bit_for_bit(resumed, has_gradient):
    whole, again = chain(40, has_gradient), chain(40, has_gradient, resumed=resumed)
    assert all(map(torch.equal, whole[1:], again[1:]))


@pytest.mark.parametrize("fails", [7, 29])
def test_a_step_that_fails_counts_as_no_step_in_which_roots_were_made(fails):
    """Else the same step, taken again, would find the root of the second matrix made."""
    (sampler, a, b), (whole, c, d) = chain(41, fails=fails), chain(41)
    assert list(sampler.roots.last.values()) == list(whole.roots.last.values())
    assert torch.equal(a, c)
    assert torch.equal(b, d)


def test_one_that_joins_and_lacks_them_is_whitened_after_ten_steps():
    a, b = two()
    sampler = make([a])
    for step in range(40):
        if step == 13:
            sampler.add_param_group({"params": [b]})
        a.grad, b.grad = torch.randn(4, 5), torch.randn(4, 5) if odd(step) else None
        sampler.step()
    assert not torch.equal(sampler.state[b]["whitening"][1, 0], torch.eye(5))


def test_a_compiled_step_refuses_what_it_could_not_keep():
    torch._dynamo.reset()
    params = two()
    sampler = WhitenedSGHMC(params, torch.tensor(0.002), 1000, missing_gradient="skip")
    step = torch.compile(sampler.step, backend="eager", fullgraph=True)
    params[0].grad = torch.ones(4, 5)
    with pytest.raises(Exception, match=r"outside of[\s\S]*torch.compile"):
        step()
