"""`suggest_prior` and `suggest_temperature`: the likelihoods along the path against a regression's closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learned_samplers import HMC, SGHMC, AdaptedSGHMC, CyclicalSchedule
from learned_samplers.checks import suggest_prior, suggest_temperature
from learned_samplers.plots import held_out_path
from learned_samplers.priors import FanIn, GammaHyperprior
from tests.harness import UNBIASED

ROWS, INPUTS = 60, 20
CROSS_ENTROPY = nn.functional.cross_entropy


def gaussian(outputs, targets):
    """Mean NLL of targets with a noise of one."""
    return 0.5 * (targets - outputs[:, 0]).square().mean() + 0.5 * math.log(2 * math.pi)


def regression(signal):
    """Rows to train on and to hold out, of a linear function with weights of this size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS + 200, INPUTS, generator=generator)
    weights = signal * torch.randn(INPUTS, generator=generator)
    y = x @ weights + torch.randn(len(x), generator=generator)
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


def exact_nll(train, held_out, precision, temperature):
    """NLL of held-out rows under the tempered posterior N(μ, T(XᵀX + λ)⁻¹)."""
    (x, y), (inputs, targets) = train, held_out
    inverse = torch.linalg.inv(x.T @ x + precision * torch.eye(INPUTS))
    variance = 1 + temperature * ((inputs @ inverse) * inputs).sum(1)
    mean = inputs @ inverse @ x.T @ y
    return -torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets).mean().item()


def linear():
    torch.manual_seed(1)
    return nn.Linear(INPUTS, 1, bias=False)


def make(named, cls=UNBIASED, **settings):
    """A chain fast enough for paths of some thousand steps."""
    return cls(named, num_data=ROWS, **{"lr": 0.2, "prior_precision": 1.0, "momentum_decay": 0.3, **settings})


class WithoutPrior(UNBIASED):
    """Planted: it does not take the precision that it is given."""

    def hyper(self, group, **options):
        return super().hyper(group, **options) | {"prior_precision": 1.0}


FACTORS = (100.0, 10.0, 1.0, 0.1)


def prior_report(cls=UNBIASED, signal=0.1, **options):
    train, held_out = regression(signal)
    options = {"factors": FACTORS, "held_out": held_out, "steps": 3000, "batch_size": ROWS} | options
    return suggest_prior(linear(), gaussian, train, lambda named: make(named, cls), **options)


def is_exact(report, signal=0.1):
    train, held_out = regression(signal)
    return all(abs(row.nll - exact_nll(train, held_out, row.value, 1.0)) < 0.06 for row in report.rows)


def test_likelihoods_along_the_path_are_those_of_the_posteriors():
    # Minibatches of as many rows as there are, with replacement, add a tenth to the variance of some directions.
    assert is_exact(prior_report())
    assert not is_exact(prior_report(WithoutPrior))


def test_of_temperatures_too():
    train, held_out = regression(0.5)
    options = dict(temperatures=(3.0, 1.0, 0.1), held_out=held_out, steps=4000, batch_size=ROWS)
    report = suggest_temperature(linear(), gaussian, train, make, **options)
    for row in report.rows:
        assert row.nll == pytest.approx(exact_nll(train, held_out, 1.0, row.value), abs=0.06)
    assert report.present == 1.0


def test_small_weights_need_a_strong_prior_and_large_ones_do_not_decide():
    strong = prior_report(signal=0.05)
    assert strong.decided
    assert strong.suggested == strong.setting == 100.0
    assert "take 100.0" in str(strong)
    large = prior_report(signal=1.0, factors=(1.02, 1.0, 0.98))
    assert not large.decided
    assert large.present == 1.0
    assert "do not decide" in str(large) or large.suggested == 1.0


def test_a_chain_that_is_still_learning_says_so():
    train, held_out = regression(1.0)
    options = dict(temperatures=(1.0, 0.3), held_out=held_out, batch_size=ROWS)
    report = suggest_temperature(linear(), gaussian, train, lambda named: make(named, lr=0.0003), steps=400, **options)
    assert not report.settled
    assert "still learning" in str(report)
    settled = suggest_temperature(linear(), gaussian, train, make, steps=2400, **options)
    assert settled.settled
    assert "still learning" not in str(settled)


def test_the_path_ends_where_it_gets_worse():
    train, held_out = regression(0.05)
    factors = tuple(10.0**power for power in range(3, -5, -1))
    report = suggest_prior(linear(), gaussian, train, make, factors=factors, held_out=held_out, steps=4000)
    assert len(report.rows) < len(factors)
    assert report.steps < 4000


