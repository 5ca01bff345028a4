"""``higher`` differentiates through the chain: against finite differences, and equal to the sampler itself."""

import higher
import pytest
import torch
from torch import nn

import learned_samplers.differentiable  # noqa: F401  (makes the samplers known to higher)
from learned_samplers import CyclicalSchedule
from tests.harness import SAMPLERS, STOCHASTIC, closure_for, flat, small_data, small_network

# The root of a covariance is not differentiated through, nor are a step of one length and another optimizer.
_REFUSED = ("L2E-matrix", "SGLRW", "WhitenedSGHMC")
_REFUSED += ("AdaptedSGHMC-whitened", "AdaptedSGHMC-adam", "AdaptedSGHMC-matrix")
NAMES = pytest.mark.parametrize("name", [name for name in STOCHASTIC if name not in _REFUSED])


def _unrolled(name, lr, start, steps=6):
    """Validation loss after a few steps from ``start``, as a function of lr, in double precision."""
    model = small_network().double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(start)
    x, y = small_data()
    x = x.double()
    sampler = SAMPLERS[name](model.parameters(), num_data=50.0, prior_precision=1.0)
    torch.manual_seed(4)
    with higher.innerloop_ctx(model, sampler, override={"lr": [lr]}) as (network, twin):
        for _ in range(steps):
            twin.step(nn.functional.cross_entropy(network(x), y))
        return nn.functional.cross_entropy(network(x.flip(0) * 0.9), y.flip(0))


@NAMES
def test_the_gradient_with_respect_to_lr_is_the_finite_difference(name):
    lr = torch.tensor(0.03, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(_unrolled(name, lr, 0.1), lr)
    h = 1e-6
    with torch.no_grad():
        ahead, behind = (torch.tensor(0.03 + s * h, dtype=torch.float64) for s in (1, -1))
    difference = (_unrolled(name, ahead, 0.1) - _unrolled(name, behind, 0.1)) / (2 * h)
    assert slope.item() == pytest.approx(difference.item(), rel=1e-4)
    assert slope.item() != 0


@NAMES
def test_the_gradient_with_respect_to_the_start_is_the_finite_difference(name):
    model = small_network().double()
    x, y = small_data()
    x = x.double()

    def outcome(shift):
        sampler = SAMPLERS[name](model.parameters(), num_data=50.0)
        torch.manual_seed(4)
        with higher.innerloop_ctx(model, sampler) as (network, twin):
            first = next(iter(network.parameters()))
            loss = nn.functional.cross_entropy(network(x), y) + (shift * first).sum()
            twin.step(loss)
            for _ in range(3):
                twin.step(nn.functional.cross_entropy(network(x), y))
            return nn.functional.cross_entropy(network(-x), y)

    shift = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(outcome(shift), shift)
    h = 1e-6
    step = torch.zeros(5, 3, dtype=torch.float64)
    step[2, 1] = h
    difference = (outcome(step) - outcome(-step)) / (2 * h)
    assert slope[2, 1].item() == pytest.approx(difference.item(), rel=1e-3, abs=1e-8)


@NAMES
@pytest.mark.filterwarnings("ignore:torch's random generator is in a state that it had")  # for the twin: it is meant
def test_the_twin_makes_the_same_chain(name):
    model = small_network()
    x, y = small_data()
    sampler = SAMPLERS[name](model.parameters())
    sampler.step(closure_for(model, sampler))  # so that there is state to take over
    torch.manual_seed(8)
    with higher.innerloop_ctx(model, sampler, copy_initial_weights=False) as (network, twin):
        for _ in range(5):
            twin.step(nn.functional.cross_entropy(network(x), y))
        unrolled = torch.cat([p.detach().flatten() for p in network.parameters()])
    torch.manual_seed(8)
    for _ in range(5):
        sampler.step(closure_for(model, sampler))
    assert torch.allclose(unrolled, flat(model), atol=1e-6)


def test_dead_units_do_not_poison_the_gradient():
    """A coordinate whose gradient is exactly zero has √V = 0, whose derivative is infinite."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[0].bias, -100.0)
    x, y = small_data()
    lr = torch.tensor(0.01, requires_grad=True)
    with higher.innerloop_ctx(model, STOCHASTIC["PSGLD"](model.parameters()), override={"lr": [lr]}) as (network, twin):
        for _ in range(2):
            twin.step(nn.functional.cross_entropy(network(x), y))
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(network(x), y), lr)
    assert slope.isfinite()


def _scheduled(model):
    sampler = SAMPLERS["SGHMC"](model.parameters())
    CyclicalSchedule(sampler, cycle_length=10)
    return sampler


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda model: SAMPLERS["HMC"](model.parameters()), "HMC needs a closure"),
        (lambda model: SAMPLERS["PSGLD-probe"](model.parameters()), "PSGLD needs a closure"),
        (lambda model: SAMPLERS["MCLMC"](model.parameters()), "MCLMC needs a closure"),
        (lambda model: SAMPLERS["SGHMC"](model.bfloat16().parameters()), "float32 copies"),
        (lambda model: SAMPLERS["SGLRW"](model.parameters()), "SGLRW cannot be differentiated"),
        (_scheduled, "CyclicalSchedule"),
    ],
)
def test_refusals(make, named):
    model = small_network()
    with pytest.raises(ValueError, match=named):
        higher.innerloop_ctx(model, make(model)).__enter__()


class _WithIdle(nn.Module):
    """A network with weights that its output does not depend on."""

    def __init__(self, frozen):
        super().__init__()
        self.used, self.idle = small_network(), nn.Linear(2, 2).requires_grad_(not frozen)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize(
    ("frozen", "choice", "fine"), [(False, "error", False), (True, "error", True), (False, "skip", True)]
)
def test_a_parameter_that_the_loss_does_not_reach_is_an_error_or_skipped(frozen, choice, fine):
    x, y = small_data()
    model = _WithIdle(frozen)
    sampler = SAMPLERS["SGHMC"](model.named_parameters(), missing_gradient=choice)
    with higher.innerloop_ctx(model, sampler) as (network, twin):
        loss = nn.functional.cross_entropy(network(x), y)
        if fine:
            twin.step(loss)
        else:
            with pytest.raises(ValueError, match=r"the loss does not depend on parameter 'idle\.weight'"):
                twin.step(loss)
