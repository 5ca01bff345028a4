"""Results of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.harness.runs.methods import METHODS
from experiments.harness.runs.settings import Settings
from learned_samplers.learned import weights

#: The curves of a run, `Result.curves`, with the number of samples at which each begins.
CURVES = {"accuracy": 1, "nll": 1, "ece": 1, "brier": 1, "kld": 2}


@dataclass
class Result:
    """Results of one run; what does not exist is None or empty.

    Attributes:
        method, lr, seed, settings: what was run; of a learned sampler ``settings["weights"]`` names its weights.
        network: fingerprint of a learned sampler's weights and rule.
        variant: tells its files from those of the same method, rate and seed with other settings.
        row: its name in tables, if that is not the method's.
        scores: of the average over all samples: accuracy, NLL (nats), ECE (15 bins), Brier score and AUROC of the
            largest probability against the first out-of-distribution images. Empty for a run that diverged or whose
            test data have not been looked at.
        pairwise_kld: mean divergence between the predictions of two samples on the test images, in nats.
        ambiguity: mean test loss of the samples less that of their average, in nats.
        ess: effective sample size of the samples' log-probability of the true label, the median over test images.
        validation_nll: NLL of that average on the validation images, in nats.
        ood: of each out-of-distribution data set {"auroc", "mean_entropy": of the average's predictions, in nats}, and
            "information_auroc" of several samples.
        seconds: wall-clock time of training and collecting, without scoring and validation.
        gradient_evaluations: in minibatches; a gradient over the whole training set counts as its minibatches.
        num_samples: weights averaged; 1 for a single network.
        curves: of each of `CURVES` the test scores of the average over the first 1, 2, … samples (of kld 2, 3, …).
        losses: the course of the mean training loss, in nats.
        acceptance_rate: of HMC after burn-in.
        mean_temperatures, modes, converged: see `experiments.harness.runs.measures`.
        corruptions: {"images": how many, "scores": {corruption: {measure: its values at severities 1
            to 5}}}; under "none" those of the images as they are.
        scored_on: the half of the test images that the scores are of.
        diverged: why there are no scores.
    """

    method: str
    lr: float
    seed: int
    settings: dict[str, Any]
    network: str = ""
    variant: str = ""
    row: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    pairwise_kld: float | None = None
    ambiguity: float | None = None
    ess: float | None = None
    validation_nll: float | None = None
    ood: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    device: str | None = None
    threads: int | None = None
    gradient_evaluations: int = 0
    num_samples: int = 0
    curves: dict[str, list[float]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    acceptance_rate: float | None = None
    mean_temperatures: dict[str, dict[str, float]] = field(default_factory=dict)
    modes: dict[str, Any] | None = None
    converged: dict[str, float] | None = None
    corruptions: dict[str, Any] | None = None
    scored_on: str = "all"
    diverged: str | None = None

    @property
    def name(self) -> str:
        """Stem of the run's files; that of a learned sampler names its weights."""
        words = "".join(c if c.isalnum() else "-" for c in self.row or self.method)
        parts = (words, self.network[:8], f"lr{self.lr:g}", self.variant, f"seed{self.seed}")
        return "_".join(filter(None, parts))

    @property
    def made_of(self) -> dict[str, Any]:
        """Everything that the run depends on beside its data."""
        return {key: getattr(self, key) for key in ("method", "lr", "seed", "settings", "network")}

    @property
    def is_chain(self) -> bool:
        """True if its samples are states of one Markov chain, not draws of a Gaussian or members of an ensemble."""
        return METHODS[self.method].averaging == "samples"

    @property
    def ess_per_second(self) -> float | None:
        """`ess` of a chain divided by `seconds`."""
        return None if self.ess is None or not self.is_chain else self.ess / self.seconds


def label(result: Result) -> str:
    """Name of a run's row in tables, with the name of a learned sampler's weights."""
    name = result.settings.get("weights")
    return (result.row or result.method) + (f" [{Path(name).stem}]" if name else "")


def new_result(
    settings: Settings,
    method_name: str,
    lr: float,
    seed: int,
    variant: str = "",
    own_network: Mapping[str, str] = {},
    row: str = "",
) -> Result:
    """The run before it is run: its settings (without the weights of other methods) and its network."""
    method = METHODS[method_name]
    values = {key: value for key, value in asdict(settings).items() if key not in ("networks", "half")}
    card = method.card(settings)
    if card is not None:
        values["weights"] = method.weights_name(settings)
    network = "" if card is None else weights.card_fingerprint(card)
    return Result(
        method_name, lr, seed, values | dict(own_network), network, variant, "" if row == method_name else row
    )
