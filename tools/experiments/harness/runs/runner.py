"""Runs of a method: train, average, score, and keep the result for the next call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.harness.devices import device_name, synchronize
from experiments.harness.run_store import RunStore, data_fingerprint
from experiments.harness.runs.checkpoint import Checkpoint
from experiments.harness.runs.log import Diverged, Log
from experiments.harness.runs.measures import (
    CONVERGENCE_DRAWS,
    common_start,
    converged,
    explored,
    mean_temperatures,
    modes,
    score,
    validate,
)
from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.minibatches import Minibatches
from experiments.harness.runs.networks import build_network, own_network
from experiments.harness.runs.result import Result, new_result
from experiments.harness.runs.settings import Settings
from experiments.harness.runs.training import Training
from learned_samplers.posterior import OwnBuffers, PosteriorSamples, SampleCollection
from learned_samplers.posterior.tensor_files import NotFinite
from meta_tasks.datasets import ImageData
from meta_tasks.progress import progress


@dataclass(frozen=True)
class Resume:
    """Folder of the states of unfinished runs, minutes between two of them, and the end (of ``time.monotonic``)."""

    folder: Path | None = None
    minutes: float = 5.0
    end: float | None = None

    def checkpoint(self, result: Result, store: RunStore) -> Checkpoint:
        """State of a run, if the folder has one."""
        path = None if self.folder is None else self.folder / f"{store.folder.name}_{result.name}.pt"
        made_of = {**result.made_of, "settings": str(sorted(result.settings.items())), "data": store.data}
        return Checkpoint(path, made_of, self.minutes, self.end)


class Runs:
    """The runs on one data set in one folder; none is done twice.

    Files: ``runs/<name>.json`` (the result, written last), ``samples/<name>.safetensors`` (the weights)
    and ``predictions/<name>.safetensors`` (probabilities, see `predictions`).
    """

    def __init__(
        self, data: ImageData, ood: Mapping[str, ImageData], store: RunStore, resume: Resume | None = None
    ) -> None:
        self.data, self.ood, self.store, self.resume = data, ood, store, resume or Resume()

    def run(
        self,
        settings: Settings,
        method_name: str,
        lr: float,
        seed: int,
        title: str = "",
        variant: str = "",
        row: str = "",
        *,
        test: bool = True,
    ) -> Result:
        """Do a run, or read its result if it is on disk with the same settings."""
        settings = METHODS[method_name].settings(settings, self.data.num_data)
        result = new_result(settings, method_name, lr, seed, variant, own_network(settings, self.data), row)
        finished = self._finished(result, settings, test)
        if finished is None:
            checkpoint = self.resume.checkpoint(result, self.store)
            self.store.begin(result.name, "samples", "predictions")
            steps = settings.budget(self.data.num_data)
            with progress(total=steps, unit="grad", desc=title or result.name, leave=False) as bar:
                self._train(result, settings, Log(bar, self.data, steps), test, checkpoint)
            self.keep(result)
            checkpoint.remove()
        return finished or result

    def _finished(self, wanted: Result, settings: Settings, test: bool) -> Result | None:
        """The run that is on disk, scored on the test images if it has to be; None if there is none."""
        if (record := self.store.read(wanted.name, wanted.made_of)) is None:
            return None
        result = Result(**{**wanted.made_of, **record, "settings": wanted.settings})
        if result.diverged is None and test and (not result.scores or result.scored_on != settings.half):
            if not self.store.path(wanted.name, "samples", ".safetensors").is_file():
                return None
            score(result, self.samples(result, settings), self.data, self.ood, self.store, settings.half)
            self.keep(result)
        return result

    def _train(self, result: Result, settings: Settings, log: Log, test: bool, checkpoint: Checkpoint) -> None:
        """Train, collect, score, and write the numbers into ``result``."""
        method, data, steps = METHODS[result.method], self.data, settings.budget(self.data.num_data)
        plan = method.plan(settings, result.lr, data.num_data, steps)
        draws = Minibatches(data, settings, result.seed)
        torch.manual_seed(result.seed)
        samples: SampleCollection | None = None
        try:
            samples = Training(method, plan, data, draws, log, checkpoint).samples()
        except (Diverged, FloatingPointError, NotFinite) as error:
            result.diverged = str(error)
        synchronize(data.train_x.device)
        result.device, result.threads = device_name(str(data.train_x.device)), torch.get_num_threads()
        result.seconds = log.seconds + time.perf_counter() - log.start - log.validation_seconds
        result.gradient_evaluations, result.acceptance_rate = log.gradients, log.acceptance_rate
        result.mean_temperatures = mean_temperatures(log.temperatures, settings.burn_in * steps)
        result.losses = log.losses
        if samples is not None:
            validate(result, samples, data, self.store)
            if test and result.diverged is None:
                score(result, samples, data, self.ood, self.store, settings.half)

    def keep(self, result: Result) -> None:
        """Write a run's result, with the measures that it has got since."""
        numbers = {key: value for key, value in asdict(result).items() if key not in result.made_of}
        self.store.write(result.name, result.made_of, numbers)

    def measure(self, result: Result, settings: Settings, *, lines: bool, convergence: bool = False) -> None:
        """Fill in, once, the measures that are asked for: `Result.modes` (of pairs of samples), and `converged`.

        Modes are of runs with several samples, convergence is of chains with enough of them.
        """
        if result.diverged is not None:
            return
        before, count = (result.modes, result.converged), result.num_samples
        with suppress(OwnBuffers):  # of members with buffers of their own, which no weights between two have
            if lines and count > 1 and len(self.data.val_y) and result.modes is None:
                independent = METHODS[result.method].averaging in ("ensemble", "chains")
                origin = common_start(settings, self.data, result.seed, independent=independent)
                result.modes = modes(explored(self.samples(result, settings), self.data, origin, settings))
        if convergence and result.is_chain and count >= CONVERGENCE_DRAWS and result.converged is None:
            result.converged = converged(self.samples(result, settings))
        if before != (result.modes, result.converged):
            self.keep(result)

    def samples(self, result: Result, settings: Settings) -> SampleCollection:
        """A run's weights, as a collection that predicts."""
        path = self.store.path(result.name, "samples", ".safetensors")
        return PosteriorSamples.load(path, build_network(settings, self.data))

    def discard_samples(self, result: Result) -> None:
        """Delete a run's weights; its result stays."""
        self.store.path(result.name, "samples", ".safetensors").unlink(missing_ok=True)


def fingerprint_of(data: ImageData, ood: Mapping[str, ImageData]) -> str:
    """Fingerprint of all that runs are made and scored with."""
    return data_fingerprint(data, *(images.test_x for images in ood.values()))


def predictions(result: Result, out: Path) -> dict[str, Tensor]:
    """A run's predicted probabilities: "test" (n, classes), "test_labels" (n,), and "ood_<name>" (m, classes)
    for every out-of-distribution data set."""
    return RunStore(out).read_tensors(result.name, "predictions")
