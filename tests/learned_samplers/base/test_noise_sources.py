"""Threads share torch's global generator and forks begin with a copy of it; a generator of one's own is the way out."""

import multiprocessing
import os
import threading

import pytest
import torch

from learned_samplers import SGLD


def chain(generator=None, steps=200):
    """Where a chain is that only its noise moves."""
    p = torch.zeros(5, requires_grad=True)
    sampler = SGLD([p], 0.1, 10, generator=generator)
    for _ in range(steps):
        p.grad = torch.zeros(5)
        sampler.step()
    return p.detach().clone()


def own(seed):
    return torch.Generator().manual_seed(seed)


def test_threads_with_generators_of_their_own_draw_what_each_draws_alone():
    alone = [chain(own(number)) for number in range(3)]
    found = {}

    def run(number):
        found[number] = chain(own(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        assert torch.equal(found[number], expected)


def test_threads_without_share_one_stream():
    """What the two draw together is what one chain draws of the global generator: each takes its turns at it."""
    torch.manual_seed(3)
    first = chain(steps=1)
    second = chain(steps=1)
    torch.manual_seed(3)
    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(chain(steps=1)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], first)
    assert torch.equal(found[1], second)
    assert not torch.equal(first, second)


def _child(queue, seed):
    torch.set_num_threads(1)
    queue.put(chain(None if seed is None else own(seed), steps=3).tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("seeds", [(None, None), (0, 1)])
def test_forks_draw_the_same_numbers_unless_each_has_its_generator(seeds):
    context = multiprocessing.get_context("fork")
    found = []
    for seed in seeds:
        queue = context.SimpleQueue()
        process = context.Process(target=_child, args=(queue, seed))
        process.start()
        found.append(queue.get())
        process.join()
    assert (found[0] == found[1]) == (seeds == (None, None))
