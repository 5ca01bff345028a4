"""The stopping rule: the best weights are kept and written, patience counts evaluations, and both survive a stop."""

import pytest
import torch

from meta_tasks.tasks import family_named
from meta_tasks.training import Trainer, TrainerSettings
from meta_tasks.training.evaluation import EarlyStopping, HeldOutEvaluation, Score
from tests.meta_tasks.training.test_trainer import LearnableSGD, QuadraticFamily, es


class Scripted:
    """Held-out scores that are given, one an evaluation, in the place of `HeldOutEvaluation`."""

    def __init__(self, *nlls):
        self.nlls = nlls

    def check(self, rule):
        pass

    def set_aside(self, scores):
        pass

    def record(self, scores, rule, weights, iteration):
        each = scores.setdefault("sampler", [])
        scores.setdefault("baselines", {})
        each.append({"iteration": iteration, "nll": self.nlls[min(len(each), len(self.nlls) - 1)]})
        return Score(each[-1]["nll"], 0.5, 0.0)


def trainer(nlls, folder=None, iterations=20, patience=2):
    settings = TrainerSettings(iterations=iterations, evaluate_every=2, patience=patience, learning_rate=0.1)
    return Trainer(QuadraticFamily(), LearnableSGD(), es(), settings, folder=folder, evaluation=Scripted(*nlls))


def test_it_ends_when_patience_is_over_and_keeps_the_best():
    made = trainer((5.0, 3.0, 2.0, 2.5, 2.0, 1.0))  # of iterations 0, 2, 4, 6, 8: an equal one is no better
    kept = {}
    step = made.step

    def noting():
        done = step()
        kept[made.iteration] = made.averaged.clone()
        return done

    made.step = noting
    assert made.run() == "no better after 2 evaluations: stopped"
    assert made.iteration == 8
    assert torch.equal(made.result, kept[4])
    assert not torch.equal(made.result, made.averaged)
    assert made.stopping.card() == {"patience": 2, "best_iteration": 4}


def test_without_patience_the_result_is_the_last():
    made = trainer((1.0, 2.0, 3.0, 4.0), patience=0, iterations=8)
    assert made.run() == "finished"
    assert made.iteration == 8
    assert torch.equal(made.result, made.averaged)
    assert made.stopping.card() == {}


def test_a_run_that_ends_in_between_has_its_best_too():
    made = trainer((1.0, 2.0), iterations=2)
    assert made.run() == "finished"
    assert torch.equal(made.result, LearnableSGD().initial_weights(0))


def test_a_resumed_run_stops_where_the_whole_one_does(tmp_path):
    nlls = (5.0, 3.0, 4.0, 2.0, 4.0, 4.0, 4.0)
    whole = trainer(nlls)
    whole.run()
    first = trainer(nlls, tmp_path, iterations=7)
    first.run()
    first.close()
    resumed = trainer(nlls, tmp_path)
    assert torch.equal(resumed.result, first.result)
    assert resumed.run() == "no better after 2 evaluations: stopped"
    assert resumed.iteration == whole.iteration == 10
    assert torch.equal(resumed.result, whole.result)
    resumed.close()
    again = trainer(nlls, tmp_path)
    again.run()
    assert again.iteration == 10, "a run that has stopped goes on"
    again.close()


def in_sessions(folder, nlls, sessions):
    """Runs of one folder after the other, each of (iterations, patience); the weights at each evaluation, the last."""
    kept = {}
    for iterations, patience in sessions:
        made = trainer(nlls, folder, iterations, patience)
        step = made.step

        def noting(made=made, step=step):
            kept[made.iteration] = made.averaged.clone()
            return step()

        made.step = noting
        made.run()
        made.close()
    return kept, made


@pytest.mark.parametrize("first", [[(5, 0)], [(5, 3), (6, 0)], [(3, 0), (6, 3), (7, 0)]])
def test_patience_that_a_resumed_run_turns_on_counts_from_weights_that_it_has(first, tmp_path):
    nlls = (5.0, 3.0, 2.0, 2.5, 2.5, 2.5, 2.5)
    kept, made = in_sessions(tmp_path, nlls, [*first, (20, 3)])
    assert made.iteration == 10
    assert torch.equal(made.result, kept[4])
    assert made.stopping.card() == {"patience": 3, "best_iteration": 4}


def test_patience_that_is_turned_off_gives_the_last(tmp_path):
    _, made = in_sessions(tmp_path, (5.0, 3.0, 4.0), [(4, 2), (8, 0)])
    assert torch.equal(made.result, made.averaged)
    assert made.stopping.card() == {}


class Given(HeldOutEvaluation):
    """Held-out tasks whose scores are given: those of one number of tasks cannot be compared with another's."""

    def __init__(self, tasks, *nlls):
        super().__init__(family_named("digits"), 20, samples=4, tasks=tasks)
        self.left = iter(nlls)

    def check(self, rule):
        pass

    def baselines(self):
        return {"SGHMC": Score(1.0, 0.5, 0.0)}

    def score(self, *arguments, **keywords):
        return Score(next(self.left), 0.5, 0.0)


def scored(folder, iterations, patience, tasks, *nlls):
    settings = TrainerSettings(iterations=iterations, evaluate_every=1, patience=patience, learning_rate=0.1)
    given = Given(tasks, *nlls)
    return Trainer(QuadraticFamily(), LearnableSGD(), es(), settings, folder=folder, evaluation=given)


def test_the_best_on_other_held_out_tasks_does_not_end_a_run_nor_is_it_the_result(tmp_path, capsys):
    first = scored(tmp_path, 9, 3, 1, 0.12, 0.1, 0.11, 0.11, 0.11)
    assert first.run() == "no better after 3 evaluations: stopped"
    first.close()
    over = scored(tmp_path, 4, 3, 2)
    assert over.run() == "finished", "there is nothing to do, and so nothing to score"
    assert torch.equal(over.result, first.result)
    over.close()
    resumed = scored(tmp_path, 9, 3, 2, 0.5, 0.45, 0.4, 0.4, 0.4)  # harder tasks
    assert resumed.run() == "finished"
    assert resumed.iteration == 9
    assert resumed.stopping.card() == {"patience": 3, "best_iteration": 7}
    assert resumed.stopping.score["nll"] == 0.4
    assert not torch.equal(resumed.result, first.result)
    assert [score["nll"] for score in resumed.scores["other_tasks"][0]["sampler"]][1] == 0.1
    assert "other held-out tasks, and the best is sought anew: tasks is 1 there and 2" in capsys.readouterr().out
    resumed.close()


def test_before_the_first_evaluation_nothing_is_over():
    stopping = EarlyStopping(1)
    assert not stopping.over({})
    assert stopping.weights is None
