"""A random closure is refused by what samples the law of the full data; what changes a loss for good is not."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn

from learned_samplers import HMC, MCLMC, PSGLD
from tests.harness import SAMPLERS, flat

N = 100


class Mean:
    """The mean of N unit Gaussians: variance T/N. With ``batch``, of a fresh minibatch in every evaluation."""

    def __init__(self, batch: int | None = None, chains: int = 1, scale: float = 1.0):
        self.data = scale * torch.randn(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.x = torch.zeros(chains, 1, dtype=torch.float64, requires_grad=True)
        self.batch, self.calls, self.shift = batch, 0, 0.0

    def losses(self) -> Tensor:
        self.calls += 1
        self.x.grad = None
        chosen = self.data if self.batch is None else self.data[torch.randint(N, (self.batch,))]
        losses = 0.5 * (self.x - chosen).square().mean(1) + self.shift
        losses.sum().backward()
        return losses.detach()

    def loss(self) -> Tensor:
        return self.losses()[0]


def hmc(problem: Mean, **settings):
    return HMC([problem.x], 0.2, N, **{"leapfrog_steps": 5, **settings})


def variance(sampler, problem, steps=150, skip=20):
    """Over T/N, of all chains."""
    draws = []
    for _ in range(steps):
        sampler.step(problem.losses)
        draws.append(problem.x.detach().clone())
    return torch.stack(draws[skip:]).var().item() * N


def test_a_fresh_minibatch_is_refused_and_the_full_data_have_the_right_variance(monkeypatch):
    torch.manual_seed(0)
    full = Mean(chains=200)
    assert variance(hmc(full), full) == pytest.approx(1, abs=0.05)
    fresh = Mean(batch=50, chains=200)
    sampler = hmc(fresh)
    sampler.step(fresh.losses)
    before, saved = fresh.x.detach().clone(), copy.deepcopy(sampler.state_dict())
    with pytest.raises(ValueError, match=r"not deterministic.*minibatch.*dropout"):
        sampler.step(fresh.losses)
    assert torch.equal(fresh.x, before)
    assert sampler.state_dict()["param_groups"] == saved["param_groups"]
    assert sampler.step_count == 1
    # What it is refused for: half of the data a time make the law two to four times too wide.
    monkeypatch.setattr(HMC, "_refuse_random", lambda *_: None)
    assert 2 < variance(hmc(fresh), fresh) < 5


def test_no_evaluation_is_spent():
    problem = Mean()
    sampler = hmc(problem)
    for _ in range(4):
        sampler.step(problem.loss)
    assert problem.calls == 4 * 6


def network(dropout: float = 0.5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    x = torch.randn(N, 3)
    y = x.sum(1, keepdim=True)

    def closure():
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    return model, closure


def until_refused(sampler, closure, weights, message=r"not deterministic.*minibatch.*dropout"):
    """The weights and the groups' values before the step that is refused, which is one of the first forty."""
    for _ in range(40):
        before = weights()
        groups = [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in sampler.param_groups]
        try:
            sampler.step(closure)
        except ValueError as error:
            assert re.search(message, str(error))  # noqa: PT017
            return before, groups
    pytest.fail("no step was refused")


@pytest.mark.parametrize("make", [lambda p: HMC(p, 0.01, N), lambda p: MCLMC(p, 1e-3, N)], ids=["HMC", "MCLMC"])
def test_dropout_that_is_left_on_is_refused_and_evaluation_mode_goes_on(make):
    model, closure = network()
    sampler = make(model.parameters())
    before, groups = until_refused(sampler, closure, lambda: flat(model))
    assert torch.equal(flat(model), before)
    assert [{k: v for k, v in group.items() if k != "params"} for group in sampler.param_groups] == groups
    model.eval()
    sampler = make(model.parameters())
    for _ in range(40):
        sampler.step(closure)
    assert sampler.step_count == 40


def _write(problem, sampler):
    problem.x.data = problem.x.data + 1.0


def _load(problem, sampler):
    sampler.load_state_dict(sampler.state_dict())
    problem.shift = 1.0


def _more_data(problem, sampler):
    problem.data = torch.cat([problem.data, problem.data + 1])
    sampler.param_groups[0]["num_data"] = 2 * N


def _cooler(problem, sampler):
    problem.shift = 1.0
    sampler.param_groups[0]["temperature"] = 0.5


