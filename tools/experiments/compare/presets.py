"""Declarations of comparisons by name: data, network, posterior, budgets, rows and tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.compare import chains16, cifar32, distance, explore
from experiments.harness.runs.methods import Row
from experiments.harness.runs.settings import Settings


@dataclass(frozen=True)
class Preset:
    """A comparison.

    Attributes:
        settings: data, network and posterior.
        budgets: in minibatch gradients.
        rows: by name; by default methods are rows.
        options: of `CompareOptions`, such as the rows that run, seeds and tuning.
        criterion: sentences that answer the question, from the means of the rows at each budget.
    """

    settings: Settings
    budgets: tuple[int, ...]
    rows: Mapping[str, Row] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    criterion: Any = None


# Ten samples from the second half of a run; a cyclical sampler gives five in each of its last two cycles, for in the
# first ones it is far from converged.
_POSTERIOR: dict[str, Any] = dict(temperature=1.0, burn_in=0.5, num_samples=10, cycles=4, burn_in_cycles=2)
# Meta-SGMCMC's experiments on MNIST: a batch of 500; 300 steps are the longest of its meta-training.
_META: dict[str, Any] = dict(batch_size=500, prior_precision=1.0, **_POSTERIOR)
_META_MNIST: dict[str, Any] = dict(
    dataset="mnist", model="mlp", hidden=(40, 40), networks=("MetaSGMCMC=meta-sgmcmc-mnist",), **_META
)
_META_BUDGETS = (300, 3000)
# 20,000 of the 25,000 training reviews, and the first 100 words of each.
_IMDB: dict[str, Any] = dict(dataset="imdb", model="cnn_lstm", length=100, validation=5000, prior_precision=10.0)
# An image set that meta-training never sees, at 16×16 in colour.
_CIFAR16: dict[str, Any] = dict(dataset="cifar10", size=16, prior_precision=20.0, **_POSTERIOR)

#: Tuning of the ladders, written down before their first run. Every method has the same number of settings: 4 rates, 1,
#: 2, 5, 10, … around its own, and two values of each of two more things (a chain: T and burn-in; an optimizer's
#: snapshots: weight decay and burn-in; a moving average: weight decay alone); 8 of the combinations, each rate twice;
#: then 2 more near the best. The lowest mean validation NLL of the tuning seeds is chosen, and no setting with a run
#: that diverged. At the larger budget the best 2 again and 2 more. Final seeds are 60 to 65, of the tuning 1060 to
#: 1062, both unseen.
_LADDER: dict[str, Any] = dict(
    sampler=(
        *("AdaptedWhitenedSGHMC", "AdaptedL2E", "L2E", "WhitenedSGHMC"),
        *("ShampooAverage", "MuonAverage", "SOAPEMA"),
    ),
    values=("temperature=1,0.1", "burn_in=0.5,0.8", "weight_decay=0", "momentum_decay=0.1"),
    **dict(tries=8, grid=4, extensions=2, keep=2, tune_seeds=3, seed=60, seeds=6),
)


_EXPLORE: dict[str, Any] = {"convergence": True}


def _full(epochs: int, minibatches: int, **changes: Any) -> Preset:
    """The L2E paper's runs (Tables 12 to 14): 100 epochs of burn-in, then 100 samples, one every 50 epochs; a
    cyclical sampler gives one a cycle, an ensemble has as many members."""
    values: dict[str, Any] = dict(model="resnet20_frn", batch_size=128, prior_precision=20.0)
    values |= _POSTERIOR | dict(burn_in=100 / epochs, num_samples=100) | changes
    samples = values["num_samples"]
    burn_in_cycles = 100 * samples // (epochs - 100)
    values |= dict(cycles=burn_in_cycles + samples, burn_in_cycles=burn_in_cycles, ensemble_size=samples)
    return Preset(Settings(**values), (epochs * minibatches,))


#: The prior's precision λ is that of a weight decay λ/N near 5e-4, as in the L2E paper, whose experiments at its own
#: sizes are those with "full" in their names.
PRESETS: dict[str, Preset] = {
    # One convolution at 28×28.
    "fashion_mnist": Preset(
        Settings(dataset="fashion_mnist", channels=8, depth=1, prior_precision=20.0, **_POSTERIOR), (1000, 5000)
    ),
    # An architecture of no task family; a tenth for validation would be 90 images to tune by.
    "digits": Preset(
        Settings(model="mlp", hidden=(64, 64, 64), activation="silu", batch_size=32, validation=200, **_POSTERIOR),
        (400, 2000),
    ),
    "cifar10": Preset(Settings(**_CIFAR16, model="cnn", channels=8, depth=2), (1000, 5000)),
    "cifar10_ladder": Preset(Settings(**_CIFAR16, model="cnn", channels=8, depth=2), (1000, 5000), options=_LADDER),
    # A run takes ten times as long: 3 rates, both temperatures once or twice, no further settings.
    "resnet_ladder": Preset(
        Settings(**_CIFAR16, model="resnet20_frn", width=8),
        (2000,),
        options=_LADDER | dict(tries=4, grid=3, extensions=0),
    ),
    # Meta-SGMCMC's tests, trained on 784-20-10 with ReLU: a larger network, another activation, digits 5 to 9.
    "mnist_nt": Preset(Settings(**_META_MNIST), _META_BUDGETS),
    "mnist_nt_af": Preset(Settings(**_META_MNIST, activation="sigmoid"), _META_BUDGETS),
    "mnist_nt_data": Preset(Settings(**_META_MNIST, labels=(5, 6, 7, 8, 9)), _META_BUDGETS),
    "cifar10_gong": Preset(Settings(dataset="cifar10", model="gong_cnn", **_META), _META_BUDGETS),
    # Film reviews, of 5,000 different words, by a small CNN-LSTM.
    "imdb": Preset(Settings(**_IMDB, width=32, vocabulary=5000, **_POSTERIOR), (600, 3000)),
    "imdb_full": _full(2600, 156, **_IMDB, num_samples=50),
    "fashion_mnist_full": _full(5100, 421, dataset="fashion_mnist", model="cnn", depth=1, prior_precision=27.0),
    "cifar10_full": _full(5100, 320, dataset="cifar10"),
    "cifar100_full": _full(5100, 320, dataset="cifar100"),
    "cifar10_augmented_full": _full(5100, 320, dataset="cifar10", augment=True),
    "cifar100_augmented_full": _full(5100, 320, dataset="cifar100", augment=True),
    "explore_digits": Preset(*explore.DIGITS, explore.DIGITS_ROWS, {"seeds": 6, **_EXPLORE}, explore.criterion),
    "explore_fashion": Preset(*explore.FASHION, explore.FASHION_ROWS, {"seeds": 3, **_EXPLORE}, explore.criterion),
    "chains16": Preset(chains16.SETTINGS, chains16.BUDGETS, chains16.ROWS, chains16.OPTIONS),
    "cifar32": Preset(cifar32.SETTINGS, cifar32.BUDGETS, cifar32.ROWS, cifar32.OPTIONS),
    "distance_digits": Preset(
        distance.DIGITS, distance.BUDGETS, distance.DIGITS_ROWS, distance.OPTIONS, distance.criterion
    ),
    "distance_fashion": Preset(
        distance.FASHION, distance.BUDGETS, distance.FASHION_ROWS, distance.OPTIONS, distance.criterion
    ),
}
