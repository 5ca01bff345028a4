"""The cyclical schedule: the published curve, the two phases, and the law across the jump between cycles."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from learned_samplers import SGHMC, SGLD, CyclicalSchedule, CyclicalSGMCMC
from tests.harness import closure_for, flat, small_network


def _track(sampler, steps, after=lambda: None):
    seen = []
    p = sampler.param_groups[0]["params"][0]
    for _ in range(steps):
        p.grad = torch.zeros_like(p)
        sampler.step()
        seen.append((sampler.cycle, sampler.is_sampling))
        after()
    return seen


def test_the_learning_rate_follows_the_published_formula():
    k, lr0 = 8, 0.5
    sampler = CyclicalSGMCMC([torch.zeros(1, requires_grad=True)], lr0, 100, cycle_length=k, exploration_ratio=0.5)
    for step in range(1, 20):
        hyper = sampler.hyper(sampler.param_groups[0])
        assert hyper["lr"] == pytest.approx(lr0 / 2 * (math.cos(math.pi * ((step - 1) % k) / k) + 1))
        assert (hyper["temperature"] > 0) == (((step - 1) % k) / k >= 0.5)
        _track(sampler, 1)
    assert sampler.param_groups[0]["lr"] == lr0


def test_phases_and_cycles_belong_to_the_step_just_taken():
    sampler = CyclicalSGMCMC([torch.zeros(1, requires_grad=True)], 0.1, 100, cycle_length=4, exploration_ratio=0.5)
    assert not sampler.is_sampling
    cold, hot = False, True
    one_cycle = [cold, cold, hot, hot]
    assert _track(sampler, 9) == [*((0, each) for each in one_cycle), *((1, each) for each in one_cycle), (2, cold)]


@pytest.mark.parametrize("base", ["sghmc", "sgld"])
def test_the_schedule_on_its_own_makes_the_same_chain(base):
    settings = dict(cycle_length=6, exploration_ratio=0.5)
    one, two = small_network(), small_network()
    a = CyclicalSGMCMC(one.parameters(), 0.2, 100, base=base, **settings)
    b = (SGHMC if base == "sghmc" else SGLD)(two.parameters(), 0.2, 100)
    schedule = CyclicalSchedule(b, **settings)
    for model, sampler in ((one, a), (two, b)):
        torch.manual_seed(5)
        for _ in range(15):
            sampler.step(closure_for(model, sampler))
            if sampler is b:
                schedule.step()
                assert sampler.cycle == schedule.cycle
    assert torch.allclose(flat(one), flat(two), atol=1e-6)
    assert a.is_sampling == b.is_sampling
    assert b.param_groups[0]["peak_lr"] == 0.2


def test_the_schedule_resumes_from_the_sampler():
    def fresh():
        return SGLD([torch.zeros(1, requires_grad=True)], 0.3, 10)

    first = fresh()
    schedule = CyclicalSchedule(first, 10, 0.5)
    _track(first, 7, schedule.step)
    second = fresh()
    second.load_state_dict(first.state_dict())
    again = CyclicalSchedule(second, 10, 0.5)
    assert again.is_sampling
    assert second.param_groups[0]["lr"] == pytest.approx(first.param_groups[0]["lr"])
    assert second.param_groups[0]["peak_lr"] == 0.3


def test_the_schedule_is_an_lr_scheduler():
    sampler = SGLD([torch.zeros(1, requires_grad=True)], 0.3, 10)
    schedule = CyclicalSchedule(sampler, 10, 0.5)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    _track(sampler, 7, schedule.step)
    assert schedule.get_last_lr() == [sampler.param_groups[0]["lr"]]
    assert schedule.last_epoch == 7
    assert "step" not in vars(sampler), "it still compiles"
    saved = schedule.state_dict()
    again = CyclicalSchedule(sampler, 5, 0.2)
    again.load_state_dict(saved)
    assert (again.cycle_length, again.exploration_ratio, again.sampler) == (10, 0.5, sampler)
    with pytest.raises(ValueError, match="epoch=3"):
        schedule.step(3)


def test_it_composes_with_a_scheduler_on_the_peak():
    sampler = CyclicalSGMCMC([torch.zeros(1, requires_grad=True)], 0.4, 100, cycle_length=4, exploration_ratio=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(sampler, step_size=4, gamma=0.5)
    _track(sampler, 4, scheduler.step)
    assert sampler.hyper(sampler.param_groups[0])["lr"] == pytest.approx(0.2)


def test_the_momentum_keeps_its_temperature_when_the_learning_rate_jumps():
    """A sampler that stores v = ε·r would have its kinetic temperature multiplied by the ratio of learning rates."""
    n, k = 100, 20.0
    p = (torch.randn(50_000) / k**0.5).requires_grad_()
    sampler = CyclicalSGMCMC(
        [p], 0.5, n, cycle_length=40, exploration_ratio=0.0, momentum_init="normal", momentum_decay=0.2
    )
    heat = []
    for _ in range(85):
        p.grad = k * p.detach() / n
        sampler.step()
        heat.append(sampler.temperatures()[0]["kinetic"])
    assert max(heat) < 1.3  # 1.14 at the peak of lr, by the closed form of a constant lr
    assert min(heat) > 0.95
    jump = heat[41] / heat[38]
    assert jump == pytest.approx(1, abs=0.2)  # lr itself jumps from 0.008 to 0.5


def test_exploring_is_the_cold_optimizer():
    one, two = small_network(), small_network()
    a = CyclicalSGMCMC(one.parameters(), 0.2, 100, cycle_length=100, exploration_ratio=0.9)
    b = torch.optim.SGD(two.parameters(), 0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(b, 100)
    for i in range(10):
        a.step(closure_for(one, a))
        for group in b.param_groups:
            group["lr"] = 0.1 * (math.cos(math.pi * i / 100) + 1)
        closure_for(two, b)()
        b.step()
    del scheduler
    # SGD's buffer is not rescaled as lr falls; over ten of a hundred steps the two differ by the fall alone.
    assert torch.allclose(flat(one), flat(two), atol=0.01)


def test_the_peak_is_the_lr_when_the_schedule_is_made():
    sampler = SGLD([torch.zeros(1, requires_grad=True)], 0.1, 10)
    torch.optim.lr_scheduler.StepLR(sampler, 5)  # leaves an initial_lr of its own
    sampler.param_groups[0]["lr"] = 0.01
    schedule = CyclicalSchedule(sampler, 10, 0.5)
    assert sampler.param_groups[0]["lr"] == pytest.approx(0.01)
    sampler.add_param_group({"params": [torch.zeros(2, requires_grad=True)], "lr": 0.2})
    for group in sampler.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    sampler.step()
    schedule.step()
    assert sampler.param_groups[1]["peak_lr"] == 0.2


def test_a_copy_keeps_its_schedule():
    sampler = SGLD([torch.zeros(1, requires_grad=True)], 0.1, 10)
    schedule = CyclicalSchedule(sampler, 10, 0.5)
    _track(sampler, 2, schedule.step)
    clone = copy.deepcopy(sampler)
    assert not clone.is_sampling
    assert clone.schedule.sampler is clone


def test_the_base_of_a_cyclical_sampler_is_one_and_is_checked_when_loading():
    with pytest.raises(ValueError, match="base must be the same"):
        CyclicalSGMCMC([{"params": [torch.zeros(3, requires_grad=True)], "base": "sgld"}], 0.1, 100, cycle_length=10)
    saved = CyclicalSGMCMC([torch.zeros(3, requires_grad=True)], 0.1, 100, cycle_length=10, base="sgld").state_dict()
    with pytest.raises(ValueError, match="base='sgld'"):
        CyclicalSGMCMC([torch.zeros(3, requires_grad=True)], 0.1, 100, cycle_length=10).load_state_dict(saved)


def test_schedule_wants_a_sampler():
    with pytest.raises(TypeError, match="sampler must be a Sampler, got SGD"):
        CyclicalSchedule(torch.optim.SGD([torch.zeros(3, requires_grad=True)], 0.1), 10)
    with pytest.raises(ValueError, match="no sampling step"):
        CyclicalSchedule(SGLD([torch.zeros(3, requires_grad=True)], 0.1, 10), 3, 0.9)


def test_a_group_that_joins_follows_the_schedule_from_its_first_step():
    a, b = (torch.zeros(3, requires_grad=True) for _ in range(2))
    sampler = SGLD([a], 0.1, 10)
    schedule = CyclicalSchedule(sampler, 10, 0.5)
    for _ in range(3):
        a.grad = torch.zeros(3)
        sampler.step()
        schedule.step()
    sampler.add_param_group({"params": [b], "lr": 0.4})
    first, late = sampler.param_groups
    assert late["temperature"] == first["temperature"] == 0.0
    assert late["lr"] == pytest.approx(4 * first["lr"])
    assert late["peak_lr"] == 0.4
    for p in (a, b):
        p.grad = torch.zeros(3)
    sampler.step()
    assert not b.any()


def test_a_schedule_that_is_stepped_once_an_epoch_is_refused_before_the_next_step():
    model = small_network()
    sampler = SGHMC(model.parameters(), 0.01, 100)
    schedule = CyclicalSchedule(sampler, cycle_length=40, exploration_ratio=0.5)
    sampler.step(closure_for(model, sampler))
    before = flat(model).clone()
    with pytest.raises(RuntimeError, match=r"CyclicalSchedule\.step must follow every step of the sampler, got none"):
        sampler.step(closure_for(model, sampler))
    assert torch.equal(flat(model), before)
    assert sampler.step_count == 1
    schedule.step()
    sampler.step(closure_for(model, sampler))


def test_a_state_loaded_under_a_schedule_goes_on_with_it():
    model, other = small_network(), small_network()
    sampler = SGHMC(model.parameters(), 0.01, 100)
    schedule = CyclicalSchedule(sampler, cycle_length=6, exploration_ratio=0.5)
    for _ in range(4):
        sampler.step(closure_for(model, sampler))
        schedule.step()
    resumed = SGHMC(other.parameters(), 0.01, 100)
    again = CyclicalSchedule(resumed, cycle_length=6, exploration_ratio=0.5)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(sampler.state_dict()))
    for _ in range(4):
        for net, moved, following in ((model, sampler, schedule), (other, resumed, again)):
            moved.step(closure_for(net, moved))
            following.step()
        assert resumed.param_groups[0]["lr"] == sampler.param_groups[0]["lr"]
        assert resumed.is_sampling == sampler.is_sampling


def scheduled(**options):
    sampler = SGHMC([torch.zeros(2, requires_grad=True)], 0.1, 100, temperature=0.5)
    return sampler, CyclicalSchedule(sampler, 10, 0.8) if options.get("schedule", True) else None


def now(sampler):
    group = sampler.param_groups[0]
    return group["lr"], group["temperature"]


@pytest.mark.parametrize("steps", [4, 8, 9, 10])
def test_a_state_saved_before_the_schedule_s_step_goes_on_at_the_next_rate(steps):
    sampler, schedule = scheduled()
    _track(sampler, steps - 1, schedule.step)
    _track(sampler, 1)
    state = copy.deepcopy(sampler.state_dict())  # as by a callback after the optimizer's step
    schedule.step()
    other, _ = scheduled()
    other.load_state_dict(state)
    assert now(other) == pytest.approx(now(sampler))
    other, _ = scheduled()
    other.load_state_dict(sampler.state_dict())
    assert now(other) == pytest.approx(now(sampler))


def test_a_state_without_a_schedule_goes_on_under_one():
    plain, _ = scheduled(schedule=False)
    _track(plain, 3)
    sampler, _ = scheduled()
    sampler.load_state_dict(plain.state_dict())
    assert now(sampler) == pytest.approx((0.05 * (math.cos(0.3 * math.pi) + 1), 0.0))


def test_a_state_of_an_exploring_schedule_is_not_sampled_from_without_one():
    sampler, schedule = scheduled()
    _track(sampler, 3, schedule.step)
    other, _ = scheduled(schedule=False)
    other.load_state_dict(sampler.state_dict())
    with pytest.raises(RuntimeError, match="of one step of a CyclicalSchedule, and none is attached"):
        _track(other, 1)
    assert other.step_count == 3
    CyclicalSchedule(other, 10, 0.8)
    _track(other, 1)
    other, _ = scheduled(schedule=False)
    other.load_state_dict(sampler.state_dict())
    other.param_groups[0].update(lr=0.1, temperature=0.5)
    for key in ("peak_lr", "sampling_temperature"):
        del other.param_groups[0][key]
    assert _track(other, 1) == [(0, True)]


def test_no_momentum_is_drawn_while_a_cycle_explores():
    p = torch.zeros(5, requires_grad=True)
    sampler = CyclicalSGMCMC([p], 0.1, 10, cycle_length=10, exploration_ratio=0.5, momentum_init="normal")
    state = torch.get_rng_state()
    p.grad = torch.zeros(5)
    sampler.step()
    assert torch.equal(p.detach(), torch.zeros(5))
    assert torch.equal(torch.get_rng_state(), state)
