"""pSGLD's second evaluation of the closure, the probe of its correction."""

import pytest
import torch

from learned_samplers import PSGLD

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
