"""Truncated back-propagation: its gradient is that of higher's twin; it learns, resumes bit for bit, and refuses."""

import higher
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
from learned_samplers import MetaSGMCMC
from learned_samplers.learned.meta_fields import build_meta_network
from learned_samplers.learned.network import flatten, layers_of
from meta_tasks.estimators import truncated
from meta_tasks.estimators.truncated import TruncatedBackpropagation
from meta_tasks.inner_loop.chains import ChainUnroll, MeanLoss
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.objectives.stein import stein_score
from meta_tasks.random_streams import generator
from meta_tasks.rules.base import Hyperparameters
from meta_tasks.rules.learned import L2ERule, MetaSGMCMCRule
from meta_tasks.tasks import family_named
from meta_tasks.tasks.gaussians import GaussianFamily, GaussianTask
from tests.meta_tasks import toy_runs

N = 100
SCALES = {"energy_scale": 3.0, "gradient_scale": 2.0}


def task(noise=0.0, d=3, dtype=torch.float64):
    basis = torch.linalg.qr(torch.randn(d, d, generator=generator(0), dtype=dtype))[0]
    precision = basis @ torch.diag(torch.linspace(0.5, 2.0, d, dtype=dtype)) @ basis.T
    hyper = Hyperparameters(lr=0.1, num_data=N, prior_precision=2.0)
    return GaussianTask(torch.ones(d, dtype=dtype) / 10, precision, hyper, noise=noise)


def random_weights(rule):
    """Weights of a network that does something, f_Q and f_D apart."""
    network = build_meta_network(rule.specification()["hidden"], zero_last=False, generator=generator(1))
    return 0.3 * flatten(layers_of(network)).detach()


# ------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("curvature", [True, False])
def test_the_gradient_on_the_tape_has_the_hessian(curvature):
    problem = task()
    theta = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    loss, gradient = MeanLoss.apply(theta, problem, torch.zeros(4, 1, dtype=torch.int64), curvature)
    direction = torch.randn(4, 3, dtype=torch.float64)
    (pulled,) = torch.autograd.grad((gradient * direction).sum() + 2 * loss.sum(), theta)
    expected = 2 * gradient + (direction @ problem.precision if curvature else 0.0)
    torch.testing.assert_close(pulled, expected.detach(), rtol=1e-7, atol=1e-7)


class Chains(nn.Module):
    """The task's loss, one a chain, for higher."""

    def __init__(self, problem, start):
        super().__init__()
        self.theta, self.problem = nn.Parameter(start.clone()), problem

    def forward(self):
        away = self.theta - self.problem.mean
        return 0.5 * (away @ self.problem.precision * away).sum(-1)


def by_higher(problem, rule, weights, start, seeds, steps, every, schedule):
    """The window's gradient by higher's differentiable twin of the optimizer, term by term as the paper writes it."""
    hyper, model = problem.hyperparameters, Chains(problem, start)
    network = rule.network(weights).to(start.dtype)
    sampler = MetaSGMCMC(
        model.parameters(),
        hyper.lr,
        N,
        network=network,
        momentum_decay=hyper.momentum_decay,
        prior_precision=2.0,
        settings=SCALES,
    )
    streams = [generator(seed, "noise") for seed in seeds]
    sampler.noise_like = lambda p: torch.stack([torch.randn(p.shape[-1], generator=s) for s in streams]).to(p.dtype)

    def direction(samples):
        return N * (samples - problem.mean) @ problem.precision + 2.0 * samples

    cross, collected = [], []
    with higher.innerloop_ctx(model, sampler) as (fast, twin):
        for step in range(1, steps + 1):
            twin.step(fast(), detach_inputs=True)
            theta = fast.theta
            if step % every == 0:
                with torch.no_grad():
                    push = stein_score(theta) + direction(theta)
                cross.append((push * theta).sum(-1).mean() / N)
            if schedule.collects(step):
                collected.append(theta)
        states = torch.stack(collected, 1)
        with torch.no_grad():
            push = stein_score(states) + direction(states)
        total = torch.stack(cross).mean() + (push * states).sum(-1).mean() / N
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(network.parameters()))])


