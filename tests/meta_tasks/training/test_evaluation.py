"""Held-out evaluation, the stopping rule that goes by it, and what of it and of the rest is logged."""

from dataclasses import replace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meta_tasks.estimators import AntitheticES
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.rules.classical import SGHMCRule
from meta_tasks.rules.learned import KineticRule, L2ERule
from meta_tasks.tasks import ImageTask, TaskStack, family_named
from meta_tasks.training import evaluation as module
from meta_tasks.training.evaluation import HeldOutEvaluation, Score
from tests.meta_tasks.toy_runs import trainer
from tests.meta_tasks.toy_tasks import LearnableSGD


@pytest.fixture(scope="module")
def evaluation():
    return HeldOutEvaluation(family_named("digits"), 40, samples=4, tasks=1, lrs=(0.05, 0.2))


def test_the_untrained_sampler_scores_what_sghmc_scores(evaluation):
    rule = L2ERule("residual")
    score = evaluation.score(rule, rule.initial_weights(0))
    baselines = evaluation.baselines()
    assert score == baselines["SGHMC"]
    assert set(baselines) == {"SGHMC", "PSGLD", "CyclicalSGMCMC"}
    assert score.nll < 2.25  # nats: better than chance (2.30) after forty steps, by no more than a little
    assert 0 < score.accuracy < 1
    assert score.share_failed == 0
    assert len({baseline.nll for baseline in baselines.values()}) == 3


def test_the_best_learning_rate_counts_and_failures_are_the_worst(evaluation):
    rule = LearnableSGD()
    # exp(φ₀) = e⁻³⁰: no learning at all; e⁸⁰: every run becomes non-finite
    still = evaluation.score(rule, torch.tensor([-30.0, 0.0]))
    wild = evaluation.score(rule, torch.tensor([80.0, 0.0]))
    both = HeldOutEvaluation(evaluation.family, 40, samples=4, tasks=1, lrs=(1e-3, 1e30)).score(rule, torch.zeros(2))
    assert still.nll == pytest.approx(2.3, abs=0.1)
    assert still.share_failed == 0
    assert wild.nll == float("inf")
    assert wild.share_failed == 1
    assert both.nll < 3
    assert both.share_failed == 0.5


def on_digits(folder, evaluation=None, iterations=20, **settings):
    """A trainer of L2E on the digits."""
    estimator = AntitheticES(0.03, 2, Horizon(12, 12, samples=3))
    options = dict(estimator=estimator, family=family_named("digits"), rule=L2ERule("residual"), evaluation=evaluation)
    return trainer(folder, iterations, **options, **{"learning_rate": 0.01, "evaluate_every": 50, **settings})


def run(folder, evaluation=None, **settings):
    made = on_digits(folder, evaluation, **settings)
    made.run()
    made.close()
    return made


def logged(folder):
    return EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()


def test_everything_is_logged(tmp_path, evaluation, capsys):
    made = run(tmp_path, evaluation, iterations=4, evaluate_every=2)
    log = logged(tmp_path)
    scalars, images = set(log.Tags()["scalars"]), set(log.Tags()["images"])
    assert scalars >= {
        *(f"gradient/{name}" for name in ("norm", "mean_loss_difference", "rms_loss_difference")),
        *("meta_loss/all", "inner_loop/failed_members", "inner_loop/member_steps_per_second"),
        *("output_scale/alpha", "output_scale/beta", "held_out_accuracy/sampler"),
        *(f"held_out_nll/{name}" for name in ("sampler", "SGHMC", "CyclicalSGMCMC", "PSGLD")),
    }
    assert any(tag.startswith("meta_loss/digits-") for tag in scalars)
    assert images == {"network/contours", "inner_loop/curves"}
    losses = [event.value for event in log.Scalars("meta_loss/all")]
    assert losses == pytest.approx(made.history["loss"])
    assert [event.step for event in log.Scalars("held_out_nll/sampler")] == [0, 2, 4]
    assert [score["iteration"] for score in made.scores["sampler"]] == [0, 2, 4]
    assert made.scores["sampler"][0]["nll"] == made.scores["baselines"]["SGHMC"]["nll"]
    nll = made.scores["sampler"][2]["nll"]
    printed = [line for line in capsys.readouterr().out.splitlines() if "held-out NLL" in line]
    assert len(printed) == 3
    assert printed[2].startswith(f"iteration 4: held-out NLL {nll:.4f} (SGHMC ")


def test_the_baselines_have_their_own_grid():
    made = [
        HeldOutEvaluation(family_named("digits"), 20, samples=2, tasks=1, chains=1, lrs=(lr,), baseline_lrs=grid)
        for lr, grid in ((0.01, (0.2,)), (0.2, None))
    ]
    assert made[0].baselines()["SGHMC"] == made[1].baselines()["SGHMC"] == made[1].score(SGHMCRule())
    assert made[0].score(SGHMCRule()) != made[1].score(SGHMCRule())
    assert made[0].specification()["baseline_lrs"] == [0.2]


@pytest.mark.parametrize("rule", [SGHMCRule(), KineticRule((4,))], ids=["sghmc", "kinetic"])
def test_every_sampler_takes_the_same_number_of_gradients(rule, evaluation, monkeypatch):
    taken = []
    for task in (ImageTask, TaskStack):
        gradient_of = task.loss_and_gradient
        counted = lambda *args, gradient_of=gradient_of: taken.append(len(args[1])) or gradient_of(*args)  # noqa: E731
        monkeypatch.setattr(task, "loss_and_gradient", counted)
    evaluation.score(rule, 0.1 * torch.randn(rule.num_weights, generator=torch.Generator().manual_seed(0)))
    assert sum(taken) == 40 * len(evaluation.lrs) * evaluation.chains


