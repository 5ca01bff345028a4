"""Worker processes: the signals that reach them with their trainer, and their end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from meta_tasks.estimators import AntitheticES
from meta_tasks.estimators.base import Evaluator
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.training import SerialExecutor, workers
from meta_tasks.training.checkpoint import Checkpoints
from meta_tasks.training.workers import ProcessExecutor
from tests.meta_tasks import toy_runs
from tests.meta_tasks.toy_runs import es, trainer
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily

ROOT = Path(__file__).parents[3]
# It does not close the trainer: the end of the interpreter must not wait for workers that ignore SIGTERM.
SCRIPT = """
import sys
from pathlib import Path
from tests.meta_tasks.toy_runs import trainer, workers

if __name__ == "__main__":
    made = trainer(Path(sys.argv[1]), 10**6, executor=workers(1), checkpoint_minutes=1000.0)
    made.step()
    print("ready", flush=True)
    print(made.run(), "after", made.iteration)
"""


@pytest.fixture
def group(tmp_path):
    """The script in a process group of its own, once its worker is at work."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")],
        cwd=ROOT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)[1]
    time.sleep(0.5)  # well within the run
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_sigterm_to_the_whole_group_ends_the_run_and_saves_it(group, tmp_path):
    for _ in range(2):  # a launcher may send its own beside the group's
        os.killpg(group.pid, signal.SIGTERM)
    output, errors = group.communicate(timeout=60)
    assert group.returncode == 0, errors
    iteration = Checkpoints(tmp_path / "run").load()["iteration"]
    assert output == f"interrupted after {iteration}\n"
    assert iteration > 1


def at_work(group):
    """The processes of a group that are no zombies."""
    fields = [path.read_text().rsplit(")", 1)[1].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return sum(state != "Z" and int(process_group) == group for state, _, process_group, *_ in fields)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_workers_do_not_outlive_a_trainer_that_is_killed(group):
    """SIGKILL, as of a full memory, leaves no time to end them: they find their connection closed."""
    assert at_work(group.pid) >= 2
    group.kill()
    group.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while at_work(group.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert at_work(group.pid) == 0


@dataclass(frozen=True)
class SlowFamily(QuadraticFamily):
    """The task of the first job takes a minute to make, that of the others a moment."""

    def task(self, *labels):
        time.sleep(60 if labels[-1] == 0 else 0.5)
        return super().task(*labels)


def test_closing_waits_for_busy_workers_and_ends_those_that_do_not_leave(monkeypatch, capfd):
    monkeypatch.setattr(workers, "_GOODBYE", 3.0)
    estimator = es()
    executor = ProcessExecutor(estimator.evaluator(SlowFamily(), LearnableSGD(), "bma", 0), 2)
    executor.state_dict()  # both are there
    for connection, job in zip(executor._connections, estimator.jobs(0, 0)):
        connection.send(("run", (job, torch.zeros(2).numpy())))
    processes = list(executor._processes)
    for process in processes:
        process.terminate()
    started = time.monotonic()
    executor.close()
    assert time.monotonic() - started < 30
    assert [process.exitcode for process in processes] == [-signal.SIGKILL, 0]
    assert capfd.readouterr().err == ""  # nobody to tell is no failure
    executor.close()  # once more does no harm


class FailingOnce(Evaluator):
    """Its first job of all fails in whatever process it is in."""

    def run(self, job, weights):
        if job.pairs[0] == (0, 0) and not self.flag.exists():
            self.flag.touch()
            raise MemoryError("once")
        return super().run(job, weights)


class FailingOnceES(AntitheticES):
    def evaluator(self, family, rule, objective, seed):
        made = FailingOnce(family, rule, objective, self.sigma, seed)
        made.flag = self.flag
        return made


def test_after_a_job_that_failed_the_others_answers_are_not_taken_for_later_ones(tmp_path):
    ends = []
    for number, executor in enumerate((toy_runs.workers(2), SerialExecutor)):
        estimator = FailingOnceES(0.1, 4, Horizon(20, 20, samples=2))
        estimator.flag = tmp_path / f"flag{number}"
        made = trainer(None, 3, estimator=estimator, executor=executor)
        try:
            with pytest.raises((MemoryError, RuntimeError), match="once"):
                made.run()
            made.run()
        finally:
            made.close()
        ends.append(made.weights.detach())
    assert torch.equal(*ends)
