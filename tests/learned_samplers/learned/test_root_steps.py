"""Tensors that lack gradients in the steps in which the roots of covariances are made have roots all the same."""

import copy

import torch

from learned_samplers import L2E
from learned_samplers.learned import whitening


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
