"""Evolution strategies on objectives whose gradients are known."""

import math

import pytest
import torch

from meta_tasks.estimators import AntitheticES, NoiseReuseES, Shaping, antithetic_members, perturbation
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks import family_named

HORIZON = Horizon(20, 20, samples=4)
NONE = Shaping("none")


def estimate(estimator, objective, weights, iteration=0, seed=0):
    """The trainer's work for a function (P, n) → (P,) in place of an inner loop."""
    names = [name for job in estimator.jobs(seed, iteration) for name in job.pairs]
    losses = objective(antithetic_members(weights, seed, names, estimator.sigma)).view(-1, 2)
    return estimator.gradient(seed, names, losses, len(weights))


@pytest.mark.parametrize("pairs", [1, 5])
def test_on_a_linear_function_the_estimate_is_exact_along_the_perturbations(pairs):
    # L₊ − L₋ = 2·aᵀη whatever σ and φ: the estimate is (1/N) Σ η ηᵀ a / σ², with nothing else in it
    a, weights = torch.randn(6, dtype=torch.float64), torch.randn(6)
    estimator = AntitheticES(3.0, pairs, HORIZON, shaping=NONE)
    gradient = estimate(estimator, lambda members: members.double() @ a, weights, iteration=7)
    steps = torch.stack([perturbation(0, (7, i), 3.0, 6) for i in range(pairs)]).double()
    # members are formed in single precision
    torch.testing.assert_close(gradient, (steps.T @ (steps @ a)) / 9 / pairs, rtol=1e-5, atol=1e-5)
    even = estimate(estimator, lambda members: (members - weights).square().sum(1), weights)
    assert even.abs().max() < 1e-4  # of an even function nothing is left


def test_a_pair_with_a_failed_member_does_not_count():
    estimator = AntitheticES(0.1, 3, HORIZON, shaping=NONE)
    names = [(0, 0), (0, 1), (0, 2)]
    losses = torch.tensor([[1.0, 2.0], [math.nan, 1.0], [3.0, 1.0]])
    gradient = estimator.gradient(0, names, losses, 5)
    kept = estimator.gradient(0, [names[0], names[2]], losses[[0, 2]], 5)
    assert torch.equal(gradient, kept)
    assert gradient.isfinite().all()
    assert gradient.norm() > 0
    assert not estimator.gradient(0, names, torch.full((3, 2), math.inf), 5).any()


def test_perturbations_are_named_and_normal():
    steps = torch.stack([perturbation(0, (i, 0), 0.5, 50) for i in range(100)])
    assert torch.equal(steps[3], perturbation(0, (3, 0), 0.5, 50))
    assert not any(torch.equal(steps[3], perturbation(*keys, 0.5, 50)) for keys in ((1, (3, 0)), (0, (3, 1))))
    assert abs(steps.std() - 0.5) < 0.025  # 5000 draws: standard error 0.005
    torch.testing.assert_close(antithetic_members(torch.ones(50), 0, [(3, 0)], 0.5).mean(0), torch.ones(50))


