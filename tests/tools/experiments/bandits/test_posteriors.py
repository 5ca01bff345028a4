"""Thompson sampling: networks side by side, and posteriors that learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from experiments.bandits.experiment import play
from experiments.bandits.posteriors import Bootstrap, Budget, Chains, FunctionSpace, History, forward, prior_draw
from experiments.bandits.problems import wheel

SMALL = Budget(contexts=300, members=4, hidden=(16,), steps=10)
LEARNING = [FunctionSpace, Bootstrap, Chains]


def rounds(count=300, seed=0, delta=0.5):
    return wheel(delta, count, torch.Generator().manual_seed(seed))


def test_members_are_networks_of_their_own():
    tensors = prior_draw((3, 5, 4, 2), 6, torch.Generator().manual_seed(0))
    x = torch.randn(7, 3)
    outputs = forward(tensors, x)
    for m in range(6):
        hidden = (x @ tensors[0][m] + tensors[1][m]).relu()
        hidden = (hidden @ tensors[2][m] + tensors[3][m]).relu()
        torch.testing.assert_close(outputs[m], hidden @ tensors[4][m] + tensors[5][m])


@pytest.mark.parametrize("make", LEARNING)
def test_likelihood_is_of_the_arm_that_was_chosen(make):
    bandit = rounds(20)
    posterior = make(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    arms = torch.arange(20) % 5
    history.add(arms[:12], bandit.rewards[:12, 0])
    batch = torch.tensor([0, 5, 11, 5])
    predictions = torch.randn(4, 4, 5)
    losses = posterior.losses(predictions, history, batch)
    for b, t in enumerate(batch):
        normal = torch.distributions.Normal(predictions[:, b, arms[t]], 0.3)
        constant = torch.tensor(0.3 * (2 * torch.pi) ** 0.5).log()
        torch.testing.assert_close(losses[:, b], -normal.log_prob(bandit.rewards[t, 0]) - constant)
    assert history.minibatch(200, torch.Generator()).max() == 11


def test_a_member_is_drawn_for_every_context():
    bandit = rounds(2000)
    posterior = Bootstrap(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for m in range(4):  # member m likes arm m
            posterior.tensors[-1][m, 0, m] = 1e3
    counts = posterior.choose(bandit.contexts).bincount(minlength=5)
    assert counts[4] == 0
    assert (counts[:4] - 500).abs().max() < 4.5 * (2000 * 3 / 16) ** 0.5


@pytest.mark.parametrize("make", [FunctionSpace, Chains])
def test_the_number_of_data_is_that_of_what_was_seen(make):
    bandit = rounds(50)
    posterior = make(bandit.contexts, 5, 0.3, SMALL, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    history.add(torch.zeros(30, dtype=torch.long), bandit.rewards[:30, 0])
    posterior.update(history)
    assert {group["num_data"] for group in posterior.sampler.param_groups} == {30.0}
    assert all(t.isfinite().all() for t in posterior.tensors)


def test_prior_of_the_chains_is_that_of_the_first_draws():
    """With next to no data (a noise without limit) the chains stay draws of the prior."""
    bandit = rounds(10)
    budget = replace(SMALL, members=200, sghmc_lr=5e-5)
    posterior = Chains(bandit.contexts, 5, 30.0, budget, torch.Generator().manual_seed(0))
    history = History(bandit.contexts)
    history.add(torch.zeros(1, dtype=torch.long), torch.zeros(1))
    before = [t.detach().clone() for t in posterior.tensors]
    for _ in range(20):
        posterior.update(history)
    for old, new, into in zip(before, posterior.tensors, (2, 2, 16, 16), strict=True):
        assert (old * new).mean() / old.square().mean() < 0.5  # they have moved
        assert new.var().item() == pytest.approx(2 / into, rel=0.15)


@pytest.mark.parametrize("make", LEARNING)
def test_posteriors_learn_the_wheel(make):
    """Well below uniform choice; a posterior that is never trained (the planted fault) is not."""
    bandit, budget = rounds(), replace(SMALL, steps=20, bootstrap_lr=1e-2)
    learned = bandit.relative_regret(play(bandit, make, budget, 50.0, 5.0, 1))[-1].item()

    class Untrained(make):
        def update(self, history):
            pass

    fault = bandit.relative_regret(play(bandit, Untrained, budget, 50.0, 5.0, 1))[-1].item()
    assert learned < 60 < fault


def test_play_sees_no_reward_of_another_arm():
    """Rewards of arms that are not chosen, and of rounds to come, may be anything."""
    bandit = rounds(100)
    arms = play(bandit, Bootstrap, SMALL, 50.0, 5.0, 3)
    seen = torch.zeros_like(bandit.rewards, dtype=torch.bool).scatter(1, arms[:, None], True)
    hidden = torch.where(seen, bandit.rewards, float("nan"))
    assert torch.equal(play(replace(bandit, rewards=hidden), Bootstrap, SMALL, 50.0, 5.0, 3), arms)


def test_fewer_rounds_than_first_pulls():
    assert play(rounds(7), Bootstrap, SMALL, 50.0, 5.0, 0).tolist() == [0, 1, 2, 3, 4, 0, 1]
