"""Named random streams and stateless minibatches."""

import math

import torch

from meta_tasks.random_streams import Minibatches, derive_seed, generator, log_uniform


def test_a_key_fixes_the_numbers_and_any_other_key_gives_others():
    keys = [(0, 1, 2, "a"), (0, 1, 2, "b"), (0, 2, 1, "a"), (0, 12, "a"), ("0", 1, 2, "a"), (0, 1, 2)]
    seeds = [derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert seeds == [derive_seed(*key) for key in keys]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, 1, 2, "noise") == 7255181489087588267  # the same in every process and version
    assert torch.equal(torch.randn(3, generator=generator(1, "a")), torch.randn(3, generator=generator(1, "a")))


def test_an_epoch_visits_every_point_once_in_a_fresh_order():
    batches = Minibatches(3, 12, 4)
    epochs = [batches.rows(3 * epoch, 3).flatten() for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(12))
    assert not torch.equal(epochs[0], epochs[1])


def test_a_minibatch_depends_on_the_step_alone():
    forward = [Minibatches(3, 10, 4).rows(step, 1) for step in range(9)]
    batches = Minibatches(3, 10, 4)
    for step in reversed(range(9)):
        assert torch.equal(batches.rows(step, 1), forward[step])
    assert Minibatches(3, 5, 64).rows(0, 1).shape == (1, 5)  # no more points than there are


def test_log_uniform_has_a_uniform_logarithm():
    stream = generator(0, "horizons")
    draws = torch.tensor([log_uniform(10, 1000, stream) for _ in range(2000)])
    assert 10 <= draws.min() < draws.max() <= 1000
    logs = draws.log()
    # mean of U(log 10, log 1000), standard error (range/√12)/√2000 = 0.03: five of them
    assert abs(logs.mean() - math.log(100)) < 0.15
    assert abs((draws < 100).double().mean() - 0.5) < 0.06