@pytest.mark.parametrize(
    ("shaping", "expected"),
    [
        (NONE, [-1.0, 6.0, 0.0]),
        (Shaping("none", 2.0), [-1.0, 2.0, 0.0]),
        (Shaping("mean"), [-1 / 1.5, 6 / 5.0, 0.0]),
        (Shaping("mean", 1.0), [-1 / 1.5, 1.0, 0.0]),
        # ranks of 1, 2, 8, 2, 4, 4 from 0: 0, 1.5, 5, 1.5, 3.5, 3.5, over 5
    ],
)
def test_shapings(shaping, expected):
    losses = torch.tensor([[1.0, 2.0], [8.0, 2.0], [4.0, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(shaping(losses), torch.tensor(expected, dtype=torch.float64))
    # Losses below zero weigh as those above, and a mean of 0 does not divide.
    negative = Shaping("mean")(torch.tensor([[-1.0, -1.5], [-1e-9, 1e-9]], dtype=torch.float64))
    torch.testing.assert_close(negative, torch.tensor([0.4, -0.2], dtype=torch.float64))


def test_jobs_of_es_have_fresh_names_and_one_horizon_an_iteration():
    estimator = AntitheticES(0.1, 6, Horizon(10, 90, samples=2), pairs_per_task=3)
    jobs = [estimator.jobs(5, iteration) for iteration in range(20)]
    names = [name for batch in jobs for job in batch for name in job.pairs]
    assert len(set(names)) == 6 * 20
    assert len({job.tasks for batch in jobs for job in batch}) == 2 * 20
    assert all(len({job.steps for job in batch}) == 1 for batch in jobs)
    assert all(job.steps == job.schedule.steps and job.slot is None for batch in jobs for job in batch)
    assert len({batch[0].steps for batch in jobs}) > 10
    assert jobs[3] == estimator.jobs(5, 3)


@pytest.mark.parametrize(("tasks_per_job", "sizes"), [(2, [8, 8]), (4, [16])])
def test_tasks_that_share_a_job_change_no_number(tasks_per_job, sizes):
    """Pairs, tasks, perturbations and losses are those of a job for each task, up to rounding."""
    network = ("mlp", {"hidden": (5,), "activation": "relu"})
    family = family_named("digits", architectures=(network,), sizes=(4,), lrs=(0.02, 0.05), small_data_share=0.5)
    rule, evaluated = L2ERule("paper", "paper", (4,), alpha_scale=0.3, beta_scale=0.3), []
    for count in (1, tasks_per_job):
        estimator = AntitheticES(0.1, 8, Horizon(12, 12, samples=3), pairs_per_task=2, tasks_per_job=count)
        jobs, evaluator = estimator.jobs(3, 5), estimator.evaluator(family, rule, "bma", 3)
        results = [evaluator.run(job, rule.initial_weights(0)) for job in jobs]
        evaluated.append((jobs, results, estimator.estimate(3, jobs, results, rule.num_weights)))
    (apart, separate, expected), (together, batched, gradient) = evaluated
    for attribute in ("tasks", "pairs"):
        names = [name for job in apart for name in getattr(job, attribute)]
        assert [name for job in together for name in getattr(job, attribute)] == names
    assert [2 * len(job.pairs) for job in together] == sizes
    kinds = [[kind for result in results for kind in result.kinds] for results in (separate, batched)]
    assert kinds[0] == kinds[1]
    losses = [torch.cat([result.losses for result in results]) for results in (separate, batched)]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    assert len(losses[0].unique()) == 16
    torch.testing.assert_close(gradient, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())
    assert {kind for result in batched for kind in result.curves} == set(kinds[0])


def test_slots_of_noise_reuse_hold_several_tasks_and_go_on_from_their_state():
    estimator = NoiseReuseES(0.1, 8, Horizon(20, 20, samples=4), 5, pairs_per_task=2, tasks_per_job=2)
    family = family_named("digits", architectures=(("mlp", {"hidden": (5,)}),), sizes=(4,))
    rule = L2ERule("residual", "paper", (4,))
    reference, half = (estimator.evaluator(family, rule, "bma", 0) for _ in range(2))
    for iteration in range(5):
        jobs = estimator.jobs(0, iteration)
        assert [len(job.tasks) for job in jobs] == [2, 2]
        assert len({keys for job in jobs for keys in job.tasks}) == 4
        if iteration == 2:
            half.load_state_dict(reference.state_dict(), jobs)
        results = [reference.run(job, rule.initial_weights(0)).losses for job in jobs]
        if iteration >= 2:
            again = [half.run(job, rule.initial_weights(0)).losses for job in jobs]
            assert all(map(torch.equal, results, again))


def test_noise_reuse_keeps_a_perturbation_for_an_episode_and_staggers_the_slots():
    estimator = NoiseReuseES(0.1, 4, Horizon(20, 20, samples=4), 5)
    history = [estimator.jobs(0, iteration) for iteration in range(13)]
    for slot in range(4):
        jobs = [batch[slot] for batch in history]
        starts = [i for i, job in enumerate(jobs) if job.start]
        # slot k starts k windows late into its first episode of four windows, then takes whole ones
        assert starts[:3] == [0, 4 - slot, 8 - slot]
        assert jobs[0].skip == 5 * slot
        assert all(job.skip == 0 for job in jobs[1:])
        for i, job in enumerate(jobs):
            same = [earlier for earlier in jobs[: i + 1] if earlier.pairs == job.pairs]
            assert job.start == (len(same) == 1)
            assert job.steps == 5
            assert job.slot == slot
    # the place does not depend on having asked for the iterations before
    assert NoiseReuseES(0.1, 4, Horizon(20, 20, samples=4), 5).jobs(0, 12) == history[12]
    assert estimator.jobs(0, 2) == history[2]


def test_noise_reuse_over_an_episode_is_es_on_the_mean_of_the_running_losses():
    # A one-dimensional "inner loop" x ← x·φ with loss x at the end of each window: the derivative of the mean is known.
    estimator = NoiseReuseES(0.02, 1, Horizon(20, 20, samples=4), 5, shaping=NONE)
    phi, episodes = torch.tensor([0.9]), 1500
    total, x, gradients = 0.0, None, []
    for iteration in range(4 * episodes):
        (job,) = estimator.jobs(0, iteration)
        members = antithetic_members(phi, 0, job.pairs, 0.02).double()
        x = torch.ones(2, 1, dtype=torch.float64) if job.start else x
        x = x * members**job.steps
        total = total + estimator.gradient(0, job.pairs, x.view(1, 2), 1)
        if iteration % 4 == 3:
            gradients.append(total / 4)
            total = 0.0
    gradients = torch.cat(gradients)
    exact = sum(5 * w * 0.9 ** (5 * w - 1) for w in (1, 2, 3, 4)) / 4
    # E of antithetic ES on x^n is the derivative up to σ²: n³φ^(n−3)σ²/2 here, 0.8 % at n = 20
    assert abs(gradients.mean().item() - exact) < 0.01 * exact + 4.5 * gradients.std().item() / math.sqrt(episodes)
    assert gradients.std().item() / math.sqrt(episodes) < 0.05 * exact
