"""pSGLD's second evaluation of the closure, the probe of its correction."""

import pytest
import torch

from learned_samplers import PSGLD
from learned_samplers.priors import Relevance

NAN = float("nan")


def test_the_correction_of_a_coordinate_without_gradient_is_zero():
    p = torch.zeros(3, requires_grad=True)
    sampler = PSGLD([p], 0.01, 100, correction="probe")

    def closure():
        p.grad = torch.tensor([1.0, 0.0, 0.0])
        return p.sum().detach()

    for _ in range(3):
        sampler.step(closure)
    assert p.isfinite().all()


def test_the_probe_replays_the_random_numbers_of_the_closure():
    """Under dropout the two evaluations see the same mask, or the slope would be mask noise over the probe's size."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(20, 1))
    sampler = PSGLD(model.parameters(), 1e-3, 100, correction="probe", eps=1e-3)
    x, y = torch.randn(32, 10), torch.randn(32, 1)

    def closure():
        sampler.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        with torch.no_grad():
            (inputs,) = sampler.evaluate(closure).groups
        assert max(slope.abs().max().item() for slope in inputs.per_parameter["curvature"]) < 20
        sampler.step(closure)


@pytest.mark.parametrize("broken", ["gradient", "loss"])
def test_what_is_not_finite_at_the_probe_changes_nothing(broken):
    p, calls = torch.ones(3, requires_grad=True), []
    sampler = PSGLD([("w", p)], 0.01, 100, correction="probe")

    def closure():
        calls.append(1)
        wrong = None if len(calls) % 2 else broken
        p.grad = torch.full_like(p, NAN if wrong == "gradient" else 1.0)
        return torch.tensor(NAN if wrong == "loss" else 1.0)

    with pytest.raises(FloatingPointError, match="'w' is not finite" if broken == "gradient" else "at the probe"):
        sampler.step(closure)
    assert torch.equal(p, torch.ones(3))
    assert sampler.step_count == 0


class Router(torch.nn.Module):
    """Its first weight says which of the other two the loss has."""

    def __init__(self):
        super().__init__()
        self.router, self.first, self.second = (torch.nn.Parameter(torch.tensor([w])) for w in (0.01, 1.0, 1.0))

    def forward(self):
        expert = self.first.square() if self.router.item() > 0 else 50 * self.second.square()
        return 0.5 * (self.router.square() + expert).sum()


def test_a_probe_that_reaches_another_expert_takes_no_gradient_of_it():
    torch.manual_seed(4)  # the probe's signs turn the router
    model = Router()
    sampler = PSGLD(model.parameters(), 1e-3, 1, missing_gradient="skip", correction="probe", probe_size=0.02)

    def closure():
        sampler.zero_grad()
        loss = model()
        loss.backward()
        return loss

    with torch.no_grad():
        (inputs,) = sampler.evaluate(closure).groups
    assert [id(p) for p in inputs.params] == [id(model.router), id(model.first)]
    router, first = inputs.per_parameter["curvature"]
    assert router.item() == pytest.approx(1.0, rel=1e-4)
    assert abs(first.item()) == pytest.approx(50.0)  # from 1 to 0 within a probe of 0.02


@pytest.mark.parametrize("settings", [{}, {"correction": "probe"}])
def test_a_prior_by_input_is_taken_where_no_energy_is_read(settings):
    model = torch.nn.Linear(3, 2)
    if settings:
        with pytest.raises(ValueError, match="must not be by input with correction='probe'"):
            PSGLD(model.named_parameters(), 0.01, 10, prior_precision=Relevance(), **settings)
    else:
        assert len(PSGLD(model.named_parameters(), 0.01, 10, prior_precision=Relevance()).param_groups) == 2
