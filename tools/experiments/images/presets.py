"""Whole experiments by name."""

from __future__ import annotations

from typing import Any

from experiments.images.settings import Settings

# Ten samples from the second half of a run; cyclical SGMCMC gives five in each of its last two cycles. (Two in each of
# five cycles was much worse: the first are far from converged. On digits NLL .752 against .464 after 400 gradients,
# .547 against .361 after 2,000.)
_POSTERIOR: dict[str, Any] = {
    "temperature": 1.0,
    "burn_in": 0.5,
    "num_samples": 10,
    "cycles": 4,
    "burn_in_cycles": 2,
}

# Meta-SGMCMC's experiments on MNIST: a batch of 500, and 300 steps (2.8 epochs), the longest of its meta-training, and
# ten times that (28 epochs).
_META_MNIST: dict[str, Any] = {
    "dataset": "mnist",
    "model": "mlp",
    "hidden": (40, 40),
    "batch_size": 500,
    "prior_precision": 1.0,
    "meta_sgmcmc_network": "meta-sgmcmc-mnist",
    **_POSTERIOR,
}
_META_BUDGETS = (300, 3000)

# 20,000 of the 25,000 training reviews, and the first 100 words of each.
_IMDB: dict[str, Any] = {
    "dataset": "imdb",
    "model": "cnn_lstm",
    "length": 100,
    "validation": 5000,
    "batch_size": 64,
}

# The L2E paper's runs (its Tables 13 and 14): minibatches of 128, a weight decay of 5e-4, 100 epochs of burn-in, then
# 100 samples, one every 50 epochs (of Tiny-ImageNet 10, every 100). Gradients are epochs × minibatches.
_FULL: dict[str, tuple[int, dict[str, Any]]] = {
    "fashion_mnist_full": (
        5100 * 421,
        {"dataset": "fashion_mnist", "model": "cnn", "depth": 1, "prior_precision": 27.0},
    ),
    "cifar10_full": (5100 * 320, {"dataset": "cifar10"}),
    "cifar100_full": (5100 * 320, {"dataset": "cifar100"}),
    "cifar10_augmented_full": (5100 * 320, {"dataset": "cifar10", "augment": True}),
    "cifar100_augmented_full": (5100 * 320, {"dataset": "cifar100", "augment": True}),
    "tiny_imagenet_full": (
        1100 * 703,
        {
            **{"dataset": "tiny_imagenet", "model": "resnet", "depth": 56},
            **{"prior_precision": 45.0, "burn_in": 1 / 11, "num_samples": 10},
        },
    ),
}


def _full(**changes: Any) -> Settings:
    own: dict[str, Any] = {"model": "resnet20_frn", "batch_size": 128, "prior_precision": 20.0}
    return Settings(**_POSTERIOR | own | {"burn_in": 1 / 51, "num_samples": 100} | changes)


_CIFAR16: dict[str, Any] = dict(dataset="cifar10", size=16, batch_size=64, prior_precision=20.0, **_POSTERIOR)
_RESNET_PROXY: dict[str, Any] = _CIFAR16 | {"model": "resnet20_frn", "width": 8}

#: Settings and budgets, in minibatch gradients. The prior's precision λ is that of a weight decay λ/N near 5e-4, as
#: in the L2E paper. "fashion_mnist": one convolution, 28×28, a data set of the meta-training at a resolution beyond
#: it. "digits": an architecture of no task family (three hidden layers, SiLU). "cifar10": a data set that
#: meta-training never sees, at 16×16 in colour; "resnet_proxy": the same by a ResNet-20 with filter response
#: normalisation, deeper than any network of a task family. "cifar10_hmc": the posterior of which Izmailov et al.,
#: "What are Bayesian neural network posteriors really like?" (ICML 2021) have HMC's predictions, a ResNet-20 at
#: 32×32 with swish, no augmentation, batch 80, for --reference; far shorter than theirs. "mnist_nt", "mnist_nt_af"
#: and "mnist_nt_data": samplers that were trained on 784-20-10 with ReLU, on a larger network, with another
#: activation function, and on digits 5–9 where the training had 0–4. "cifar10_gong": Meta-SGMCMC's network for
#: CIFAR-10. "cifar10_augmented": "resnet_proxy" with crops and mirroring. "imdb": film reviews by a small CNN-LSTM,
#: the first 100 words of each, of 5,000 different ones. The names with "full" are the L2E paper's experiments at its
#: sizes, for GPUs: --dry-run says what they cost.
PRESETS: dict[str, tuple[Settings, tuple[int, ...]]] = {
    "fashion_mnist": (
        Settings(
            dataset="fashion_mnist", model="cnn", channels=8, depth=1, batch_size=64, prior_precision=20.0, **_POSTERIOR
        ),
        (1000, 5000),
    ),
    "digits": (
        # A tenth, the default, would leave 90 images to tune by.
        Settings(
            dataset="digits",
            model="mlp",
            hidden=(64, 64, 64),
            activation="silu",
            batch_size=32,
            validation=200,
            prior_precision=1.0,
            **_POSTERIOR,
        ),
        (400, 2000),
    ),
    "cifar10": (Settings(**_CIFAR16, model="cnn", channels=8, depth=2), (1000, 5000)),
    "resnet_proxy": (Settings(**_RESNET_PROXY), (2000, 8000)),
    "cifar10_hmc": (
        # 10 and 20 epochs of 512 minibatches.
        Settings(dataset="cifar10", model="resnet20_frn", batch_size=80, prior_precision=5.0, **_POSTERIOR),
        (5120, 10_240),
    ),
    "mnist_nt": (Settings(**_META_MNIST), _META_BUDGETS),
    "mnist_nt_af": (Settings(**_META_MNIST, activation="sigmoid"), _META_BUDGETS),
    "mnist_nt_data": (
        Settings(**_META_MNIST | {"labels": (5, 6, 7, 8, 9), "meta_sgmcmc_network": "meta-sgmcmc-mnist"}),
        _META_BUDGETS,
    ),
    "imdb": (
        Settings(**_IMDB, width=32, vocabulary=5000, prior_precision=10.0, **_POSTERIOR),
        (600, 3000),
    ),
    "imdb_full": (
        # 2,600 epochs of 156 minibatches.
        Settings(
            **_IMDB | {"batch_size": 128}, prior_precision=10.0, **_POSTERIOR | {"burn_in": 1 / 26, "num_samples": 50}
        ),
        (405_600,),
    ),
    "cifar10_augmented": (Settings(**_RESNET_PROXY, augment=True), (2000, 8000)),
    "cifar10_gong": (
        Settings(
            dataset="cifar10",
            model="gong_cnn",
            batch_size=500,
            prior_precision=1.0,
            **_POSTERIOR,
        ),
        _META_BUDGETS,
    ),
    **{name: (_full(**changes), (steps,)) for name, (steps, changes) in _FULL.items()},
}