def test_baselines_are_scored_once_and_other_held_out_tasks_are_another_run(tmp_path, evaluation, capsys):
    first = run(tmp_path, evaluation, iterations=1, evaluate_every=1)
    assert first.scores["specification"] == evaluation.specification()
    assert run(tmp_path, evaluation, iterations=2, evaluate_every=1).scores["baselines"] == first.scores["baselines"]
    assert capsys.readouterr().out.count("scoring the hand-designed samplers") == 1
    longer = HeldOutEvaluation(evaluation.family, 40, samples=4, tasks=2, lrs=(0.05, 0.2))
    with pytest.raises(ValueError, match=r"another run: held_out\.tasks is 1 there and 2 here"):
        on_digits(tmp_path, longer, iterations=3)
    assert on_digits(tmp_path, iterations=3, evaluate_every=0).iteration == 2  # without any it goes on


def test_held_out_tasks_are_fixed_and_run_as_the_sampler_is_trained(monkeypatch):
    seen, unrolls_of, rule = [], module.unrolls_of, SGHMCRule()
    monkeypatch.setattr(module, "unrolls_of", lambda *args, **more: seen.append(args[2]) or unrolls_of(*args, **more))

    def runs(**burn_in):
        made = HeldOutEvaluation(family_named("digits"), 80, samples=4, tasks=1, chains=1, lrs=(0.1,), **burn_in)
        assert {config.split for config in made.configs} == {made.specification()["split"]} == {"val"}
        seen.clear()
        return made, made.score(rule), seen[:], made.baselines(), seen[1:]

    plain, score, (timetable,), baselines, theirs = runs()
    late, _, (schedule,), *others = runs(burn_in=0.9)
    assert schedule == Horizon(80, 80, 4, 0.9).schedule_of(80)
    assert timetable == Schedule.ending(80, 40, 4)
    assert score == baselines["SGHMC"]
    assert others == [baselines, theirs], "the baselines are run as they were"
    assert late.configs == plain.configs
    assert late.specification() == {**plain.specification(), "burn_in": 0.9}


def test_figures_have_a_cadence_of_their_own(tmp_path):
    run(tmp_path / "every", iterations=3, evaluate_every=0, figures_every=2)
    assert [event.step for event in logged(tmp_path / "every").Images("network/contours")] == [0, 2]
    run(tmp_path / "never", iterations=1, evaluate_every=0, figures_every=0)
    assert "network/contours" not in logged(tmp_path / "never").Tags()["images"]
    # the cadence may change when a run goes on
    assert on_digits(tmp_path / "never", iterations=2, evaluate_every=0, figures_every=1).iteration == 1


def test_what_was_logged_after_the_checkpoint_that_a_run_goes_on_from_is_dropped(tmp_path, evaluation):
    """Scalars, scores and figures: a curve that TensorBoard shows is that of one run."""
    settings = {"evaluate_every": 3, "figures_every": 1, "checkpoint_minutes": 0.0}
    reference = run(tmp_path, evaluation, iterations=3, **settings)
    for path in reference.checkpoints.paths()[1:]:
        path.unlink()
    resumed = run(tmp_path, evaluation, iterations=2, **settings)
    assert len(resumed.history["loss"]) == 2
    log = logged(tmp_path)
    assert [event.step for event in log.Scalars("meta_loss/all")] == [1, 2]
    assert [event.step for event in log.Scalars("held_out_nll/sampler")] == [0]
    assert [event.step for event in log.Images("network/contours")] == [0, 1, 2]


@pytest.mark.parametrize(
    "curves",
    [{"digits-cnn": [float("nan")] * 4}, {f"kind {i} of many": [1.0, 0.5] for i in range(64)}],
    ids=["of failed members alone", "of more kinds than a legend holds"],
)
def test_curves_are_drawn_without_a_warning(tmp_path, monkeypatch, curves):
    made = on_digits(tmp_path, iterations=1, evaluate_every=0)
    run_job = made.executor.run
    monkeypatch.setattr(made.executor, "run", lambda *args: [replace(r, curves=curves) for r in run_job(*args)])
    made.run()
    made.close()
    assert "inner_loop/curves" in logged(tmp_path).Tags()["images"]


# --- the stopping rule: the best weights are kept, patience counts evaluations, and both survive a stop ---


class Scripted:
    """Held-out scores that are given, one an evaluation, in the place of `HeldOutEvaluation`."""

    def __init__(self, *nlls):
        self.nlls = nlls

    def check(self, rule):
        pass

    def record(self, scores, rule, weights, iteration):
        rows = scores.setdefault("sampler", [])
        scores.setdefault("baselines", {})
        rows.append({"iteration": iteration, "nll": self.nlls[min(len(rows), len(self.nlls) - 1)]})
        return Score(rows[-1]["nll"], 0.5, 0.0)


def in_sessions(nlls, *sessions, folder=None):
    """Runs of one folder, each of (iterations, patience); the last one, its end, and φ̄ by iteration."""
    averages = {}
    for iterations, patience in sessions:
        made = trainer(folder, iterations, evaluation=Scripted(*nlls), evaluate_every=2, patience=patience)
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
