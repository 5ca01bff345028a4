"""Ctrl-C and SIGTERM: what they end at once, and what is saved then."""

import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest
import torch

from meta_tasks.training import Score, SerialExecutor
from meta_tasks.training.process import Stopped, StopSignals
from tests.meta_tasks.toy_runs import es, nres, run, trainer, workers
from tests.meta_tasks.toy_tasks import QuadraticFamily

ESTIMATORS = {"es": es(), "nres": nres()}
EXECUTORS = {"serial": SerialExecutor, "processes": workers(1)}


@dataclass(frozen=True)
class HaltingFamily(QuadraticFamily):
    """Tasks of the third iteration, or episode, take a minute to make."""

    def task(self, *labels):
        if labels[-2] == 2:
            time.sleep(60)
        return super().task(*labels)


def interrupted(made, is_busy, number=signal.SIGINT):
    """Run until ``is_busy``, send a signal; how the run ends, and seconds from the signal to its end and closing."""
    sent = []

    def send():
        while not is_busy():
            time.sleep(0.01)
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    before = signal.getsignal(signal.SIGINT)
    reason = made.run()
    assert signal.getsignal(signal.SIGINT) is before
    made.close()
    return reason, time.monotonic() - sent[0]


@pytest.mark.parametrize(
    ("estimator", "executor", "number"),
    [("es", "serial", signal.SIGINT), ("nres", "serial", signal.SIGTERM), ("nres", "processes", signal.SIGINT)],
)
def test_a_signal_abandons_an_iteration_at_once_and_what_was_before_it_is_kept(tmp_path, estimator, executor, number):
    reference = run(None, 9, estimator=ESTIMATORS[estimator])
    made = trainer(tmp_path, 9, ESTIMATORS[estimator], HaltingFamily(), executor=EXECUTORS[executor])
    # The third iteration of ES; of noise reuse the one in which the first slot begins its third episode.
    halts = {"es": 2, "nres": 4}[estimator]
    reason, seconds = interrupted(made, lambda: made.iteration == halts, number)
    assert (reason, made.iteration) == ("interrupted", halts)
    assert seconds < 2
    assert torch.equal(run(tmp_path, 9, estimator=ESTIMATORS[estimator]).weights, reference.weights)


class Scoring:
    """An evaluation whose first score takes a minute."""

    def __init__(self):
        self.scored = []

    def check(self, rule):
        pass

    def specification(self):
        return {}

    def record(self, scores, rule, weights, iteration):
        self.scored.append(iteration)
        if len(self.scored) == 1:
            time.sleep(60)
        scores.setdefault("sampler", []).append({"iteration": iteration, "nll": 1.0})
        scores["baselines"] = {}
        return Score(1.0, 0.5, 0.0)


def test_a_signal_ends_a_scoring_which_the_run_that_goes_on_makes_up_for(tmp_path):
    scoring = Scoring()
    made = trainer(tmp_path, 4, evaluation=scoring, evaluate_every=3, figures_every=0)
    reason, seconds = interrupted(made, lambda: scoring.scored)
    assert (reason, made.iteration, seconds < 2) == ("interrupted", 0, True)
    again = trainer(tmp_path, 4, evaluation=scoring, evaluate_every=3, figures_every=0)
    assert again.run() == "finished"
    assert scoring.scored == [0, 0, 3]
    again.close()


def test_a_signal_that_came_before_ends_what_may_be_abandoned_when_it_begins():
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # which comes twice of itself
        with pytest.raises(Stopped), signals.interruptible():
            pytest.fail("it began")
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signals.received == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
