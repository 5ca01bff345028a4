"""Two real processes of torch.distributed that run one trainer."""

import os

import torch
import torch.distributed
import torch.multiprocessing

from meta_tasks.estimators import Evaluator, NoiseReuseES
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.training import Trainer, TrainerSettings
from meta_tasks.training.workers import RankExecutor
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily


def trainer(folder, iterations, **arguments):
    """Noise reuse: the ranks keep unrolls, which a checkpoint must collect from them and give to them again."""
    settings = TrainerSettings(iterations=iterations, evaluate_every=0, learning_rate=0.1)
    estimator = NoiseReuseES(0.2, 4, Horizon(12, 12, samples=3), 4)
    return Trainer(QuadraticFamily(), LearnableSGD(), estimator, settings, folder=folder, **arguments)


def failing(self, job, weights):
    raise ValueError("this job cannot run")


def run(folder, iterations):
    made = trainer(folder, iterations)
    made.run()
    made.close()
    return made


def one_rank(rank, folder):
    """Join the group, continue from a folder of this rank's own, and write what came of it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    try:
        if (folder / "fails").exists() and rank == 1:
            Evaluator.run = failing
        own = folder / "rank0" if (folder / "shared").exists() else folder / f"rank{rank}"
        made = trainer(own, 5, make_executor=RankExecutor, main=rank == 0)
        found = {"started": made.iteration, "ended": made.run(), "weights": made.weights.detach()}
        found["losses"] = made.history["loss"]
        made.close()
    except (ValueError, RuntimeError) as error:
        found = {"error": str(error)}
    torch.save(found, folder / f"found{rank}.pt")
    torch.distributed.destroy_process_group()


def both_ranks(folder):
    (folder / "meeting").unlink(missing_ok=True)  # of an earlier pair: what it says would keep this one waiting
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=one_rank, args=(rank, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=90)
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
        process.join()
    assert not hanging
    return [torch.load(folder / f"found{rank}.pt") for rank in range(2)]


def test_ranks_go_on_from_the_checkpoint_of_the_first_where_the_second_has_none(tmp_path):
    run(tmp_path / "rank0", 3)
    whole = run(None, 5)
    for found in both_ranks(tmp_path):
        assert found["started"] == 3
        assert found["ended"] == "finished"
        assert torch.equal(found["weights"], whole.weights)
        assert found["losses"] == whole.history["loss"]


def test_what_is_wrong_with_the_checkpoints_of_the_first_rank_is_told_on_both(tmp_path):
    run(tmp_path / "rank0", 3)
    run(tmp_path / "rank1", 2)
    for path in (tmp_path / "rank0").glob("checkpoint*"):
        path.write_bytes(b"")
    for found in both_ranks(tmp_path):
        assert found == {"error": f"none of the 1 checkpoints in {tmp_path / 'rank0'} can be read"}


def test_the_ranks_of_a_trainer_share_a_folder_that_is_locked_against_others(tmp_path):
    (tmp_path / "shared").touch()
    assert [found["ended"] for found in both_ranks(tmp_path)] == ["finished", "finished"]
    assert not (tmp_path / "rank0" / ".lock").exists()
    other = trainer(tmp_path / "rank0", 9)  # of this process
    for found in both_ranks(tmp_path):
        assert f"{tmp_path / 'rank0'} is being written by process {os.getpid()} on host" in found["error"]
    other.close()


def test_a_job_that_fails_on_one_rank_is_told_on_both_at_once(tmp_path):
    (tmp_path / "fails").touch()
    first, second = both_ranks(tmp_path)  # within its 90 seconds: gloo would wait for half an hour
    assert first["error"].startswith("rank 1 of the meta-training failed:")
    assert "ValueError: this job cannot run" in first["error"]
    assert second == {"error": "this job cannot run"}
