"""One run of one method: train, average, score, and keep the result where the next call finds it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from _methods import METHODS
from _settings import Settings
from _training import Diverged, Log, build_network, hmc_run, point_runs, sampler_run
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from learned_samplers import metrics
from learned_samplers.posterior import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData

# Scores of a run, as they stand in tables: key, heading, decimals. `metrics.summary` says what each is.
SCORES = (
    ("accuracy", "accuracy", 4),
    ("nll", "NLL", 4),
    ("ece", "ECE", 4),
    ("brier", "Brier", 4),
    ("ood_auroc", "OOD AUROC", 3),
)


@dataclass
class Result:
    """What one run gave; written as JSON.

    Attributes:
        method, lr, seed: of the run; `settings` and `versions` say the rest.
        scores: test accuracy, NLL (nats), ECE (15 bins), Brier score, and AUROC of the largest probability against the
            out-of-distribution images, of the average over all samples; empty for a run that diverged.
        validation_nll: NLL of that average on the validation images, in nats; None for a run that diverged, or where
            there are no such images.
        seconds: wall-clock time of training and collecting, without scoring and validation.
        gradient_evaluations: in minibatches; a gradient over the whole training set counts as its minibatches.
        num_samples: weights averaged; 1 for a single network.
        accuracy_curve, nll_curve: test scores of the average over the first 1, 2, … samples.
        acceptance_rate: of HMC after burn-in; None for other methods.
        diverged: why there are no scores, or None.
    """

    method: str
    lr: float
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    scores: dict[str, float] = field(default_factory=dict)
    validation_nll: float | None = None
    seconds: float = 0.0
    gradient_evaluations: int = 0
    num_samples: int = 0
    accuracy_curve: list[float] = field(default_factory=list)
    nll_curve: list[float] = field(default_factory=list)
    acceptance_rate: float | None = None
    diverged: str | None = None

    @property
    def name(self) -> str:
        """Stem of the run's files."""
        return run_name(self.method, self.lr, self.seed)


def run_name(method: str, lr: float, seed: int) -> str:
    return f"{method}_lr{lr:g}_seed{seed}"


def run(
    settings: Settings,
    method_name: str,
    lr: float,
    seed: int,
    data: ImageData,
    ood: ImageData,
    out: Path,
    *,
    fresh: bool = False,
    title: str = "",
) -> Result:
    """Do one run, or read its result where it is already in `out` with the same settings.

    Files: ``runs/<name>.json`` (the result, written last), ``samples/<name>.safetensors`` (the weights),
    ``predictions/<name>.safetensors`` (probabilities, see `predictions`) and ``tensorboard/<name>/``.

    Args:
        settings, method_name, lr, seed: what to run; the seed sets initialisation, minibatches and noise.
        data, ood: from `Settings.load`, on the device to run on.
        out: folder of the results.
        fresh: run again even if the result is there.
        title: of the progress bar.

    Raises:
        ValueError: settings that cannot be run, by name.
    """
    method = METHODS[method_name]
    per_epoch = settings.steps_per_epoch(data.num_data)
    steps = settings.epochs * per_epoch
    result = Result(
        method_name, lr, seed, jsonable(asdict(settings)), versions={"torch": torch.__version__},
    )  # fmt: skip
    path = out / "runs" / f"{result.name}.json"
    if not fresh and (finished := read_result(path, result)) is not None:
        return finished
    for folder in ("runs", "samples", "predictions"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a run that is interrupted must not leave an older result beside its new files
    board = out / "tensorboard" / result.name
    for old in board.glob("events.out.tfevents.*"):
        old.unlink()
    torch.manual_seed(seed)
    samples: SampleCollection | None = None
    with SummaryWriter(str(board)) as writer:
        with tqdm(total=steps, desc=title or result.name, unit="grad") as bar:
            log = Log(writer, bar, data, steps)
            start = time.perf_counter()
            try:
                if method.kind == "full_batch":
                    samples, result.acceptance_rate = hmc_run(method, settings, lr, data, log)
                elif method.kind == "sampler":
                    samples = sampler_run(method, settings, lr, data, steps, log)
                else:
                    samples = point_runs(method, settings, lr, data, steps, log)
            except (Diverged, FloatingPointError) as error:
                result.diverged = str(error)
            synchronize(data)
            result.seconds = time.perf_counter() - start - log.validation_seconds
            result.gradient_evaluations = bar.n
        if samples is not None:
            score(result, samples, data, ood, writer, out)
    path.write_text(json.dumps(asdict(result), indent=1))
    return result


def score(
    result: Result, samples: SampleCollection, data: ImageData, ood: ImageData, writer: SummaryWriter, out: Path
) -> None:
    """Fill in the scores of the samples, and save samples and predictions."""

    def probabilities(x: Tensor, cumulative: bool = False) -> Tensor:
        return samples.predict(x, batch_size=1024, cumulative=cumulative)

    averages = probabilities(data.test_x, cumulative=True)
    test, ood_test = averages[-1], probabilities(ood.test_x)
    if not test.isfinite().all():
        result.diverged = "the predictions are not finite"
        return
    result.num_samples = len(samples)
    result.scores = metrics.summary(test, data.test_y, ood_test)
    if len(data.val_y):
        result.validation_nll = metrics.nll(probabilities(data.val_x), data.val_y)
    result.accuracy_curve = [metrics.accuracy(average, data.test_y) for average in averages]
    result.nll_curve = [metrics.nll(average, data.test_y) for average in averages]
    for count, (accuracy, nll) in enumerate(zip(result.accuracy_curve, result.nll_curve), start=1):
        writer.add_scalar("model_average/accuracy", accuracy, count)
        writer.add_scalar("model_average/nll", nll, count)
    samples.save(out / "samples" / f"{result.name}.safetensors")
    tensors = {"test": test, "test_labels": data.test_y, "ood": ood_test}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
        out / "predictions" / f"{result.name}.safetensors",
    )


def predictions(result: Result, out: Path) -> dict[str, Tensor]:
    """A run's predicted probabilities: "test" (n, classes), "test_labels" (n,), "ood" (m, classes)."""
    return load_file(out / "predictions" / f"{result.name}.safetensors")


def load_samples(result: Result, settings: Settings, data: ImageData, out: Path) -> SampleCollection:
    """A run's weights, as a collection that predicts."""
    return PosteriorSamples.load(out / "samples" / f"{result.name}.safetensors", build_network(settings, data))


def read_result(path: Path, wanted: Result) -> Result | None:
    """The finished run at `path`, or None if it is absent or was made with other settings or another torch."""
    if not path.is_file():
        return None
    try:
        found = Result(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run ({error}); delete it or use --fresh") from error
    same = (found.settings, found.versions, found.lr) == (wanted.settings, wanted.versions, wanted.lr)
    return found if same else None


def jsonable(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping as it comes back from a JSON file (tuples as lists), for comparison."""
    return json.loads(json.dumps(value))


def synchronize(data: ImageData) -> None:
    """Wait for the device, so that a time taken next is that of finished work."""
    if data.train_x.is_cuda:
        torch.cuda.synchronize(data.train_x.device)
