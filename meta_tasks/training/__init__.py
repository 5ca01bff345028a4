"""Meta-training: the trainer, its workers, checkpoints, evaluation and logs."""
