"""One run of one method: train, average, score, and keep the result where the next call finds it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from experiments.images.measures import mean_temperatures
from experiments.images.methods import METHODS
from experiments.images.settings import Settings
from experiments.images.training import VALIDATIONS, Diverged, Log, build_network, hmc_run, point_runs, sampler_run
from learned_samplers import diagnostics, metrics
from learned_samplers.base.files import write_atomically
from learned_samplers.posterior.collecting import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData

# Scores of a run, as they stand in tables: key, heading, decimals. `metrics.summary` says what each is.
SCORES = (
    ("accuracy", "accuracy", 4),
    ("nll", "NLL", 4),
    ("ece", "ECE", 4),
    ("brier", "Brier", 4),
    ("ood_auroc", "OOD AUROC", 3),
)

#: The curves of a run, `Result.<name>_curve`, with the number of samples at which each begins.
CURVES = {"accuracy": 1, "nll": 1, "ece": 1, "brier": 1, "kld": 2}


@dataclass
class Result:
    """What one run gave; written as JSON.

    Attributes:
        method, lr, seed: of the run; `settings` and `versions` say the rest.
        variant: what tells its files from those of the same method, rate and seed with other settings.
        scores: test accuracy, NLL (nats), ECE (15 bins), Brier score, and, where there are out-of-distribution images,
            AUROC of the largest probability against them, of the average over all samples; empty for a run that
            diverged or whose test images have not been looked at.
        pairwise_kld: mean divergence between the predictions of two samples on the test images, in nats; None for one.
        ess: effective sample size of the samples' log-probability of the true label, the median over the test images;
            None for fewer than four samples.
        validation_nll: NLL of that average on the validation images, in nats; None for a run that diverged, or where
            there are no such images.
        seconds: wall-clock time of training and collecting, without scoring and validation.
        gradient_evaluations: in minibatches; a gradient over the whole training set counts as its minibatches.
        num_samples: weights averaged; 1 for a single network.
        accuracy_curve, nll_curve, ece_curve, brier_curve: test scores of the average over the first 1, 2, … samples.
        kld_curve: `pairwise_kld` of the first 2, 3, … samples. It and the two before are empty in runs that were made
            before they were kept and whose samples are gone.
        validation_curve: (gradient evaluations, loss in nats, accuracy) of the current weights on validation images.
        acceptance_rate: of HMC after burn-in; None for other methods.
        temperatures: of a sampler, over the run, see `experiments.images.training.Log`.
        mean_temperatures: their means after burn-in, see `experiments.images.measures.mean_temperatures`.
        modes: of a run that was asked for them, see `experiments.images.measures.modes`.
        diverged: why there are no scores, or None.
    """

    method: str
    lr: float
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    variant: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    pairwise_kld: float | None = None
    ess: float | None = None
    validation_nll: float | None = None
    seconds: float = 0.0
    gradient_evaluations: int = 0
    num_samples: int = 0
    accuracy_curve: list[float] = field(default_factory=list)
    nll_curve: list[float] = field(default_factory=list)
    ece_curve: list[float] = field(default_factory=list)
    brier_curve: list[float] = field(default_factory=list)
    kld_curve: list[float] = field(default_factory=list)
    validation_curve: list[list[float]] = field(default_factory=list)
    acceptance_rate: float | None = None
    temperatures: list[dict[str, Any]] = field(default_factory=list)
    mean_temperatures: dict[str, dict[str, float]] = field(default_factory=dict)
    modes: dict[str, Any] | None = None
    diverged: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it has all that is measured on test images, or diverged and never will."""
        return self.diverged is not None or bool(self.scores and self.ece_curve)

    @property
    def name(self) -> str:
        """Stem of the run's files; that of a learned sampler names its weights."""
        weights = self.versions.get("network", "")[:8]
        return "_".join(filter(None, (self.method, weights, f"lr{self.lr:g}", self.variant, f"seed{self.seed}")))

    @property
    def ess_per_second(self) -> float | None:
        """`ess` divided by `seconds`."""
        return None if self.ess is None else self.ess / self.seconds


