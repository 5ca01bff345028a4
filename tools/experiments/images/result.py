"""What one run of one method gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.images.methods import METHODS
from experiments.images.settings import Settings

# Scores of a run, as they stand in tables: key, heading, decimals. `metrics.summary` says what each is.
SCORES = (
    ("accuracy", "accuracy", 4),
    ("nll", "NLL", 4),
    ("ece", "ECE", 4),
    ("brier", "Brier", 4),
    ("ood_auroc", "OOD AUROC", 3),
    ("rmse", "RMSE", 4),
    ("crps", "CRPS", 4),
    ("coverage", "90 % coverage", 3),
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
            AUROC of the largest probability against the first set of them, of the average over all samples; of a
            regression NLL, RMSE, CRPS and coverage of 90 % intervals; empty for a run that diverged or whose test
            images have not been looked at.
        pairwise_kld: mean divergence between the predictions of two samples on the test images, in nats; None for one.
        ess: effective sample size of the samples' log-probability of the true label, the median over the test images;
            None for fewer than four samples.
        validation_nll: NLL of that average on the validation images, in nats; None for a run that diverged, or where
            there are no such images.
        scaling: temperature τ that the validation images give the average's predictions, softmax(log p / τ); 1 where
            none fits, None without validation images.
        scaled_nll: test NLL at that temperature, in nats; None as ``scaling``, or for a run without test scores.
        ood: of each out-of-distribution data set {"auroc": of the largest probability, "mean_entropy": of the average's
            predictions on it, in nats}.
        seconds: wall-clock time of training and collecting, without scoring and validation.
        device, threads: where it ran, the name of a GPU or CPU, and torch's threads; None for a run of before they were
            noted.
        gradient_evaluations: in minibatches; a gradient over the whole training set counts as its minibatches.
        num_samples: weights averaged; 1 for a single network.
        accuracy_curve, nll_curve, ece_curve, brier_curve: test scores of the average over the first 1, 2, … samples.
        kld_curve: `pairwise_kld` of the first 2, 3, … samples.
        validation_curve: (gradient evaluations, loss in nats, accuracy) of the current weights on validation images.
        movement_curve: (gradient evaluations, ‖Δθ‖² of the step taken there, mean training loss in nats since the point
            before), at most 100 points; none for HMC.
        acceptance_rate: of HMC after burn-in; None for other methods.
        temperatures: of a sampler, over the run, see `experiments.images.log.Log`.
        mean_temperatures: their means after burn-in, see `experiments.images.measures.mean_temperatures`.
        modes: of a run that was asked for them, see `experiments.images.measures.modes`.
        converged: of a chain that was asked for it, see `experiments.images.measures.converged`.
        plane: of a run that was asked for it, see `experiments.images.measures.error_plane`.
        corruptions: of a run that was asked for them, {"images": how many, "source": whose, "scores": {corruption:
            {measure: its values at severities 1 to 5}}}; under "none" those of the images as they are.
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
    scaling: float | None = None
    scaled_nll: float | None = None
    ood: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    device: str | None = None
    threads: int | None = None
    gradient_evaluations: int = 0
    num_samples: int = 0
    accuracy_curve: list[float] = field(default_factory=list)
    nll_curve: list[float] = field(default_factory=list)
    ece_curve: list[float] = field(default_factory=list)
    brier_curve: list[float] = field(default_factory=list)
    kld_curve: list[float] = field(default_factory=list)
    validation_curve: list[list[float]] = field(default_factory=list)
    movement_curve: list[list[float]] = field(default_factory=list)
    acceptance_rate: float | None = None
    temperatures: list[dict[str, Any]] = field(default_factory=list)
    mean_temperatures: dict[str, dict[str, float]] = field(default_factory=dict)
    modes: dict[str, Any] | None = None
    converged: dict[str, float] | None = None
    plane: dict[str, Any] | None = None
    corruptions: dict[str, Any] | None = None
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


def score_columns(runs: Iterable[Sequence[Result]]) -> list[tuple[str, str, int]]:
    """Those of `SCORES` that any of the runs has; if none has any, those of a classification."""
    known = {key for results in runs for result in results for key in result.scores}
    return [column for column in SCORES if column[0] in known] or list(SCORES[:5])


# Settings that runs on disk may lack: they were made before there were any, as if these were not set.
_LATER = ("length", "vocabulary", "augment", "compiled", "final_lr")


def new_result(
    settings: Settings, method_name: str, lr: float, seed: int, variant: str = "", own_network: Mapping[str, str] = {}
) -> Result:
    """The run before it is run: its settings (without the weights of other methods' networks) and its network.

    Args:
        own_network: fingerprints of the network, if it is a user's own: see `training.own_network`.

    Raises:
        ValueError, FileNotFoundError: a learned sampler without weights.
    """
    method = METHODS[method_name]
    own = {name: value for name, value in asdict(settings).items() if not name.endswith("_network")}
    for name in _LATER:
        if own[name] == getattr(Settings, name):
            del own[name]
    digest = method.network_digest(settings)
    own |= own_network
    if method.network is not None:
        own[method.network] = getattr(settings, method.network)
    return Result(method_name, lr, seed, own, digest or "", variant)
