"""When states are collected, and which horizons are possible."""

import pytest
import torch

from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.random_streams import generator


def collected(schedule):
    return [step for step in range(1, schedule.steps + 1) if schedule.collects(step)]


def test_the_papers_schedule_collects_ten_states_every_fifty_steps_at_the_end():
    schedule = Schedule(3000, 2500, 50)
    assert collected(schedule) == list(range(2550, 3001, 50))
    assert schedule.num_samples == 10


@pytest.mark.parametrize(
    ("steps", "window", "samples"), [(400, 200, 10), (101, 50, 7), (9, 4, 4), (9, 9, 2), (5, 1, 1)]
)
def test_a_schedule_that_ends_with_the_run_has_its_samples_in_the_window_as_far_apart_as_they_fit(
    steps, window, samples
):
    found = collected(Schedule.ending(steps, window, samples))
    assert len(found) == samples
    assert found[-1] == steps
    apart = {later - earlier for earlier, later in zip([steps - window // samples * samples, *found], found)}
    assert apart == {window // samples}
    assert found[0] > steps - window


def test_one_number_of_steps_has_one_schedule_whoever_asks():
    horizon = Horizon(90, 90, samples=7, burn_in=0.3)
    assert horizon.schedule_of(90) == horizon.schedule(torch.Generator()) == Schedule.ending(90, 63, 7)


def test_a_cyclical_schedule_collects_in_the_sampling_phases_up_to_the_end_of_each_cycle():
    schedule = Schedule.cyclical(400, 4, 8, 0.8)
    assert collected(schedule) == [90, 100, 190, 200, 290, 300, 390, 400]
    assert schedule.num_samples == 8


def test_a_horizon_draws_schedules_with_its_samples_ending_at_the_last_step():
    horizon = Horizon(50, 500, samples=7, burn_in=0.5)
    schedules = [horizon.schedule(generator(0, i)) for i in range(200)]
    assert {schedule.num_samples for schedule in schedules} == {7}
    assert all(50 <= s.steps <= 500 and s.collects(s.steps) and s.burn_in >= s.steps // 2 - 1 for s in schedules)
    assert len({schedule.steps for schedule in schedules}) > 50
    fixed = Horizon(400, 400).schedule(torch.Generator())
    assert (fixed.steps, fixed.burn_in, fixed.thinning) == (400, 200, 20)
