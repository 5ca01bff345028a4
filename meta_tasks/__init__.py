"""Meta-training of samplers: random image-classification tasks, inner loops on them, and estimated meta-gradients.

The rooms, each of which imports only those above it:

- `random_streams`: random numbers that follow from keys, in any process and in any order.
- `datasets`: image data sets as tensors.
- `networks`: image classifiers, and many copies of one evaluated at once.
- `rules`: the samplers' update rules as the inner loop runs them.
- `tasks`: a data set, a network and a sampler's settings; distributions over tasks.
- `objectives`: how good the states are that a sampler collects.
- `inner_loop`: many samplers run side by side on one task.
- `estimators`: the gradient of the objective in the sampler's meta-parameters.
- `training`: the outer loop, with workers, checkpoints, held-out evaluation and logs.

A meta-training in ten lines::

    from meta_tasks.estimators import AntitheticES
    from meta_tasks.inner_loop import Horizon
    from meta_tasks.rules.learned import L2ERule
    from meta_tasks.tasks import family_named
    from meta_tasks.training import Trainer, TrainerSettings

    estimator = AntitheticES(sigma=0.05, pairs=4, horizon=Horizon(100, 200))
    settings = TrainerSettings(iterations=50, evaluate_every=0)
    trainer = Trainer(family_named("digits"), L2ERule("residual"), estimator, settings)
    trainer.run(progress=True)
    weights = trainer.averaged  # of the learned sampler's network

``tools/meta_train.py`` does this from the command line, and writes a weight file with its card.
"""