def window(problem, rule, weights, schedule, seeds, *, steps=12, every=3, curvature=True):
    unroll = ChainUnroll(problem, rule, schedule, seeds, curvature=curvature)
    start = unroll.parameter.to(problem.mean.dtype)
    unroll.replace_states(start, (torch.zeros_like(start),))
    return unroll, start, unroll.backpropagate(weights, steps, every)


def test_a_windows_gradient_is_that_of_highers_twin():
    problem, rule = task(), MetaSGMCMCRule((5,), **SCALES)
    weights, schedule, seeds = random_weights(rule).double(), Schedule(12, 4, 2), list(range(6))
    unroll, start, gradient = window(problem, rule, weights, schedule, seeds)
    expected = by_higher(problem, rule, weights, start, seeds, 12, 3, schedule)
    # Weights that neither network reads have no gradient in both.
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())
    assert not unroll.parameter.requires_grad
    # The planted fault: without the energy's curvature it is another gradient.
    without_curvature = window(problem, rule, weights, schedule, seeds, curvature=False)[2]
    assert (without_curvature - expected).norm() > 0.05 * expected.norm()


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_exact_draws_at_any_temperature_are_not_pushed_anywhere(temperature):
    """The derivative of KL[q‖p] in the logarithm of a scale is 0 where q is p, which is exp(−U/T)."""
    d, count = 5, 400
    gaussian = GaussianTask(torch.zeros(d), torch.eye(d), Hyperparameters(0.1, N, temperature=temperature))
    unroll = ChainUnroll(gaussian, MetaSGMCMCRule(), Schedule(10, 0, 5), list(range(count)))
    scale = torch.ones((), requires_grad=True)
    draws = torch.randn(count, d, generator=generator(3)) * (temperature / N) ** 0.5
    unroll.parameter, unroll._due = draws * scale, (True, False)
    unroll.objective.start_window()
    unroll._read(*gaussian.loss_and_gradient(unroll.parameter.detach(), unroll._indices()))
    total = unroll.objective.close_window(N, unroll.counts)
    (by_scale,) = torch.autograd.grad(total, scale)
    assert abs(by_scale.item() * N) < 0.1 * d  # the law at T = 1 in the place of that at 0.1 would give −0.9·d
    energy = unroll.objective.loss().mean().item() * N
    assert energy == pytest.approx(d / 2, rel=0.1)  # of U/T


def test_windows_keep_earlier_samples_of_the_chains_without_their_gradient():
    problem, rule = task(noise=0.3), MetaSGMCMCRule((5,), **SCALES)
    weights, schedule = random_weights(rule).double(), Schedule(24, 4, 4)
    unroll = window(problem, rule, weights, schedule, list(range(5)))[0]
    assert len(unroll.objective.kept) == 2
    assert unroll.backpropagate(weights, 12, 3) is not None
    assert len(unroll.objective.kept) == 5
    assert not any(sample.requires_grad for sample in unroll.objective.kept)
    assert unroll.losses().shape == (5,)
    with pytest.raises(ValueError, match="steps=1"):
        unroll.backpropagate(weights, 1, 1)


# ------------------------------------------------------------------ the trainer


FAMILY = GaussianFamily(dimensions=(2, 3), num_data=100, lrs=(0.02,))


def tbptt(**settings):
    options = {"every": 2, "chains": 6, "slots": 2, **settings}
    return TruncatedBackpropagation(Horizon(12, 20, samples=4), 4, **options)


def trainer(folder=None, iterations=12, estimator=None, rule=None, family=FAMILY, **settings):
    rule = rule or MetaSGMCMCRule((4,), energy_scale=10.0)
    settings = {"objective": "stein_kl", "learning_rate": 0.01, **settings}
    return toy_runs.trainer(folder, iterations, estimator or tbptt(), family, rule, **settings)


