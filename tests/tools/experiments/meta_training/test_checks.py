"""What `meta_train.py` refuses of its options together, and how it evaluates on held-out tasks."""

import meta_train
import pytest
from experiments.meta_training.options import Options

TINY = ["--family", "digits", "--horizon", "80", "80", "--samples", "4", "--pairs", "1", "--no-progress"]


def options(folder, *more):
    return meta_train.tyro.cli(Options, args=["--folder", str(folder), *TINY, *more])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--minutes", "nan"], "minutes must be finite, got nan"),
        (["--minutes", "-3"], "minutes must not be negative, got -3.0"),
        (
            ["--capture"],
            "capture=True is for a CUDA device, got device='cpu': add --device cuda, or leave --capture out",
        ),
        (["--workers", "0"], "workers must be at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry"])
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path, more, dry, message):
    folder = tmp_path / "run"
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        meta_train.main(options(folder, *more, *dry))
    assert not folder.exists()


def test_held_out_tasks_are_run_in_the_cycles_and_with_the_burn_in_of_training(tmp_path):
    made = meta_train.make_trainer(
        options(tmp_path, "--cycles", "2", "--burn-in", "0.8", "--held-out-tasks", "1", "--feature-set", "lean")
    )
    trained = made.estimator.jobs(0, 0)[0].schedule
    assert made.evaluation._schedule(made.rule) == trained
    assert trained.cycle_length == 40
    made.close()
