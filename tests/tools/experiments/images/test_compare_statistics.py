"""The cells of a method's runs at equal time, where some of them diverged."""

import pytest
from experiments.images.compare_statistics import equal_time, robust_cells
from experiments.images.result import Result

BESIDE = dict.fromkeys(("difference", "scaled_nll", "scaled_nll_std", "median_nll", "worst_nll"))


def run(seed, nll, gradients, seconds):
    ended = {"diverged": "so"} if nll is None else {"scores": {"nll": nll, "accuracy": 0.8}}
    return Result("SGHMC", 0.1, seed, {}, seconds=seconds, gradient_evaluations=gradients, **ended)


def cells(alike):
    found = robust_cells({**BESIDE, "tuning": [], "collapsed": 0, "equal_time": alike})
    return found["gradients at equal time"], found["NLL at equal time"]


def test_a_run_that_diverged_counts_and_gives_neither_gradients_nor_seconds():
    alike = equal_time([run(0, None, 20, 0.1), run(1, 0.5, 1500, 10.0), run(2, 0.7, 1500, 12.0)])
    assert (alike["gradients"], alike["seconds"], alike["nll"]) == (1500, pytest.approx(11.0), [0.5, 0.7])
    assert cells(alike) == ("1500", "0.6000 ± 0.1414 (1 of 3 diverged)")
    assert cells(equal_time([run(0, None, 20, 0.1)])) == ("–", "– (1 of 1 diverged)")
    del alike["runs"]  # as files of before
    assert cells(alike) == ("1500", "0.6000 ± 0.1414")
