"""The cyclical schedule: the published curve, the two phases, and the law across the jump between cycles."""

import copy
import math

import pytest
import torch

from learned_samplers import SGHMC, SGLD, CyclicalSchedule, CyclicalSGMCMC
from learned_samplers.priors import GammaHyperprior, Relevance
from tests.harness import closure_for, flat, small_network


def parameter(count=1):
    return torch.zeros(count, requires_grad=True)


def track(sampler, steps, after=lambda: None):
    """The cycle and the phase after each of some steps without a force."""
    seen = []
    for _ in range(steps):
        for p in (p for group in sampler.param_groups for p in group["params"]):
            p.grad = torch.zeros_like(p)
        sampler.step()
        seen.append((sampler.cycle, sampler.is_sampling))
        after()
    return seen


def scheduled(attached=True, make=SGHMC, lr=0.1, **settings):
    sampler = make([parameter(2)], lr, 100, temperature=0.5)
    return sampler, CyclicalSchedule(sampler, **{"cycle_length": 10, **settings}) if attached else None


def now(sampler):
    group = sampler.param_groups[0]
    return group["lr"], group["temperature"]


def test_the_learning_rate_follows_the_published_formula():
    k, lr0 = 8, 0.5
    sampler = CyclicalSGMCMC([parameter()], lr0, 100, cycle_length=k, exploration_ratio=0.5)
    for step in range(1, 20):
        hyper = sampler.hyper(sampler.param_groups[0])
        assert hyper["lr"] == pytest.approx(lr0 / 2 * (math.cos(math.pi * ((step - 1) % k) / k) + 1))
        assert (hyper["temperature"] > 0) == (((step - 1) % k) / k >= 0.5)
        track(sampler, 1)
    assert sampler.param_groups[0]["lr"] == lr0


def test_phases_and_cycles_belong_to_the_step_just_taken():
    sampler = CyclicalSGMCMC([parameter()], 0.1, 100, cycle_length=4, exploration_ratio=0.5)
    assert not sampler.is_sampling
    one_cycle = [False, False, True, True]
    assert track(sampler, 9) == [*((0, phase) for phase in one_cycle), *((1, phase) for phase in one_cycle), (2, False)]


def test_the_momentum_keeps_its_temperature_when_the_learning_rate_jumps():
    """A sampler that stores v = ε·r would have its kinetic temperature multiplied by the ratio of learning rates."""
    n, k = 100, 20.0
    p = (torch.randn(50_000) / k**0.5).requires_grad_()
    settings = dict(cycle_length=40, exploration_ratio=0.0, momentum_init="normal", momentum_decay=0.2)
    sampler, heat = CyclicalSGMCMC([p], 0.5, n, **settings), []
    for _ in range(85):
        p.grad = k * p.detach() / n
        sampler.step()
        heat.append(sampler.temperatures()[0]["kinetic"])
    assert max(heat) < 1.3  # 1.14 at the peak of lr, by the closed form of a constant lr
    assert min(heat) > 0.95
    assert heat[41] / heat[38] == pytest.approx(1, abs=0.2)  # lr itself jumps from 0.008 to 0.5


def test_exploring_is_the_cold_optimizer_and_draws_no_momentum():
    one, two = small_network(), small_network()
    settings = dict(cycle_length=100, exploration_ratio=0.9, momentum_init="normal")
    a = CyclicalSGMCMC(one.parameters(), 0.2, 100, **settings)
    b = torch.optim.SGD(two.parameters(), 0.2, momentum=0.9)
    noise = torch.get_rng_state()
    for i in range(10):
        a.step(closure_for(one, a))
        b.param_groups[0]["lr"] = 0.1 * (math.cos(math.pi * i / 100) + 1)
        closure_for(two, b)()
        b.step()
    # SGD's buffer is not rescaled as lr falls; over ten of a hundred steps the two differ by the fall alone.
    assert torch.allclose(flat(one), flat(two), atol=0.01)
    assert torch.equal(torch.get_rng_state(), noise)


def test_the_base_of_a_cyclical_sampler_is_checked_when_loading():
    saved = CyclicalSGMCMC([parameter()], 0.1, 100, cycle_length=10, base="sgld").state_dict()
    with pytest.raises(ValueError, match="base='sgld'"):
        CyclicalSGMCMC([parameter()], 0.1, 100, cycle_length=10).load_state_dict(saved)


# ---------------------------------------------------------------- the schedule on its own


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


def test_the_schedule_is_an_lr_scheduler():
    sampler, schedule = scheduled(exploration_ratio=0.5)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    track(sampler, 7, schedule.step)
    assert schedule.get_last_lr() == [sampler.param_groups[0]["lr"]]
    assert schedule.last_epoch == 7
    assert "step" not in vars(sampler), "it still compiles"
    again = CyclicalSchedule(sampler, 5, 0.2)
    again.load_state_dict(schedule.state_dict())
    assert (again.cycle_length, again.exploration_ratio, again.sampler) == (10, 0.5, sampler)


