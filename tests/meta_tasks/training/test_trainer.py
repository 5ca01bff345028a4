"""The trainer with the smallest meta-learner: it learns, it resumes bit for bit, it refuses what does not fit."""

import math
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from learned_samplers.base.files import LOCK
from meta_tasks.estimators import Shaping
from meta_tasks.rules.learned import L2ERule
from meta_tasks.training.checkpoint import Checkpoints
from meta_tasks.training.workers import SerialExecutor
from tests.meta_tasks.toy_runs import es, nres, run, trainer, workers
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily


@pytest.mark.parametrize("estimator", [es(), nres()], ids=["es", "nres"])
def test_learnable_sgd_learns_its_learning_rate(estimator):
    # lr 0.02 and twelve steps on curvatures of about 3/5 leave nearly all of the loss; a good step takes it to a few %
    family = QuadraticFamily(lr=0.02)
    learned = run(family=family, estimator=estimator, iterations=80, max_gradient_norm=None)
    first, last = (sum(learned.history["loss"][part]) / 10 for part in (slice(0, 10), slice(-10, None)))
    assert last < 0.5 * first
    assert learned.weights[0] > 1.5  # the learning rate grew more than fourfold


def test_the_running_average_is_that_of_the_weights():
    made = trainer(averaging=0.75)
    expected = made.weights.detach().clone()
    for _ in range(4):
        made.step()
        expected = 0.75 * expected + 0.25 * made.weights.detach()
    torch.testing.assert_close(made.averaged, expected)
    plain = trainer(averaging=0.0)
    plain.step()
    assert torch.equal(plain.averaged, plain.weights)


def test_adam_keeps_its_moments_and_the_norm_is_clipped():
    made = trainer(max_gradient_norm=1e-3, iterations=3)
    for count in (1, 2, 3):
        done = made.step()
        assert done.gradient_norm > 1e-3
        assert made.weights.grad.norm() == pytest.approx(1e-3, rel=1e-5)
        (state,) = made.optimizer.state.values()
        assert state["step"] == count
    assert made.optimizer.param_groups[0]["betas"] == (0.9, 0.99)


@pytest.mark.parametrize("estimator", [es, nres])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path, estimator):
    family = QuadraticFamily(temperature=1.0)
    reference = run(family=family, estimator=estimator(), folder=tmp_path / "whole")
    for stop in (3, 4, 11, 20):
        part = run(family=family, estimator=estimator(), folder=tmp_path / "parts", iterations=stop)
        assert part.iteration == stop
    assert torch.equal(part.weights, reference.weights)
    assert torch.equal(part.averaged, reference.averaged)
    assert part.history["loss"] == reference.history["loss"]
    assert part.weights.abs().max() > 0.1  # it went somewhere


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_worker_processes_give_the_weights_that_one_process_gives(tmp_path, double_precision):
    """Workers have the default dtype of their trainer, which the run keeps."""
    # noise reuse is the harder case: the workers keep unrolls, which the checkpoint must collect from them
    serial = run(estimator=nres(), iterations=6)
    shared = trainer(tmp_path, 3, nres(), executor=workers(2))
    try:
        shared.run()
        assert shared.history["loss"] == serial.history["loss"][:3]
        with pytest.raises(RuntimeError, match=r"failed:\nTraceback(.|\n)*ValueError: weights must be \(2, 2\)"):
            shared.executor.run(shared._jobs(), torch.zeros(1))
        shared.executor._processes[0].kill()
        shared.executor._processes[0].join()
        with pytest.raises(RuntimeError, match="worker process of the meta-training died"):
            shared.executor.run(shared._jobs(), shared.weights)
    finally:
        shared.close()
    resumed = run(folder=tmp_path, iterations=6, estimator=nres())  # in one process now
    assert torch.equal(resumed.weights, serial.weights)
    torch.set_default_dtype(torch.float32)
    with pytest.raises(ValueError, match=r"dtype is 'torch\.float64' there and 'torch\.float32' here"):
        trainer(tmp_path, estimator=nres())


def test_a_default_device_changes_nothing():
    """Random streams are on the CPU; on "meta" there are no numbers."""
    with torch.device("meta"):
        result = run(estimator=nres(), iterations=2)
    assert torch.equal(result.weights, run(estimator=nres(), iterations=2).weights)