def new_result(settings: Settings, method_name: str, lr: float, seed: int, variant: str = "") -> Result:
    """The run before it is run: its settings (without the weights of other methods' networks) and its versions.

    Raises:
        ValueError, FileNotFoundError: a learned sampler without weights.
    """
    method = METHODS[method_name]
    own = {name: value for name, value in asdict(settings).items() if not name.endswith("_network")}
    versions = {"torch": torch.__version__}
    if (digest := method.network_digest(settings)) is not None:
        assert method.network is not None
        own[method.network], versions["network"] = getattr(settings, method.network), digest
    return Result(method_name, lr, seed, jsonable(own), versions, variant)


def run(
    settings: Settings,
    method_name: str,
    lr: float,
    seed: int,
    data: ImageData,
    ood: ImageData | None,
    out: Path,
    *,
    fresh: bool = False,
    title: str = "",
    bar: tqdm | None = None,
    test: bool = True,
    variant: str = "",
    validations: int = VALIDATIONS,
) -> Result:
    """Do one run, or read its result where it is already in `out` with the same settings.

    Files: ``runs/<name>.json`` (the result, written last), ``samples/<name>.safetensors`` (the weights),
    ``predictions/<name>.safetensors`` (probabilities, see `predictions`) and ``tensorboard/<name>/``.

    Args:
        settings, method_name, lr, seed: what to run; the seed sets initialisation, minibatches and noise.
        data, ood: from `Settings.load`, on the device to run on; without ``ood`` there is no such score.
        out: folder of the results.
        fresh: run again even if the result is there.
        title: of the progress bar.
        bar: of the runs of a whole comparison; by default each run has its own.
        test: whether to score the run on the test images; a run to be tuned by does without.
        variant: see `Result`.
        validations: how often the curves get the validation loss of the current weights.

    Raises:
        ValueError: settings that cannot be run, by name.
    """
    method = METHODS[method_name]
    steps = settings.budget(data.num_data)
    result = new_result(settings, method_name, lr, seed, variant)
    path = out / "runs" / f"{result.name}.json"
    if not fresh and (finished := read_result(path, result)) is not None:
        if finished.complete or not test:
            return finished
        if (out / "samples" / f"{result.name}.safetensors").is_file():
            samples = load_samples(finished, settings, data, out)
            if finished.scores:  # from before there were all the curves
                fill_curves(finished, samples.predict_samples(data.test_x, batch_size=1024), data.test_y)
            else:
                score(finished, samples, data, ood, out)
            with SummaryWriter(str(out / "tensorboard" / result.name)) as writer:
                write_curves(finished, writer)
            write_result(finished, out)
            return finished
        if finished.scores:
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
        with nullcontext(bar) if bar is not None else tqdm(total=steps, unit="grad") as bar:
            bar.set_description(title or result.name)
            begun = bar.n
            log = Log(writer, bar, data, steps, validations)
            start = time.perf_counter()
            try:
                if method.kind == "full_batch":
                    samples, result.acceptance_rate = hmc_run(method, settings, lr, data, log)
                elif method.kind in ("sampler", "average"):
                    samples = sampler_run(method, settings, lr, data, steps, log)
                else:
                    samples = point_runs(method, settings, lr, data, steps, log)
            except (Diverged, FloatingPointError) as error:
                result.diverged = str(error)
            synchronize(data)
            result.seconds = time.perf_counter() - start - log.validation_seconds
            result.gradient_evaluations = bar.n - begun
            result.temperatures, result.validation_curve = log.temperatures, log.validation_curve
            result.mean_temperatures = mean_temperatures(log.temperatures, settings.burn_in * steps)
        if samples is not None:
            validate(result, samples, data, out)
            if test and result.diverged is None:
                score(result, samples, data, ood, out)
                write_curves(result, writer)
    write_result(result, out)
    return result


