"""One run of one method: train, average, score, and keep the result where the next call finds it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from experiments.common.devices import synchronize
from experiments.common.run_store import RunStore, data_fingerprint
from experiments.images.log import VALIDATIONS, Diverged, Log
from experiments.images.measures import mean_temperatures, modes
from experiments.images.methods import METHODS
from experiments.images.settings import Settings
from experiments.images.training import MINIBATCH_RUNS, batches, build_network, hmc_run
from learned_samplers import diagnostics, metrics
from learned_samplers.posterior.collecting import PosteriorSamples, SampleCollection
from meta_tasks.datasets import ImageData
from meta_tasks.progress import progress

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
    """What one run gave.

    Attributes:
        method, lr, seed, settings: what was run.
        network: fingerprint of a learned sampler's weights and rule; empty for other methods.
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
        kld_curve: `pairwise_kld` of the first 2, 3, … samples.
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
    network: str = ""
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
    def name(self) -> str:
        """Stem of the run's files; that of a learned sampler names its weights."""
        parts = (self.method, self.network[:8], f"lr{self.lr:g}", self.variant, f"seed{self.seed}")
        return "_".join(filter(None, parts))

    @property
    def made_of(self) -> dict[str, Any]:
        """All that the run depends on beside its data."""
        return {key: getattr(self, key) for key in ("method", "lr", "seed", "settings", "network")}

    @property
    def ess_per_second(self) -> float | None:
        """`ess` divided by `seconds`."""
        return None if self.ess is None else self.ess / self.seconds


def new_result(settings: Settings, method_name: str, lr: float, seed: int, variant: str = "") -> Result:
    """The run before it is run: its settings (without the weights of other methods' networks) and its network.

    Raises:
        ValueError, FileNotFoundError: a learned sampler without weights.
    """
    method = METHODS[method_name]
    own = {name: value for name, value in asdict(settings).items() if not name.endswith("_network")}
    digest = method.network_digest(settings)
    if method.network is not None:
        own[method.network] = getattr(settings, method.network)
    return Result(method_name, lr, seed, own, digest or "", variant)


class ImageRuns:
    """The runs on one data set in one folder; none is done twice.

    Files: ``runs/<name>.json`` (the result, written last), ``samples/<name>.safetensors`` (the weights),
    ``predictions/<name>.safetensors`` (probabilities, see `predictions`) and ``tensorboard/<name>/``.

    Args:
        data, ood: from `Settings.load`, on the device to run on; without ``ood`` there is no such score.
        store: of the results; see `store_for`.
    """

    def __init__(self, data: ImageData, ood: ImageData | None, store: RunStore) -> None:
        self.data, self.ood, self.store = data, ood, store
        self.seen: set[str] = set()

    def run(
        self,
        settings: Settings,
        method_name: str,
        lr: float,
        seed: int,
        *,
        title: str = "",
        bar: Any = None,
        test: bool = True,
        variant: str = "",
        validations: int = VALIDATIONS,
    ) -> Result:
        """Do one run, or read its result where it is on disk with the same settings.

        Args:
            settings, method_name, lr, seed: what to run; the seed sets initialisation, minibatches and noise.
            title: of the progress bar.
            bar: of all runs of a comparison, whose total becomes what there is to compute; by default each run has its
                own.
            test: whether to score the run on the test images; a run to be tuned by does without.
            variant: see `Result`.
            validations: how often the curves get the validation loss of the current weights.

        Raises:
            ValueError: settings that cannot be run, by name.
        """
        result, steps = new_result(settings, method_name, lr, seed, variant), settings.budget(self.data.num_data)
        before = 0 if bar is None else bar.n
        known = self._known(result, settings, test)
        if known is None:
            self.store.begin(result.name, "samples", "predictions")
            with nullcontext(bar) if bar is not None else progress(total=steps, unit="grad") as own:
                own.set_description(title or result.name)
                self._train(result, settings, steps, own, test, validations)
            self._write(result)
        if bar is not None and result.name not in self.seen:
            bar.total -= steps - (bar.n - before)
            bar.refresh()
        self.seen.add(result.name)
        return known or result

    def _known(self, wanted: Result, settings: Settings, test: bool) -> Result | None:
        """The run that is on disk, scored on the test images if it has to be; None if there is none."""
        if (found := self.store.read(wanted.name, wanted.made_of)) is None:
            return None
        result = Result(**{**wanted.made_of, **found, "settings": wanted.settings})
        if result.diverged is None and test and not result.scores:
            if not self.store.path(wanted.name, "samples", ".safetensors").is_file():
                return None
            score(result, self.samples(result, settings), self.data, self.ood, self.store)
            with SummaryWriter(self.store.board(wanted.name)) as writer:
                write_curves(result, writer)
            self._write(result)
        return result

    def _train(self, result: Result, settings: Settings, steps: int, bar: Any, test: bool, validations: int) -> None:
        """Fill in the result."""
        method, data = METHODS[result.method], self.data
        # A stream of its own: a seed's minibatches come in the same order whatever numbers a method draws, and its
        # initial weights, the first of torch's stream, are the same as well.
        order = batches(
            data.num_data, settings.batch_size, data.train_x.device, torch.Generator().manual_seed(2**32 + result.seed)
        )
        torch.manual_seed(result.seed)
        samples: SampleCollection | None = None
        with SummaryWriter(self.store.board(result.name)) as writer:
            begun, log = bar.n, Log(writer, bar, data, steps, validations)
            start = time.perf_counter()
            try:
                if method.kind == "full_batch":
                    samples, result.acceptance_rate = hmc_run(method, settings, result.lr, data, log)
                else:
                    samples = MINIBATCH_RUNS[method.kind](method, settings, result.lr, data, steps, order, log)
            except (Diverged, FloatingPointError) as error:
                result.diverged = str(error)
            synchronize(data.train_x.device)
            result.seconds = time.perf_counter() - start - log.validation_seconds
            result.gradient_evaluations = bar.n - begun
            result.temperatures, result.validation_curve = log.temperatures, log.validation_curve
            result.mean_temperatures = mean_temperatures(log.temperatures, settings.burn_in * steps)
            if samples is not None:
                validate(result, samples, data, self.store)
                if test and result.diverged is None:
                    score(result, samples, data, self.ood, self.store)
                    write_curves(result, writer)

    def _write(self, result: Result) -> None:
        own = {key: value for key, value in asdict(result).items() if key not in result.made_of}
        self.store.write(result.name, result.made_of, own)

    def add_modes(self, result: Result, settings: Settings) -> None:
        """Fill in `Result.modes`, once, of a run that has several samples."""
        if result.diverged is None and result.num_samples > 1 and result.modes is None:
            result.modes = modes(self.samples(result, settings), self.data)
            self._write(result)

    def samples(self, result: Result, settings: Settings) -> SampleCollection:
        """A run's weights, as a collection that predicts."""
        path = self.store.path(result.name, "samples", ".safetensors")
        return PosteriorSamples.load(path, build_network(settings, self.data))

    def discard_samples(self, result: Result) -> None:
        """Delete a run's weights; its result stays."""
        self.store.path(result.name, "samples", ".safetensors").unlink(missing_ok=True)