def test_pairs_of_failed_members_do_not_count_and_are_reported():
    # a learning rate of e¹⁰⁰ overflows within a few steps
    made = trainer(estimator=es(sigma=100.0))
    before = made.weights.detach().clone()
    done = made.step()
    assert done.failed >= 4
    assert made.history["failed"] == [done.failed]
    assert made.weights.isfinite().all()
    assert torch.isfinite(torch.tensor(done.gradient_norm))
    finite = [result.losses.isfinite().all(1).any().item() for result in done.results]
    assert (not torch.equal(before, made.weights)) == any(finite)


@pytest.mark.parametrize("loss", [3e38, math.nan, math.inf])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_meta_gradient_that_overflows_does_not_reach_adam(loss, limit, monkeypatch):
    """Unshaped, and not clipped: in single precision its moments would be NaN for ever."""
    made = trainer(estimator=es(shaping=Shaping("none"), sigma=0.03), max_gradient_norm=limit)
    run_job = made.executor.run
    losses = torch.tensor([[loss, 1.0]], dtype=torch.float64)
    overflown = lambda *args: [replace(result, losses=losses) for result in run_job(*args)]  # noqa: E731
    monkeypatch.setattr(made.executor, "run", overflown)
    told = (
        pytest.warns(UserWarning, match="iteration 0 is not finite") if (loss, limit) == (3e38, None) else nullcontext()
    )
    with told:
        made.step()
    monkeypatch.undo()
    made.step()
    assert made.weights.isfinite().all()
    assert made.averaged.isfinite().all()
    assert made.weights.any()


@pytest.mark.filterwarnings("ignore:the meta-gradient was exactly 0")  # after a hundred iterations, on a fast machine
def test_time_ends_a_run_and_saves_it_and_a_folder_has_one_run(tmp_path):
    slow = trainer(tmp_path, iterations=10**6)
    assert (slow.run(minutes=0), slow.iteration) == ("time is up", 0)
    started = time.monotonic()
    assert slow.run(minutes=0.01) == "time is up"
    assert 0.5 < time.monotonic() - started < 20
    done = slow.iteration
    assert done > 0
    assert slow.checkpoints.load()["iteration"] == done
    with pytest.raises(RuntimeError, match="is being written by another object of this process"):
        trainer(tmp_path, iterations=10**6)
    (tmp_path / LOCK).unlink()
    with pytest.raises(RuntimeError, match="has been removed or replaced: nothing is written"):
        slow.run(minutes=0.001)
    slow.close()
    assert trainer(tmp_path, iterations=10**6).iteration == done


class Failing(SerialExecutor):
    """Fails at its fourth call, in the middle of the jobs."""

    calls = 0

    def run(self, jobs, weights):
        self.calls += 1
        if self.calls == 4:
            super().run(jobs[:1], weights)
            raise RuntimeError("a worker process died")
        return super().run(jobs, weights)


def failed(made):
    """Last words of a run that fails, about what was saved."""
    with pytest.raises(RuntimeError, match="a worker process died") as failure:
        made.run()
    made.close()
    return failure.value.__notes__[0]


def test_a_failed_iteration_saves_those_before_it(tmp_path):
    assert failed(trainer(tmp_path, 6, executor=Failing)) == "saved after iteration 3"
    resumed = trainer(tmp_path, 6)
    assert resumed.iteration == 3
    resumed.run()
    assert torch.equal(resumed.weights, run(iterations=6).weights)


def test_nothing_is_saved_that_would_not_go_on_as_it_was(tmp_path, monkeypatch):
    """A failed iteration of noise reuse has moved some of the unrolls; without one done there is nothing to save."""
    failing = trainer(tmp_path / "nres", 6, nres(), executor=Failing)
    assert failed(failing).startswith("not saved since the last checkpoint: the unrolls")
    with pytest.raises(RuntimeError, match="make a new Trainer of the same folder"):
        failing.run()
    assert failing.checkpoints.paths() == []
    again = trainer(tmp_path / "es", 6, executor=Failing)
    again.executor.calls = 3
    assert failed(again) == "nothing to save since iteration 0"
    assert again.checkpoints.paths() == []
    unsaved = trainer(tmp_path / "full", 6, executor=Failing)  # the failure to save does not hide the one before it
    monkeypatch.setattr(unsaved.checkpoints, "save", lambda *_: 1 / 0)
    assert failed(unsaved) == "and the run could not be saved: ZeroDivisionError: division by zero"


