"""Meta-trainings for tests: the smallest meta-learner, on quadratics, unless something else is asked for."""

from meta_tasks.estimators import AntitheticES, NoiseReuseES
from meta_tasks.inner_loop import Horizon
from meta_tasks.training import ProcessExecutor, SerialExecutor, Trainer, TrainerSettings
from tests.meta_tasks.toy_tasks import LearnableSGD, QuadraticFamily

HORIZON = Horizon(12, 12, samples=3)


def es(**settings):
    return AntitheticES(**{"sigma": 0.2, "pairs": 4, "horizon": HORIZON, **settings})


def nres():
    return NoiseReuseES(0.2, 4, HORIZON, 4)


def workers(count):
    """The executor with so many processes."""
    return lambda evaluator: ProcessExecutor(evaluator, count)


def trainer(
    folder=None,
    iterations=20,
    estimator=None,
    family=None,
    rule=None,
    executor=SerialExecutor,
    evaluation=None,
    main=True,
    **settings,
):
    settings = TrainerSettings(**{"iterations": iterations, "evaluate_every": 0, "learning_rate": 0.1, **settings})
    family, rule, estimator = family or QuadraticFamily(), rule or LearnableSGD(), estimator or es()
    options = dict(folder=folder, make_executor=executor, evaluation=evaluation, main=main)
    return Trainer(family, rule, estimator, settings, **options)


def run(folder=None, iterations=20, **arguments):
    """A trainer that has run, and is closed."""
    made = trainer(folder, iterations, **arguments)
    try:
        made.run()
    finally:
        made.close()
    return made