def store_for(out: Path, data: ImageData, ood: ImageData | None = None, *, fresh: bool = False) -> RunStore:
    """The store of runs on these data."""
    return RunStore(out, data_fingerprint(data, *([] if ood is None else [ood.test_x])), fresh=fresh)


def validate(result: Result, samples: SampleCollection, data: ImageData, store: RunStore) -> None:
    """Fill in the validation score of the samples, and save them."""
    if len(data.val_y):
        probabilities = samples.predict(data.val_x, batch_size=1024)
        if not probabilities.isfinite().all():
            result.diverged = "the predictions are not finite"
            return
        result.validation_nll = metrics.nll(probabilities, data.val_y)
    result.num_samples = len(samples)
    samples.save(store.path(result.name, "samples", ".safetensors"))


def score(result: Result, samples: SampleCollection, data: ImageData, ood: ImageData | None, store: RunStore) -> None:
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
        store.path(result.name, "predictions", ".safetensors"),
    )


def running_means(single: Tensor) -> Tensor:
    """Means over the first 1, 2, … samples of their predictions (K, n, classes)."""
    return single.cumsum(0) / torch.arange(1, len(single) + 1, device=single.device)[:, None, None]


def fill_curves(result: Result, single: Tensor, labels: Tensor) -> None:
    """Compute a run's curves from its samples' predictions (K, n, classes)."""
    averages = running_means(single)
    for metric in (metrics.accuracy, metrics.nll, metrics.ece, metrics.brier):
        setattr(result, f"{metric.__name__}_curve", [metric(average, labels) for average in averages])
    result.kld_curve = [metrics.pairwise_kld(single[:count]) for count in range(2, len(single) + 1)]


def write_curves(result: Result, writer: SummaryWriter) -> None:
    """Test scores against the number of samples, for TensorBoard."""
    for name, first in CURVES.items():
        for count, value in enumerate(getattr(result, f"{name}_curve"), start=first):
            writer.add_scalar(f"model_average/{name}", value, count)


def predictions(result: Result, out: Path) -> dict[str, Tensor]:
    """A run's predicted probabilities: "test" (n, classes), "test_labels" (n,), and if scored "ood" (m, classes)."""
    return load_file(out / "predictions" / f"{result.name}.safetensors")
