"""`RankExecutor`: two real processes of torch.distributed that run one trainer, one scenario after the other."""

import os

import pytest
import torch
import torch.distributed
import torch.multiprocessing

from meta_tasks.estimators import Evaluator
from meta_tasks.training.workers import RankExecutor
from tests.meta_tasks.toy_runs import nres, run, trainer

SCENARIOS = ("goes on", "damaged", "shared", "locked", "fails")


def failing(self, job, weights):
    raise ValueError("this job cannot run")


def one_rank(rank, folder):
    """Join the group; in each scenario continue from a folder of this rank's own, and write what came of it."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    for scenario in SCENARIOS:
        place = folder / scenario
        if scenario == "fails" and rank == 1:
            Evaluator.run = failing
        try:
            # Noise reuse: the ranks keep unrolls, which a checkpoint must collect from them and give to them again.
            shared = scenario in ("shared", "locked")
            options = dict(estimator=nres(), executor=RankExecutor, main=rank == 0)
            made = trainer(place / ("rank0" if shared else f"rank{rank}"), 5, **options)
            outcome = {"started": made.iteration, "ended": made.run(), "weights": made.weights.detach()}
            outcome["losses"] = made.history["loss"]
            made.close()
        except (ValueError, RuntimeError) as error:
            outcome = {"error": str(error)}
        torch.save(outcome, place / f"outcome{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Outcome of each scenario on both ranks, within 90 seconds (gloo would wait for half an hour); and its folder."""
    folder = tmp_path_factory.mktemp("ranks")
    for scenario in SCENARIOS:
        (folder / scenario).mkdir()
    run(folder / "goes on" / "rank0", 3, estimator=nres())
    for rank, iterations in enumerate((3, 2)):
        run(folder / "damaged" / f"rank{rank}", iterations, estimator=nres())
    for path in (folder / "damaged" / "rank0").glob("checkpoint*"):
        path.write_bytes(b"")
    lock = trainer(folder / "locked" / "rank0", 9, estimator=nres())  # of this process
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
    lock.close()
    assert not hanging
    outcomes = {
        scenario: [torch.load(folder / scenario / f"outcome{rank}.pt") for rank in range(2)] for scenario in SCENARIOS
    }
    return outcomes, folder


def test_ranks_go_on_from_the_checkpoint_of_the_first_where_the_second_has_none(ranks):
    reference = run(None, 5, estimator=nres())
    for outcome in ranks[0]["goes on"]:
        assert outcome["started"] == 3
        assert outcome["ended"] == "finished"
        assert torch.equal(outcome["weights"], reference.weights)
        assert outcome["losses"] == reference.history["loss"]


def test_what_is_wrong_with_the_checkpoints_of_the_first_rank_is_told_on_both(ranks):
    outcomes, folder = ranks
    for outcome in outcomes["damaged"]:
        assert outcome == {"error": f"none of the 1 checkpoints in {folder / 'damaged' / 'rank0'} can be read"}


def test_the_ranks_of_a_trainer_share_a_folder_that_is_locked_against_others(ranks):
    outcomes, folder = ranks
    assert [outcome["ended"] for outcome in outcomes["shared"]] == ["finished", "finished"]
    assert not (folder / "shared" / "rank0" / ".lock").exists()
    for outcome in outcomes["locked"]:
        locked = f"{folder / 'locked' / 'rank0'} is being written by process {os.getpid()} on host"
        assert locked in outcome["error"]


def test_a_job_that_fails_on_one_rank_is_told_on_both_at_once(ranks):
    first, second = ranks[0]["fails"]
    assert first["error"].startswith("rank 1 of the meta-training failed:")
    assert "ValueError: this job cannot run" in first["error"]
    assert second == {"error": "this job cannot run"}
