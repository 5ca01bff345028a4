"""The stopping rule: the best weights are kept and written, patience counts evaluations, and both survive a stop."""

import pytest
import torch

from meta_tasks.training import Trainer, TrainerSettings
from meta_tasks.training.evaluation import Score
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily
from tests.meta_tasks.training.test_trainer import es


class Scripted:
    """Held-out scores that are given, one an evaluation, in the place of `HeldOutEvaluation`."""

    def __init__(self, *nlls):
        self.nlls = nlls

    def check(self, rule):
        pass

    def record(self, scores, rule, weights, iteration):
        each = scores.setdefault("sampler", [])
        scores.setdefault("baselines", {})
        each.append({"iteration": iteration, "nll": self.nlls[min(len(each), len(self.nlls) - 1)]})
        return Score(each[-1]["nll"], 0.5, 0.0)


def in_sessions(nlls, *sessions, folder=None):
    """Runs of one folder, each of (iterations, patience); the last one, its end, and φ̄ by iteration."""
    averages = {}
    for iterations, patience in sessions:
        settings = TrainerSettings(iterations=iterations, evaluate_every=2, patience=patience, learning_rate=0.1)
        given = Scripted(*nlls)
        made = Trainer(QuadraticFamily(), LearnableSGD(), es(), settings, folder=folder, evaluation=given)
        step = made.step

        def noting(made=made, step=step):
            averages[made.iteration] = made.averaged.clone()
            return step()

        made.step = noting
        end = made.run()
        made.close()
    averages[made.iteration] = made.averaged.clone()
    return made, end, averages


UP, EARLY = (5.0, 3.0, 4.0, 2.0, 4.0, 4.0, 4.0), (5.0, 3.0, 2.0, 2.5, 2.5, 2.5, 2.5)


@pytest.mark.parametrize(
    ("nlls", "sessions", "iteration", "best"),  # scores are those of the iterations 0, 2, 4, …
    [
        ((5.0, 3.0, 2.0, 2.5, 2.0, 1.0), [(20, 2)], 8, 4),  # an equal one is no better
        ((1.0, 2.0, 3.0, 4.0), [(8, 0)], 8, None),
        ((1.0, 2.0), [(2, 2)], 2, 0),  # one that ends in between has its best, too
        *((UP, [*first, (20, 2)], 10, 6) for first in ([], [(7, 2)], [(7, 2), (20, 2)])),  # one that stopped is over
        # Patience that a resumed run turns on counts from weights that it has.
        *((EARLY, [*first, (20, 3)], 10, 4) for first in ([(5, 0)], [(5, 3), (6, 0)], [(3, 0), (6, 3), (7, 0)])),
        ((5.0, 3.0, 4.0), [(4, 2), (8, 0)], 8, None),  # and one that turns it off gives the last
    ],
)
def test_a_run_ends_when_patience_is_over_and_keeps_the_best(nlls, sessions, iteration, best, tmp_path):
    made, end, _ = in_sessions(nlls, *sessions, folder=tmp_path)
    patience = sessions[-1][1]
    assert made.iteration == iteration
    assert end == (f"no better after {patience} evaluations: stopped" if iteration < sessions[-1][0] else "finished")
    expected = in_sessions(nlls, (20, 0))[2]  # of a run that never stopped
    assert torch.equal(made.result, expected[iteration if best is None else best])
    assert made.stopping.card() == ({} if best is None else {"patience": patience, "best_iteration": best})