@pytest.mark.parametrize(
    ("prior", "text"), [({"weight": 2.0}, "ByName({'weight': 20.0})"), (FanIn(2.0), "FanIn(gain=0.632456, bias=10)")]
)
def test_a_prior_of_parts_is_scaled(prior, text):
    train, held_out = regression(0.05)
    report = suggest_prior(
        linear(), gaussian, train, lambda named: make(named, prior_precision=prior), held_out=held_out,
        factors=(10.0, 1.0), steps=1000,
    )  # fmt: skip
    assert repr(report.setting) == text


def test_loaders_warm_ups_and_shares_of_the_rows():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 4, generator=generator), torch.arange(120) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=32, generator=generator)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()

    def adapted(named):
        return AdaptedSGHMC(named, lr=0.01, num_data=120, warmup_steps=50, prior_precision=1.0)

    report = suggest_prior(model, CROSS_ENTROPY, loader, adapted, held_out=(x, y), steps=400, factors=(3.0, 1.0))
    assert (report.held_out, report.sampler) == (120, "AdaptedSGHMC")
    report = suggest_temperature(model, CROSS_ENTROPY, (x, y), adapted, held_out=0.25, steps=400)
    assert report.held_out == 30
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    axes = held_out_path(report)
    assert axes.get_xlabel() == "temperature"


def sghmc(named, **settings):
    return SGHMC(named, 0.1, 100, **{"prior_precision": 1.0, **settings})


REFUSED = [
    (dict(factors=()), TypeError, "factors must be two numbers"),
    (dict(factors=(1.0, 0.0)), ValueError, "factors must be greater than 0, got 0.0"),
    (dict(held_out=0.0), ValueError, "held_out"),
    (dict(held_out=0.999), ValueError, "held_out=0.999 leaves no row"),
    (dict(steps=10), ValueError, "steps"),
    (dict(steps=120), ValueError, "steps=120 are too few"),
    (dict(batch_size=0), ValueError, "batch_size"),
    (dict(seed=-1), ValueError, "seed"),
    (dict(loss=3), TypeError, "loss"),
    (dict(loss=nn.CrossEntropyLoss(reduction="sum")), ValueError, "loss must be the mean over examples"),
    (dict(loss=nn.CrossEntropyLoss(reduction="none")), ValueError, "loss must return one number"),
    (dict(model=3), TypeError, "model"),
    (dict(sampler=3), TypeError, "sampler"),
    (dict(sampler=lambda named: torch.optim.SGD(named, 0.1)), TypeError, "sampler must return a sampler"),
    (dict(sampler=lambda named: sghmc(named, prior_precision=0.0)), ValueError, "flat prior"),
    (dict(sampler=lambda named: sghmc(named, prior_precision=GammaHyperprior())), ValueError, "which is sampled"),
    (dict(sampler=lambda named: HMC(named, 0.1, 100, prior_precision=1.0)), ValueError, "without a closure"),
    (
        dict(sampler=lambda named: AdaptedSGHMC(named, num_data=100, total_steps=10**4, prior_precision=1.0)),
        ValueError,
        "steps=200 end before the sampler has warmed up",
    ),
    (dict(data=3), TypeError, "data"),
]


@pytest.mark.parametrize(("changed", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(changed, error, message):
    arguments = dict(
        model=nn.Linear(4, 3), loss=CROSS_ENTROPY, data=(torch.randn(20, 4), torch.arange(20) % 3), sampler=sghmc
    )
    with pytest.raises(error, match=message):
        suggest_prior(**{**arguments, "steps": 200, **changed})


def test_a_figure_needs_a_report():
    with pytest.raises(TypeError, match="report must be a HeldOutReport, got int"):
        held_out_path(3)


def test_loaders_need_held_out_rows_and_cycles_are_refused():
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    with pytest.raises(ValueError, match="held_out must be inputs and targets"):
        suggest_prior(nn.Linear(4, 3), CROSS_ENTROPY, DataLoader(TensorDataset(x, y)), sghmc)

    def cyclical(named):
        sampler = sghmc(named)
        CyclicalSchedule(sampler, cycle_length=10)
        return sampler

    with pytest.raises(ValueError, match="must sample at every step"):
        suggest_temperature(nn.Linear(4, 3), CROSS_ENTROPY, (x, y), cyclical)
