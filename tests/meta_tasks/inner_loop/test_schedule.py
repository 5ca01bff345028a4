"""When states are collected, and which horizons are possible."""

import pytest
import torch

from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.random_streams import generator


def collected(schedule):
    return [step for step in range(1, schedule.steps + 1) if schedule.collects(step)]


@pytest.mark.parametrize(
    ("steps", "window", "samples"), [(400, 200, 10), (101, 50, 7), (9, 4, 4), (9, 9, 2), (5, 1, 1)]
)
def test_a_schedule_that_ends_with_the_run_has_its_samples_in_the_window_as_far_apart_as_they_fit(
    steps, window, samples
):
    taken = collected(Schedule.ending(steps, window, samples))
    assert len(taken) == samples
    assert taken[-1] == steps
    apart = {later - earlier for earlier, later in zip([steps - window // samples * samples, *taken], taken)}
    assert apart == {window // samples}
    assert taken[0] > steps - window


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Schedule(3000, 2500, 50), [*range(2550, 3001, 50)]),  # the paper's
        (Schedule.cyclical(400, 4, 8, 0.8), [90, 100, 190, 200, 290, 300, 390, 400]),
    ],
)
def test_states_are_collected_after_the_burn_in_or_in_the_sampling_phase_of_each_cycle(schedule, steps):
    assert collected(schedule) == steps


def test_a_horizon_draws_schedules_with_its_samples_ending_at_the_last_step():
    horizon = Horizon(50, 500, samples=7, burn_in=0.5)
    schedules = [horizon.schedule(generator(0, i)) for i in range(200)]
    assert {len(collected(schedule)) for schedule in schedules} == {7}
    assert all(50 <= s.steps <= 500 and s.collects(s.steps) and s.burn_in >= s.steps // 2 - 1 for s in schedules)
    assert len({schedule.steps for schedule in schedules}) > 50
    fixed = Horizon(90, 90, samples=7, burn_in=0.3)
    assert fixed.schedule_of(90) == fixed.schedule(torch.Generator()) == Schedule.ending(90, 63, 7)
