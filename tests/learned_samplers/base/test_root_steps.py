"""Tensors that lack gradients in the steps in which the roots of covariances are made have roots all the same."""

import copy

import pytest
import torch

from learned_samplers import L2E
from learned_samplers.base import whitening
from tests.harness import same


def _odd_chain(saved=None, steps=60):
    """Of two matrices, the second with gradients in odd steps only."""
    a, b = (torch.nn.Parameter(torch.zeros(4, 5)) for _ in range(2))
    sampler = L2E([a, b], num_data=100, missing_gradient="skip", generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        if saved is not None and step == saved:
            again = [torch.nn.Parameter(p.detach().clone()) for p in (a, b)]
            other = L2E(again, num_data=100, missing_gradient="skip", generator=torch.Generator())
            other.load_state_dict(copy.deepcopy(sampler.state_dict()))
            (a, b), sampler = again, other
        noise = torch.Generator().manual_seed(step)
        slope, other_slope = (torch.randn(4, 5, generator=noise) * torch.arange(1.0, 6) for _ in range(2))
        a.grad, b.grad = slope, other_slope if step % 2 else None
        sampler.step()
    return sampler, a, b


def test_a_matrix_that_lacks_gradients_in_every_tenth_step_is_whitened_all_the_same(monkeypatch):
    made = []
    ordinary = whitening._inverse_root
    monkeypatch.setattr(whitening, "_inverse_root", lambda x: made.append(tuple(x.shape)) or ordinary(x))
    sampler, _, b = _odd_chain()
    covariance, root = sampler.state[b]["whitening"]
    torch.testing.assert_close(root, ordinary(covariance), rtol=0.35, atol=0.15)
    alone = [shape for shape in made if len(shape) == 3]
    assert 4 <= len(alone) <= 5  # steps 19, 29, 39, 49 and 59: those of one matrix by itself


def test_it_resumes_bit_for_bit():
    _, a, b = _odd_chain()
    for saved in (17, 34):
        _, again, other = _odd_chain(saved)
        assert torch.equal(a, again)
        assert torch.equal(b, other)


def test_one_that_joins_and_lacks_them_is_whitened_after_ten_steps():
    a, b = (torch.nn.Parameter(torch.zeros(4, 5)) for _ in range(2))
    sampler = L2E([a], num_data=100, missing_gradient="skip")
    for step in range(40):
        if step == 13:
            sampler.add_param_group({"params": [b]})
        a.grad = torch.randn(4, 5)
        b.grad = torch.randn(4, 5) if step % 2 else None
        sampler.step()
    assert not torch.equal(sampler.state[b]["whitening"][1, 0], torch.eye(5))


@pytest.mark.parametrize("late", [(4, 13), (20, 21)])
@pytest.mark.parametrize("cut", [4, 8, 10, 12, 17])
def test_a_chain_that_is_resumed_goes_on_bit_for_bit_with_irregular_gradients(cut, late):
    slopes = torch.randn(40, 2, 6, 5, generator=torch.Generator().manual_seed(3))

    def make():
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(6, 5)) for _ in range(2)]
        return params, L2E(params, num_data=1000, temperature=0.0, missing_gradient="skip")

    def run(params, sampler, start, end):
        for step in range(start, end):
            params[0].grad = slopes[step, 0].clone()
            params[1].grad = slopes[step, 1].clone() if (step < late[0] or step >= late[1]) and step != 20 else None
            sampler.step()

    whole, sampler = make()
    run(whole, sampler, 0, 30)
    first, before = make()
    run(first, before, 0, cut)
    second, after = make()
    for p, q in zip(second, first, strict=True):
        p.data.copy_(q.detach())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    run(second, after, cut, 30)
    assert all(torch.equal(p, q) for p, q in zip(whole, second, strict=True))


@pytest.mark.parametrize("fails", [7, 29])
def test_a_step_that_fails_counts_as_no_step_in_which_roots_were_made(fails):
    """Else the same step, taken again, would find the root of the second matrix made."""

    def chain(fails=None):
        a, b = (torch.nn.Parameter(torch.zeros(4, 5)) for _ in range(2))
        sampler = L2E([a, b], num_data=64, missing_gradient="skip", generator=torch.Generator().manual_seed(1))
        for step in range(41):
            slopes = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(step))
            if step == fails:
                before, state = b.detach().clone(), copy.deepcopy(sampler.state_dict())
                a.grad, b.grad = None, torch.full((4, 5), 3e37)
                b.data.fill_(3.4e38)
                with pytest.raises(FloatingPointError, match="nothing was changed"):
                    sampler.step()
                b.data.copy_(before)
                assert same(sampler.state_dict(), state)
            a.grad, b.grad = slopes[0], slopes[1] if step % 2 else None
            sampler.step()
        return b.detach(), sampler.roots.last

    (ours, last), (whole, expected) = chain(fails), chain()
    assert list(last.values()) == list(expected.values())
    assert torch.equal(ours, whole)


def test_a_compiled_step_refuses_what_it_could_not_keep():
    torch._dynamo.reset()
    params = [torch.nn.Parameter(torch.randn(6, 5)) for _ in range(2)]
    sampler = L2E(params, lr=torch.tensor(0.002), num_data=1000, missing_gradient="skip")
    step = torch.compile(sampler.step, backend="eager", fullgraph=True)
    params[0].grad = torch.ones(6, 5)
    with pytest.raises(Exception, match=r"outside of[\s\S]*torch.compile"):
        step()
