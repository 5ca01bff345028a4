"""The runs of `sample.py`: every method at its own learning rate, or at the best of a few."""

from __future__ import annotations

from experiments.harness.tuning import Choice, Tuning, score_text, tune
from experiments.images.result import Result
from experiments.images.runner import ImageRuns, store_for
from experiments.images.sample_options import SampleOptions
from meta_tasks.datasets import ImageData

Trials = Tuning[Choice, Result]


class Sampling:
    """The runs of one call, method by method; runs made for the tuning are not repeated."""

    def __init__(self, options: SampleOptions, data: ImageData, ood: dict[str, ImageData]) -> None:
        self.options = options.on(data)
        self.runs = ImageRuns(data, ood, store_for(options.folder(), data, ood, fresh=options.fresh))

    def run(self, method: str, lr: float, seed: int, title: str) -> Result:
        """One run, read back where it is already there, unless --fresh forbids it."""
        return self.runs.run(self.options.settings, method, lr, seed, title=title)

    def tune(self, method: str, label: str) -> Trials:
        """The runs over the learning-rate grid.

        Raises:
            RuntimeError: none of them ended well.
        """
        grid = self.options.grid(method)
        try:
            tuning = tune(
                [Choice(lr) for lr in grid],
                lambda choice, seed: self.run(method, choice.lr, seed, f"{label}, {choice}, seed {seed}"),
                lambda result: result.validation_nll,
                seeds=self.options.seed_list(self.options.tune_seeds),
            )
        except RuntimeError as error:
            raise RuntimeError(f"{method}: {error}") from error
        scores = ", ".join(f"{choice}: {score_text(tuning.mean(choice))}" for choice in tuning.trials)
        print(f"{label}: mean validation NLL {scores}")
        edge = " (at the edge of the grid: widen it)" if len(grid) > 1 and tuning.edges() else ""
        print(f"{label}: chosen {tuning.chosen}{edge}")
        return tuning

    def rate(self, method: str, label: str, trials: dict[str, Trials]) -> float:
        """A method's learning rate, and if it is tuned its trials put with the others."""
        if not self.options.tune:
            return self.options.learning_rate(method)
        trials[method] = self.tune(method, label)
        return trials[method].chosen.lr

    def all(self) -> tuple[dict[str, list[Result]], dict[str, Trials]]:
        """The runs of each method at its learning rate, and the trials of its tuning."""
        options = self.options
        runs: dict[str, list[Result]] = {}
        trials: dict[str, Trials] = {}
        for number, method in enumerate(options.sampler, start=1):
            label = f"[{number}/{len(options.sampler)}] {method}"
            lr = self.rate(method, label, trials)
            runs[method] = [self.run(method, lr, seed, f"{label}, seed {seed}") for seed in options.seed_list()]
            for result in runs[method]:
                if result.diverged:
                    print(f"{label}, seed {result.seed} diverged: {result.diverged}")
        return runs, trials