def _joins(problem, sampler):
    problem.extra = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    problem.shift = 1.0
    sampler.add_param_group({"params": [problem.extra], "missing_gradient": "skip"})


def _gibbs(problem, sampler):
    problem.shift = 1.0
    sampler.target_changed()


def _nothing(problem, sampler):
    problem.data = problem.data[torch.randperm(N)]  # rounding alone


@pytest.mark.parametrize("change", [_write, _load, _more_data, _cooler, _joins, _gibbs, _nothing])
@pytest.mark.parametrize("chains", [0, 1])
def test_what_changes_the_loss_for_good_is_not_refused(change, chains):
    problem = Mean()
    sampler = hmc(problem)
    closure = problem.losses if chains else problem.loss
    for _ in range(2):
        sampler.step(closure)
    change(problem, sampler)
    for _ in range(2):
        sampler.step(closure)
    problem.shift += 0.5  # and then nothing has changed that it knows of
    with pytest.raises(ValueError, match="not deterministic"):
        sampler.step(closure)


def test_one_chain_of_many_is_enough_and_a_learning_rate_is_no_excuse():
    problem = Mean(chains=3)
    sampler = hmc(problem)
    sampler.step(problem.losses)
    problem.shift = torch.tensor([0.0, 0.0, 0.5])
    sampler.param_groups[0]["lr"] *= 0.5
    with pytest.raises(ValueError, match="not deterministic"):
        sampler.step(problem.losses)


# ---------------------------------------------------------------- MCLMC


def linear(rows, chains: int = 0):
    """Linear regression with ten weights, on the data that ``rows()`` chooses."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(N, 10, generator=generator, dtype=torch.float64)
    targets = torch.randn(N, generator=generator, dtype=torch.float64)
    w = torch.zeros(*((chains,) if chains else ()), 10, dtype=torch.float64, requires_grad=True)

    def closure():
        w.grad = None
        chosen = rows()
        losses = 0.5 * (w @ features[chosen].T - targets[chosen]).square().mean(-1)
        losses.sum().backward()
        return losses.detach()

    return w, closure


@pytest.mark.parametrize("chains", [0, 20])
def test_mclmc_without_its_heuristics_refuses_minibatches(chains):
    torch.manual_seed(0)
    w, closure = linear(lambda: torch.randint(N, (20,)), chains)
    sampler = MCLMC([w], 0.05, N)
    before, (group,) = until_refused(sampler, closure, lambda: w.detach().clone())
    assert torch.equal(w, before)
    assert sampler.param_groups[0]["tally"] == group["tally"]
    heuristic = MCLMC([w], 0.05, N, preconditioner="gradient_noise")
    for _ in range(40):
        heuristic.step(closure)


@pytest.mark.parametrize("lr", [1e-6, 0.05, 1.0])
@pytest.mark.parametrize("start", [0.0, 30.0])
def test_mclmc_goes_on_with_the_full_data_also_at_long_steps_and_from_afar(lr, start):
    torch.manual_seed(0)
    w, closure = linear(lambda: torch.arange(N))
    w.data += start
    sampler = MCLMC([w], lr, N)
    for _ in range(200):
        sampler.step(closure)
    assert sampler.param_groups[0]["tally"]["unexplained"] < 0.2


#: Those that evaluate one minibatch at two places.
TWO_PLACES = {"PSGLD": lambda p: PSGLD(p, 0.001, N, correction="probe"), "KineticL2E": SAMPLERS["KineticL2E"]}


@pytest.mark.parametrize("name", TWO_PLACES)
def test_an_iterators_minibatches_are_refused_and_replayed_ones_are_taken(name):
    make = TWO_PLACES[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    batches = (rows for _ in range(100) for rows in torch.randperm(N, generator=generator).split(20))
    w, closure = linear(lambda: next(batches))
    sampler = make([w])
    before, (group,) = until_refused(sampler, closure, lambda: w.detach().clone(), r"not deterministic.*iterator")
    assert torch.equal(w, before)
    assert sampler.param_groups[0].get("tally") == group.get("tally")
    for rows in (lambda: torch.randint(N, (20,)), lambda: torch.arange(N)):
        w, closure = linear(rows)
        sampler = make([w])
        for _ in range(60):
            sampler.step(closure)
    w, closure = linear(lambda: batch)
    sampler = make([w])
    for _ in range(50):
        batch = next(batches)  # taken before the step
        sampler.step(closure)
