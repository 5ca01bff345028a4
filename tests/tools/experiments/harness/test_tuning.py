"""Grids of the series, their extension at edges, and what is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from experiments.harness.tuning import (
    Choice,
    mean_score,
    nearest,
    next_by_ratio,
    next_of_series,
    rates_around,
    series,
    tune,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st


def test_the_series_and_what_is_around_a_rate():
    assert [series(index) for index in range(-4, 4)] == [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    assert rates_around(0.05, 6) == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert rates_around(0.003, 1) == [0.003]


@hypothesis_settings(deadline=None)
@given(st.integers(-30, 30), st.floats(0.75, 1.35))
def test_a_rate_finds_its_neighbour_in_the_series(index, factor):
    assert nearest(series(index)) == index
    assert nearest(series(index) * factor) == index


def test_what_lies_beyond_a_grid():
    assert [next_of_series([0.02, 0.1, 0.05], side) for side in (-1, 1)] == [0.01, 0.2]
    assert [next_by_ratio([0.004, 0.064, 0.016], side) for side in (-1, 1)] == [0.001, 0.256]


def choices(*rates):
    return [Choice(lr) for lr in rates]


@pytest.mark.parametrize(
    ("optimum", "extensions", "tried"),
    [
        (0.05, 2, [0.02, 0.05, 0.1]),  # inside: nothing to extend
        (0.1, 2, [0.02, 0.05, 0.1, 0.2]),  # at the edge: one more, which is worse
        (1.0, 2, [0.02, 0.05, 0.1, 0.2, 0.5]),  # far out: twice and no further
        (1.0, 1, [0.02, 0.05, 0.1, 0.2]),
        (1.0, 0, [0.02, 0.05, 0.1]),
        (1e-9, 2, [0.005, 0.01, 0.02, 0.05, 0.1]),
    ],
)
def test_a_grid_is_extended_where_its_best_lies_at_the_edge(optimum, extensions, tried):
    seen = []

    def run(choice, seed):
        seen.append(choice.lr)
        return abs(math.log(choice.lr / optimum))

    tuning = tune(choices(0.02, 0.05, 0.1), run, lambda nll: nll, extensions=extensions)
    assert sorted(choice.lr for choice in tuning.trials) == sorted(seen) == tried
    assert tuning.chosen.lr == min(tried, key=lambda lr: abs(math.log(lr / optimum)))
    assert bool(tuning.edges()) == (tuning.chosen.lr in (tried[0], tried[-1]))


def test_a_diverged_neighbour_ends_the_grid_and_diverging_everywhere_is_an_error():
    tuning = tune(
        choices(0.02, 0.05, 0.1), lambda c, _: None if c.lr > 0.05 else 1 / c.lr, lambda nll: nll, extensions=2
    )
    assert tuning.chosen.lr == 0.05
    assert [choice.lr for choice in tuning.ranked()] == [0.05, 0.02]
    assert len(tuning.trials) == 3
    with pytest.raises(RuntimeError, match=r"diverged at every learning rate of \[0.02, 0.05\]"):
        tune(choices(0.02, 0.05), lambda c, _: None, lambda nll: nll, extensions=2)


def test_the_mean_over_the_seeds_counts_and_one_that_diverged_rules_a_choice_out():
    nlls = {0.1: [1.0, 3.0], 0.2: [0.5, None], 0.5: [1.5, 2.0]}
    tuning = tune(choices(0.1, 0.2, 0.5), lambda c, seed: nlls[c.lr][seed - 7], lambda nll: nll, seeds=(7, 8))
    assert tuning.chosen.lr == 0.5
    assert [tuning.mean(choice) for choice in tuning.trials] == [2.0, None, 1.75]
    assert mean_score([]) is None


def test_an_extension_keeps_what_else_the_best_has():
    @dataclass(frozen=True, order=True)
    class Both(Choice):
        other: str

    candidates = [Both(lr, other) for lr in (0.1, 0.2) for other in "ab"]
    tuning = tune(candidates, lambda c, _: -c.lr - (c.other == "b"), lambda nll: nll, extensions=1)
    assert tuning.chosen == Both(0.5, "b")
    assert Both(0.5, "a") not in tuning.trials
