"""The runs of `multi_task.py`: every method tuned and run, on one data set after the other."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from experiments.harness.run_store import RunStore
from experiments.harness.tuning import Tuning, score_text, tune
from experiments.multi_task.options import Choice, TaskOptions
from experiments.multi_task.runner import Result, run, store_for
from meta_tasks.datasets import MultiTaskData


def planned_epochs(options: TaskOptions, method: str) -> int:
    """Of all runs of a method, if the grid is not extended."""
    count = len(options.choices(method))
    return options.settings.epochs * options.seeds + (options.tune_epochs * count if count > 1 else 0)


class Comparison:
    """The runs of one call.

    Args:
        device: to compute on.
        bar: of all runs together, in steps.

    Attributes:
        tasks, tunings, finals: by data set its tasks, and by method what was tried and the final runs, one a seed.
    """

    def __init__(self, options: TaskOptions, device: str, bar: Any) -> None:
        self.options, self.device, self.bar = options, device, bar
        self.tasks: dict[str, tuple[str, ...]] = {}
        self.tunings: dict[str, dict[str, Tuning[Choice, Result]]] = {}
        self.finals: dict[str, dict[str, list[Result]]] = {}

    def steps(self, data: MultiTaskData, epochs: int) -> int:
        return epochs * (data.num_data // min(self.options.settings.batch_size, data.num_data))

    def run(
        self, method: str, choice: Choice, epochs: int, seed: int, data: MultiTaskData, store: RunStore, *, test: bool
    ) -> Result:
        """One run; what was read from disk leaves the bar's total."""
        before = self.bar.n
        self.bar.set_description(f"{data.name}, {method}, {choice}, seed {seed}")
        result = run(
            self.options.settings, method, choice.lr, choice.energy, epochs, seed, data, store, bar=self.bar, test=test
        )
        self.bar.total -= self.steps(data, epochs) - (self.bar.n - before)
        self.bar.refresh()
        return result

    def tune(self, method: str, data: MultiTaskData, store: RunStore) -> Choice:
        """The choice with the lowest validation NLL.

        Raises:
            RuntimeError: all of them diverged.
        """
        options, choices = self.options, self.options.choices(method)
        if len(choices) == 1:
            return choices[0]

        def attempt(choice: Choice, seed: int) -> Result:
            if choice not in choices:
                self.bar.total += self.steps(data, options.tune_epochs)
            return self.run(method, choice, options.tune_epochs, seed, data, store, test=False)

        try:
            tuning = tune(
                choices,
                attempt,
                lambda result: result.validation_nll,
                seeds=options.seed_list(1),
                extensions=options.extensions,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{method} on {data.name}: {error}") from error
        self.tunings.setdefault(data.name, {})[method] = tuning
        edge = " (at the edge of what was tried)" if tuning.edges() else ""
        tried = "; ".join(f"{choice}: {score_text(tuning.mean(choice))}" for choice in sorted(tuning.trials))
        tqdm.write(f"{data.name}, {method}: {tuning.chosen}{edge}. Validation NLL: {tried}")
        return tuning.chosen

    def compare(self, name: str) -> None:
        """Everything on one data set."""
        options = self.options
        data = options.load(name).to(self.device)
        store = store_for(options.out, data, fresh=options.fresh)
        self.tasks[name], self.finals[name] = data.tasks, {}
        self.bar.total = (self.bar.total or 0) + sum(
            self.steps(data, planned_epochs(options, m)) for m in options.method
        )
        tqdm.write(
            f"{name}: {data.num_data} training, {len(data.val_y)} validation, {len(data.test_y)} test images of "
            f"{'×'.join(map(str, data.input_shape))}, {len(data.tasks)} tasks"
        )
        for method in options.method:
            choice = self.tune(method, data, store)
            self.finals[name][method] = [
                self.run(method, choice, options.settings.epochs, seed, data, store, test=True)
                for seed in options.seed_list()
            ]