def test_a_failure_between_iterations_saves_the_unrolls_too(tmp_path, monkeypatch):
    failing = trainer(tmp_path, 6, nres(), figures_every=4)

    def full(weights):
        if failing.iteration:
            raise OSError(28, "No space left on device")
        return {}

    monkeypatch.setattr(failing.rule, "figures", full)
    with pytest.raises(OSError, match="No space left") as failure:
        failing.run()
    assert failure.value.__notes__ == ["saved after iteration 4"]
    failing.close()
    resumed = run(folder=tmp_path, iterations=6, estimator=nres())
    assert torch.equal(resumed.weights, run(iterations=6, estimator=nres()).weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": L2ERule("residual")}, "sampler.form is here only.*sampler.sampler is 'LearnableSGD' there and 'L2E'"),
        ({"family": QuadraticFamily(lr=0.5)}, "tasks.lr is 0.1 there and 0.5 here"),
        ({"estimator": es(sigma=0.1)}, "estimator.sigma is 0.2 there and 0.1 here"),
        ({"estimator": nres()}, "estimator.estimator is 'antithetic_es' there and 'noise_reuse_es' here"),
        ({"seed": 1}, "outer_loop.seed is 0 there and 1 here"),
        ({"family": QuadraticFamily(data={"digits": "a", "mnist": "c"})}, "data.mnist is here only"),
        ({"family": QuadraticFamily(data={"digits": "b"})}, "data.digits is 'a' there and 'b' here"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, change, message):
    family = QuadraticFamily(data={"digits": "a"})
    run(folder=tmp_path, iterations=1, family=family)
    with pytest.raises(ValueError, match=f"are of another run: .*{message}"):
        trainer(tmp_path, **{"family": family, **change})
    assert trainer(tmp_path, iterations=99, family=family).iteration == 1  # a longer run of the same kind goes on


def test_the_log_of_an_iteration_is_what_its_pairs_say():
    made = trainer()
    done = made.step()
    losses = torch.cat([result.losses for result in done.results])
    assert done.loss == pytest.approx(losses.mean().item())
    assert done.median_loss == losses.median()
    differences = losses[:, 0] - losses[:, 1]
    assert done.mean_difference == pytest.approx(differences.mean().item())
    assert done.rms_difference == pytest.approx(differences.square().mean().sqrt().item())
    assert done.member_steps_per_second > 0
    assert sum(result.member_steps for result in done.results) == 8 * 12
    assert all(math.isfinite(point) for result in done.results for curve in result.curves.values() for point in curve)


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    made = trainer(tmp_path, iterations=4)
    made.step()
    monkeypatch.setattr(made.monitor._writer, "add_scalar", full)
    with pytest.warns(UserWarning, match="log ends here, the run goes on: .*No space left") as said:
        assert made.run() == "finished"
    assert len(said) == 1
    made.close()
    assert Checkpoints(tmp_path).load()["iteration"] == 4


def test_a_step_ends_where_the_rule_allows():
    rule = LearnableSGD()
    rule.constrained = lambda weights: weights.clamp(max=-0.25)
    assert run(rule=rule, iterations=2).weights.max() <= -0.25
    assert run(iterations=2).weights.max() > -0.25


class WithoutEffect(LearnableSGD):
    def prepare(self, weights):
        return super().prepare(torch.zeros_like(weights))


def test_a_meta_gradient_that_stays_zero_is_told_once():
    made = trainer(iterations=8, rule=WithoutEffect())
    with pytest.warns(UserWarning, match=r"exactly 0 in 3 iterations in a row \(0 runs failed in the last\)") as told:
        made.run()
    assert len(told) == 1
    assert made.history["gradient_norm"] == [0.0] * 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(iterations=2, rule=WithoutEffect()).run()  # two may be chance
        trainer(iterations=4).run()
