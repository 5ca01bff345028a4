"""Meta-train a sampler on random tasks: by evolution strategies, or Meta-SGMCMC by truncated back-propagation.

    python tools/meta_train.py --folder runs/first --family digits --minutes 10     # needs no files; ten minutes
    python tools/meta_train.py --folder runs/l2e --family cpu --data ~/data --iterations 2000 --workers 2
    python tools/meta_train.py --folder runs/toy --family gaussians --sampler MetaSGMCMC --method tbptt \\
        --objective stein_kl --evaluate-every 0 --horizon 150 300 --window 15
    tensorboard --logdir runs

A run continues from the checkpoints in its folder: the same command again resumes it, after Ctrl-C or after a crash.
Ctrl-C ends the iteration at once and saves those before; a second one ends anything.
The folder also gets the weights as weights.safetensors with a card, and TensorBoard logs. With torchrun, every rank
takes its share of the antithetic pairs.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

from experiments.harness.output import explained, one_line, quiet_threads, terminated_as_exit
from experiments.meta_training.options import Options, parse
from experiments.meta_training.training import make_trainer, write_weights

from meta_tasks.training.process import one_core


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse(arguments, __doc__)
    one_core()
    quiet_threads()
    # While iterations run, SIGTERM is only noted, and they are saved; at other times it ends the process.
    with terminated_as_exit(f"terminated; the same command goes on from the checkpoints in {options.folder}"):
        train(options)


def train(options: Options) -> None:
    """Make the trainer, run it, and write the weights; a user's error ends the process with one line."""
    try:
        trainer = make_trainer(options)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError) as error:
        raise SystemExit(f"error: {one_line(error)}") from error
    except KeyboardInterrupt as error:
        raise SystemExit("interrupted before the first iteration") from error
    if trainer.iteration:
        print(f"continuing {options.folder} after {trainer.iteration} iterations", flush=True)
    try:
        ended = trainer.run(options.minutes, not options.no_progress and trainer.main)
        if trainer.main:
            path = write_weights(trainer, options)
            minutes = trainer.seconds / 60
            print(f"{ended} after {trainer.iteration} iterations that took {minutes:.1f} minutes; weights in {path}")
    except KeyboardInterrupt as error:  # the second one
        for worker in multiprocessing.active_children():
            worker.kill()
        saved = f"the same command goes on from the checkpoints in {options.folder}"
        raise SystemExit(f"interrupted within an iteration; {saved}") from error
    except (OSError, RuntimeError) as error:  # a full disk, a worker that died
        raise SystemExit(f"error: {one_line(error)}") from error
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