def validate(result: Result, samples: SampleCollection, data: ImageData, out: Path) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y):
        probabilities = samples.predict(data.val_x, batch_size=1024)
        if not probabilities.isfinite().all():
            result.diverged = "the predictions are not finite"
            return
        result.validation_nll = metrics.nll(probabilities, data.val_y)
    result.num_samples = len(samples)
    samples.save(out / "samples" / f"{result.name}.safetensors")


def score(result: Result, samples: SampleCollection, data: ImageData, ood: ImageData | None, out: Path) -> None:
    """Fill in the test scores of the samples, and save their predictions."""
    single = samples.predict_samples(data.test_x, batch_size=1024)
    test = running_means(single)[-1]
    ood_test = None if ood is None else samples.predict(ood.test_x, batch_size=1024)
    if not test.isfinite().all():
        result.diverged, result.validation_nll = "the predictions are not finite", None
        return
    result.scores = metrics.summary(test, data.test_y, ood_test)
    if len(single) > 1:
        result.pairwise_kld = metrics.pairwise_kld(single)
    if len(single) >= diagnostics.MINIMUM_DRAWS:
        labels = data.test_y.expand(len(single), -1).unsqueeze(-1)
        log_probabilities = single.gather(2, labels).squeeze(-1).clamp_min(metrics.FLOOR).log()
        result.ess = float(np.median(diagnostics.ess(log_probabilities[None])))
    fill_curves(result, single, data.test_y)
    tensors = {"test": test, "test_labels": data.test_y, **({} if ood_test is None else {"ood": ood_test})}
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
        out / "predictions" / f"{result.name}.safetensors",
    )


def running_means(single: Tensor) -> Tensor:
    """Means over the first 1, 2, … samples of their predictions (K, n, classes)."""
    return single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]


def fill_curves(result: Result, single: Tensor, labels: Tensor) -> None:
    """Compute the curves that a run does not have yet from its samples' predictions (K, n, classes)."""
    averages = running_means(single)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        if not (curve := getattr(result, f"{metric.__name__}_curve")):
            curve.extend(metric(average, labels) for average in averages)
    result.kld_curve = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]


def write_curves(result: Result, writer: SummaryWriter) -> None:
    """Test scores against the number of samples, for TensorBoard."""
    for name, first in CURVES.items():
        for count, value in enumerate(getattr(result, f"{name}_curve"), start=first):
            writer.add_scalar(f"model_average/{name}", value, count)


def predictions(result: Result, out: Path) -> dict[str, Tensor]:
    """A run's predicted probabilities: "test" (n, classes), "test_labels" (n,), and if scored "ood" (m, classes)."""
    return load_file(out / "predictions" / f"{result.name}.safetensors")


def load_samples(result: Result, settings: Settings, data: ImageData, out: Path) -> SampleCollection:
    """A run's weights, as a collection that predicts."""
    return PosteriorSamples.load(out / "samples" / f"{result.name}.safetensors", build_network(settings, data))


def write_result(result: Result, out: Path) -> None:
    """Write a run's JSON file, whole or not at all."""
    content = json.dumps(asdict(result), indent=1, allow_nan=False)
    write_atomically(out / "runs" / f"{result.name}.json", content.encode())


def read_result(path: Path, wanted: Result) -> Result | None:
    """The finished run at `path`, or None if it is absent or was made with other settings or another torch."""
    if not path.is_file():
        return None
    try:
        found = Result(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{path} is not the result of a run ({error}); delete it or use --fresh") from error
    # A run from before there was some setting had what is now that setting's default.
    defaults = jsonable({each.name: each.default for each in fields(Settings) if each.name in wanted.settings})
    same = ({**defaults, **found.settings}, found.versions, found.lr) == (wanted.settings, wanted.versions, wanted.lr)
    return found if same else None


def jsonable(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping as it comes back from a JSON file (tuples as lists), for comparison."""
    return json.loads(json.dumps(value))


def synchronize(data: ImageData) -> None:
    """Wait for the device, so that a time taken next is that of finished work."""
    if data.train_x.is_cuda:
        torch.cuda.synchronize(data.train_x.device)
