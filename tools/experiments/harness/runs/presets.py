"""Whole experiments by name."""

from __future__ import annotations

from typing import Any

from experiments.harness.runs.settings import Settings

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


def _full(epochs: int, minibatches: int, **changes: Any) -> tuple[Settings, tuple[int, ...]]:
    """The L2E paper's runs (Tables 12 to 14): 100 epochs of burn-in, then 100 samples, one every 50 epochs (on
    Tiny-ImageNet ten in 1,000 epochs); a cyclical sampler gives one a cycle, an ensemble has as many members."""
    own: dict[str, Any] = dict(model="resnet20_frn", batch_size=128, prior_precision=20.0)
    own |= _POSTERIOR | dict(burn_in=100 / epochs, num_samples=100) | changes
    samples = own["num_samples"]
    burn_in_cycles = 100 * samples // (epochs - 100)
    own |= dict(cycles=burn_in_cycles + samples, burn_in_cycles=burn_in_cycles, ensemble_size=samples)
    return Settings(**own), (epochs * minibatches,)


#: Settings, and budgets in minibatch gradients. The prior's precision λ is that of a weight decay λ/N near 5e-4, as in
#: the L2E paper, whose experiments at its own sizes are those with "full" in their names.
PRESETS: dict[str, tuple[Settings, tuple[int, ...]]] = {
    # One convolution at 28×28.
    "fashion_mnist": (
        Settings(dataset="fashion_mnist", channels=8, depth=1, prior_precision=20.0, **_POSTERIOR),
        (1000, 5000),
    ),
    # An architecture of no task family; a tenth for validation would be 90 images to tune by.
    "digits": (
        Settings(model="mlp", hidden=(64, 64, 64), activation="silu", batch_size=32, validation=200, **_POSTERIOR),
        (400, 2000),
    ),
    "cifar10": (Settings(**_CIFAR16, model="cnn", channels=8, depth=2), (1000, 5000)),
    # The same, and a ResNet-20, tuned by the ladder of `experiments.compare.options.LADDERS`.
    "cifar10_ladder": (Settings(**_CIFAR16, model="cnn", channels=8, depth=2), (1000, 5000)),
    "resnet_ladder": (Settings(**_CIFAR16, model="resnet20_frn", width=8), (2000,)),
    # Meta-SGMCMC's tests, trained on 784-20-10 with ReLU: a larger network, another activation, digits 5 to 9.
    "mnist_nt": (Settings(**_META_MNIST), _META_BUDGETS),
    "mnist_nt_af": (Settings(**_META_MNIST, activation="sigmoid"), _META_BUDGETS),
    "mnist_nt_data": (Settings(**_META_MNIST, labels=(5, 6, 7, 8, 9)), _META_BUDGETS),
    "cifar10_gong": (Settings(dataset="cifar10", model="gong_cnn", **_META), _META_BUDGETS),
    # Film reviews, of 5,000 different words, by a small CNN-LSTM.
    "imdb": (Settings(**_IMDB, width=32, vocabulary=5000, **_POSTERIOR), (600, 3000)),
    "imdb_full": _full(2600, 156, **_IMDB, num_samples=50),
    "fashion_mnist_full": _full(5100, 421, dataset="fashion_mnist", model="cnn", depth=1, prior_precision=27.0),
    "cifar10_full": _full(5100, 320, dataset="cifar10"),
    "cifar100_full": _full(5100, 320, dataset="cifar100"),
    "cifar10_augmented_full": _full(5100, 320, dataset="cifar10", augment=True),
    "cifar100_augmented_full": _full(5100, 320, dataset="cifar100", augment=True),
    "tiny_imagenet_full": _full(
        1100, 703, dataset="tiny_imagenet", model="resnet", depth=56, prior_precision=45.0, num_samples=10
    ),
}