def test_the_peak_is_the_lr_when_the_schedule_is_made():
    sampler = SGLD([parameter()], 0.1, 10)
    torch.optim.lr_scheduler.StepLR(sampler, 5)  # leaves an initial_lr of its own
    sampler.param_groups[0]["lr"] = 0.01
    CyclicalSchedule(sampler, 10, 0.5)
    assert sampler.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_group_that_joins_follows_the_schedule_from_its_first_step():
    sampler, schedule = scheduled(make=SGLD)
    track(sampler, 3, schedule.step)
    sampler.add_param_group({"params": [parameter(3)], "lr": 0.4})
    first, late = sampler.param_groups
    assert late["temperature"] == first["temperature"] == 0.0
    assert late["lr"] == pytest.approx(4 * first["lr"])
    assert late["peak_lr"] == 0.4
    track(sampler, 1)
    assert not late["params"][0].any()


def test_a_schedule_that_is_stepped_once_an_epoch_is_refused_before_the_next_step():
    sampler, schedule = scheduled(lr=0.01)
    track(sampler, 1)
    with pytest.raises(RuntimeError, match=r"CyclicalSchedule\.step must follow every step of the sampler"):
        track(sampler, 1)
    assert sampler.step_count == 1
    schedule.step()
    track(sampler, 1)


@pytest.mark.parametrize(("name", "kept"), [("lr", "peak_lr"), ("temperature", "sampling_temperature")])
def test_a_rate_or_temperature_that_the_schedule_would_undo_is_refused(name, kept):
    sampler, schedule = scheduled(lr=0.01)
    track(sampler, 3, schedule.step)
    sampler.param_groups[0][name] = 0.5
    with pytest.raises(ValueError, match=rf"{name} of parameter group 0 was set to 0\.5.*'{kept}'"):
        track(sampler, 1)
    assert sampler.step_count == 3
    sampler.param_groups[0][kept] = 0.5
    schedule.step()
    track(sampler, 1)


def test_a_copy_keeps_its_schedule():
    sampler, schedule = scheduled()
    track(sampler, 2, schedule.step)
    clone = copy.deepcopy(sampler)
    assert not clone.is_sampling
    assert clone.schedule.sampler is clone


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("steps", [4, 8, 9, 10])
def test_a_saved_state_goes_on_at_the_next_rate(steps, before):
    """Also one that was saved before the schedule's step, as by a callback after the optimizer's."""
    sampler, schedule = scheduled()
    track(sampler, steps - 1, schedule.step)
    track(sampler, 1)
    saved = copy.deepcopy(sampler.state_dict())
    schedule.step()
    under_one, _ = scheduled()
    under_one.load_state_dict(saved if before else copy.deepcopy(sampler.state_dict()))
    assert now(under_one) == pytest.approx(now(sampler))
    if not before:  # or with a schedule that is made later
        later, _ = scheduled(attached=False)
        later.load_state_dict(copy.deepcopy(sampler.state_dict()))
        CyclicalSchedule(later, 10)
        assert now(later) == pytest.approx(now(sampler))
        assert later.param_groups[0]["peak_lr"] == 0.1
        assert later.is_sampling == sampler.is_sampling


def test_a_state_without_a_schedule_goes_on_under_one():
    plain, _ = scheduled(attached=False)
    track(plain, 3)
    sampler, _ = scheduled()
    sampler.load_state_dict(plain.state_dict())
    assert now(sampler) == pytest.approx((0.05 * (math.cos(0.3 * math.pi) + 1), 0.0))


def test_a_state_of_an_exploring_schedule_is_not_sampled_from_without_one():
    sampler, schedule = scheduled()
    track(sampler, 3, schedule.step)
    unscheduled, _ = scheduled(attached=False)
    unscheduled.load_state_dict(sampler.state_dict())
    with pytest.raises(RuntimeError, match="of one step of a CyclicalSchedule, and none is attached"):
        track(unscheduled, 1)
    assert unscheduled.step_count == 3
    unscheduled.param_groups[0].update(lr=0.1, temperature=0.5)
    for key in ("peak_lr", "sampling_temperature"):
        del unscheduled.param_groups[0][key]
    assert track(unscheduled, 1) == [(0, True)]


@pytest.mark.parametrize("prior", [GammaHyperprior(), Relevance()])
def test_a_prior_that_is_sampled(prior):
    model = small_network()
    sampler = CyclicalSGMCMC(model.named_parameters(), 0.01, 100, cycle_length=10, prior_precision=prior)
    assert all(drawn is not None for drawn in sampler.group_priors)
    track(sampler, 12)
    assert flat(model).isfinite().all()