def run(**arguments):
    made = trainer(**arguments)
    made.run()
    made.close()
    return made


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path):
    reference = run()
    for stop in (3, 4, 9, 12):
        part = run(folder=tmp_path, iterations=stop)
    assert torch.equal(part.weights, reference.weights)
    assert part.history["loss"] == reference.history["loss"]
    assert part.weights.sub(part.rule.initial_weights(0)).abs().max() > 0.02
    assert any(part.executor.evaluator.pools.values())


def test_a_state_is_not_changed_by_what_comes_after():
    made = run(iterations=4)
    evaluator = made.executor.evaluator
    state = evaluator.state_dict()
    before = {slot: len(kept["pool"]) for slot, kept in state.items()}
    assert any(before.values())
    for pool in evaluator.pools.values():
        pool.append(pool[0])
    assert {slot: len(kept["pool"]) for slot, kept in state.items()} == before


def test_worker_processes_give_the_weights_that_one_process_gives(tmp_path):
    run(folder=tmp_path, iterations=5, executor=toy_runs.workers(1))
    assert torch.equal(run(folder=tmp_path, iterations=8).weights, run(iterations=8).weights)


def test_replay_starts_inner_loops_at_earlier_states(monkeypatch):
    starts, original = [], ChainUnroll.replace_states
    monkeypatch.setattr(truncated, "ENSEMBLES", 3)
    monkeypatch.setattr(ChainUnroll, "replace_states", lambda *args: starts.append(args[1]) or original(*args))
    made = trainer(iterations=25)
    made.run()
    assert len(starts) >= 2
    assert all(len(pool) == 3 for pool in made.executor.evaluator.pools.values())


def reached(rule, weights, problem):
    """KL to the posterior from the Gaussian with the moments of where sixty chains are after a horizon."""
    unroll = ChainUnroll(problem, rule, Schedule(20, 0, 5), list(range(60)))
    unroll.advance(weights.detach().expand(60, -1))
    x, precision = unroll.parameter.double(), problem.precision.double() * problem.hyperparameters.num_data
    gaussian = MultivariateNormal(x.mean(0), torch.cov(x.T))
    return kl_divergence(gaussian, MultivariateNormal(problem.mean.double(), precision_matrix=precision)).item()


def test_it_learns_to_come_closer_to_the_posterior():
    """SGHMC at a small step has not arrived after the horizon; a larger curl has."""
    family = GaussianFamily(dimensions=(2,), num_data=100, lrs=(0.02,), noise=0.0, curvatures=(1.0, 1.0), offset=0.5)
    made = trainer(family=family, iterations=60, estimator=tbptt(chains=10, slots=1), learning_rate=0.03)
    made.run()
    problems = [family.task("test", i) for i in range(3)]
    before, after = (
        sum(reached(made.rule, weights, problem) for problem in problems) / 3
        for weights in (made.rule.initial_weights(0), made.averaged)
    )
    assert sum(made.history["failed"]) == 0
    assert after < 0.6 * before


def test_other_rules_are_trained_so_on_images():
    for rule in (L2ERule("residual", "adaptive", (4,)), MetaSGMCMCRule((4,))):
        made = trainer(rule=rule, family=family_named("digits"))
        before = made.weights.detach().clone()
        assert made.step().gradient_norm > 0
        assert not torch.equal(made.weights, before)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_chains_that_go_down_are_replayed_at_any_temperature(temperature):
    """One energy is compared, U/(N·T): at T = 0.1 the loss alone would make every chain look run away."""
    family = family_named(
        "digits",
        temperatures=(temperature,),
        prior_precisions=(1.0,),
        lrs=(0.05,),
        architectures=(("mlp", {"hidden": (8,), "activation": "relu"}),),
    )
    estimator, rule = TruncatedBackpropagation(Horizon(45, 45, samples=3), 15, chains=4, slots=1), MetaSGMCMCRule()
    evaluator, weights = estimator.evaluator(family, rule, "stein_kl", 0), rule.initial_weights(0)
    for iteration in range(2):
        (job,) = estimator.jobs(0, iteration)
        evaluator.run(job, weights)
    assert len(evaluator.pools[0]) == 2
