"""What all runs of one comparison share: data, network, budget, posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.harness.options import at_least_one, not_negative, share_below_one
from experiments.images.own_models import is_own
from learned_samplers.base.validation import non_negative, one_of, positive
from learned_samplers.learned.default_weights import l2e_weights
from meta_tasks import datasets
from meta_tasks.datasets.arrays import arrays_in
from meta_tasks.networks import text_networks

MODELS = ("mlp", "cnn", "lenet", "gong_cnn", "resnet20_frn", "resnet", "vit", *text_networks())
GIVEN = "given"  # the data set that `compare` was called with from Python


@dataclass(frozen=True)
class Settings:
    """Data, network, budget and posterior; the same for every method of a comparison.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # Data set: digits, mnist, fashion_mnist, kmnist, emnist, cifar10, cifar100, svhn, tiny_imagenet, a MedMNIST flag
    # such as bloodmnist; imdb, which are texts; or npz:FILE in MedMNIST layout, or with x_train, y_train, x_test and
    # y_test (and x_val, y_val) of any shape: integers in y make a classification, floats a regression.
    dataset: str = "digits"
    # Words of each text that are kept, from its beginning (texts only; by default all that the files hold).
    length: int | None = None
    # Number of indices of words, the most frequent ones (texts only; by default all); rarer words become unknown ones.
    vocabulary: int | None = None
    # Out-of-distribution data sets, one or several, any names that --dataset takes, or photos or notmnist. By default
    # sample.py takes one (mnist and fashion_mnist are each other's, all others get photos, patches of two photographs)
    # and compare.py none.
    ood: tuple[str, ...] = ()
    # Side of the images in pixels; by default their own.
    size: int | None = None
    # Turn colour images into grey ones.
    grayscale: bool = False
    # Training images held out for validation: a share below 1 or a number; by default the data set's own validation
    # split, or where it has none a tenth.
    validation: float | None = None
    # Number of training images to keep (a seeded stratified choice); by default all.
    limit: int | None = None
    # Division of the images: 0 is the data set's own; n > 0 divides all of them anew, at random by n, into training,
    # validation and test images of the same numbers.
    division: int = 0
    # Labels to keep, renumbered in this order; by default all.
    labels: tuple[int, ...] | None = None
    # Shift every image of a minibatch at random, by up to an eighth of its side, and mirror half of them. The loss is
    # then no longer that of a likelihood of N examples; a tuned temperature makes up for it in part.
    augment: bool = False
    # Network: mlp, cnn (3×3 convolutions, one pooling, two linear layers), lenet (LeNet-5), gong_cnn (Meta-SGMCMC's for
    # CIFAR-10), resnet20_frn, resnet (of --depth 20, 32, 56), vit (a vision transformer); for texts cnn_lstm (a
    # convolution and an LSTM) and transformer; or one of your own, file.py:factory or package.module:factory, a
    # function of nothing or of input_shape and outputs (and vocabulary, of texts the number of indices).
    model: str = "cnn"
    # Regression: standard deviation of the observations' noise, in the targets' unit; without it the network has twice
    # as many outputs as there are targets, their means and then their log-variances.
    noise: float | None = None
    # Channels of each convolution (cnn and gong_cnn only; default 16).
    channels: int | None = None
    # Number of convolutions (cnn; default 2), of layers (resnet; default 20) or of layers of attention (vit, default 4;
    # transformer, default 2).
    depth: int | None = None
    # Add a shortcut from the image to the last convolution and drop the hidden linear layer (cnn only).
    residual: bool = False
    # Widths of the hidden layers (mlp only; default 100 100).
    hidden: tuple[int, ...] | None = None
    # Activation function (mlp and gong_cnn, default relu; resnet, default silu).
    activation: Literal["relu", "tanh", "sigmoid", "silu", "gelu"] | None = None
    # Channels of the first stage (resnet and resnet20_frn; default 16), or width of the vectors (vit, transformer,
    # default 64; cnn_lstm, default 128, with half as many filters).
    width: int | None = None
    # Budget of every method in passes over the training images: gradient evaluations = epochs × batches. The members
    # of a deep ensemble share it; HMC gets as many gradients over the whole training set as there are epochs.
    epochs: int = 200
    # Budget in minibatch gradients, instead of --epochs.
    steps: int | None = None
    # Images in a minibatch (the incomplete last one of an epoch is left out; every epoch is shuffled anew).
    batch_size: int = 64
    # Compile the network's training steps by torch.compile: half the time for a deep network on CPU cores, after a
    # minute or two of compiling; numbers change by rounding.
    compiled: bool = False
    # Momentum decay a of the samplers with a momentum in (0, 1], dimensionless; 1 − a is the momentum of SGD.
    momentum_decay: float = 0.1
    # Temperature T of the samplers, dimensionless: they sample p(θ|D)^(1/T). 1 is the posterior itself; less is a cold
    # posterior, which suits image sets with carefully chosen labels; 0 switches the noise off.
    temperature: float = 0.1
    # Precision λ of the normal prior on every weight, in 1/weight²; SGD, Adam and ensembles get the weight decay λ/N
    # of the same model's maximum a posteriori.
    prior_precision: float = 1.0
    # Share of a sampler's steps before its first sample, in [0, 1). HMC adapts its step size meanwhile. Cyclical
    # SGMCMC has its exploration phases and --burn-in-cycles instead.
    burn_in: float = 0.3
    # Learning rate at the end of a run, as a share of that at its beginning, along half a cosine, of samplers that are
    # not cyclical and of an optimizer's averages; 1 is a constant rate.
    final_lr: float = 1.0
    # Adapt the mass of ScaleAdaptedSGHMC at temperature 0, as Adam does, and not at that of the samples.
    cold_adaptation: bool = False
    # Posterior samples to keep of each run, evenly spaced (for cyclical SGMCMC over the sampling phases).
    num_samples: int = 30
    # Share of the budget that AdamEMA's running average of the weights remembers, in (0, 1].
    average_length: float = 0.1
    # Number of cycles of cyclical SGMCMC in the budget.
    cycles: int = 4
    # Number of cycles at the beginning that give no samples.
    burn_in_cycles: int = 0
    # Share of a cycle without noise and without samples, in [0, 1).
    exploration_ratio: float = 0.8
    # Members of the deep ensemble, each of which gets that share of the budget.
    ensemble_size: int = 5
    # Leapfrog steps of one HMC trajectory, which costs one gradient more than that.
    leapfrog_steps: int = 10
    # Weights of L2E: a name that the package ships, or the path of a .safetensors file with its card; "default" is what
    # L2E takes for as many data.
    l2e_network: str = "default"
    # Weights of ScaleAdaptedL2E.
    scale_adapted_l2e_network: str = "l2e-gated"
    # Weights of L2E in the paper's form.
    l2e_paper_network: str = "l2e-paper"
    # Weights of Kinetic-L2E.
    kinetic_l2e_network: str = "kinetic-l2e"
    # Weights of Meta-SGMCMC.
    meta_sgmcmc_network: str = "meta-sgmcmc"

    def __post_init__(self) -> None:
        if self.dataset != GIVEN and not self.is_text:
            datasets.check_name(self.dataset, "dataset")
        if not is_own(self.model):
            one_of("model (or file.py:factory, package.module:factory)", self.model, MODELS)
        elif own := self.network_options():
            raise ValueError(f"{', '.join(own)} cannot be given with model={self.model!r}, which builds itself")
        if self.noise is not None:
            positive("noise", self.noise)
        for name in self.ood:
            datasets.check_name(name, "ood")
        if len(set(self.ood)) < len(self.ood):
            raise ValueError(f"ood must hold names, each once, got {self.ood}")
        counts = ("length", "epochs", "steps", "batch_size", "num_samples", "cycles", "ensemble_size", "leapfrog_steps")
        at_least_one(self, *counts)
        if not 0 <= self.burn_in_cycles < self.cycles:
            raise ValueError(f"burn_in_cycles must lie in [0, cycles={self.cycles}), got {self.burn_in_cycles}")
        share_below_one(self, "burn_in", "exploration_ratio")
        for name in ("momentum_decay", "average_length", "final_lr"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        for name in ("temperature", "prior_precision"):
            non_negative(name, getattr(self, name))
        not_negative(self, "division")

    def with_weights(self, num_data: int) -> Settings:
        """The same, with the name of L2E's default weights for so many data."""
        return replace(self, l2e_network=l2e_weights(num_data)) if self.l2e_network == "default" else self

    @property
    def is_text(self) -> bool:
        """Whether the data set's inputs are sequences of words."""
        return self.dataset in datasets.text_names()

    def network_options(self) -> dict[str, object]:
        """The options that were set, for `architectures.build`, which refuses those that the network lacks."""
        names = ("channels", "depth", "residual", "hidden", "activation", "width")
        return {name: getattr(self, name) for name in names if getattr(self, name) not in (None, False)}

    def steps_per_epoch(self, num_data: int) -> int:
        """Minibatches in one pass over the training images."""
        if self.batch_size > num_data:
            raise ValueError(f"batch_size={self.batch_size} exceeds the {num_data} training images of {self.dataset}")
        return num_data // self.batch_size

    def budget(self, num_data: int) -> int:
        """Minibatch gradients of every run."""
        per_epoch = self.steps_per_epoch(num_data)
        return self.epochs * per_epoch if self.steps is None else self.steps

    def trajectories(self, num_data: int) -> int:
        """HMC trajectories in the budget: each costs a gradient for every leapfrog step and one at its start."""
        return self.budget(num_data) // self.steps_per_epoch(num_data) // (self.leapfrog_steps + 1)

    def load(self, root: str | None) -> tuple[datasets.ImageData, dict[str, datasets.ImageData]]:
        """The data, and by name the out-of-distribution images in the shape of its images, of one data set at least.

        (None for data of a user's own, whose inputs need not be images.)
        """
        data = self.load_data(root)
        if isinstance(data, datasets.ArrayData):
            return data, {}
        return data, self.load_ood(root, data, self.ood or (datasets.out_of_distribution(self.dataset),))

    def load_ood(
        self, root: str | None, data: datasets.ImageData, names: Sequence[str]
    ) -> dict[str, datasets.ImageData]:
        """The out-of-distribution images of these names, in the shape of the data's."""
        if not names:
            return {}
        channels, height, width = data.input_shape
        square = height if height == width else None
        return {
            name: datasets.match(datasets.load(name, root, size=square, grayscale=channels == 1), data)
            for name in names
        }

    def load_data(self, root: str | None) -> datasets.ImageData:
        """The data alone."""
        validation = self.validation
        if validation is not None and validation >= 1 and validation == int(validation):
            validation = int(validation)  # the command line knows floats alone
        image_options = [name for name in ("ood", "size", "grayscale", "division", "labels") if getattr(self, name)]
        if self.is_text:
            if image_options:
                raise ValueError(f"{', '.join(image_options)} cannot be given for {self.dataset}, which holds texts")
            return datasets.load_text(
                self.dataset,
                root,
                length=self.length,
                vocabulary=self.vocabulary,
                limit=self.limit,
                validation=validation,
            )
        if given := [name for name in ("length", "vocabulary") if getattr(self, name) is not None]:
            raise ValueError(f"{', '.join(given)} cannot be given for {self.dataset}, which holds no texts")
        path = Path(self.dataset.removeprefix("npz:")).expanduser()
        if self.dataset.startswith("npz:") and (arrays := arrays_in(path)) is not None:
            if given := image_options + ["limit"] * (self.limit is not None):
                raise ValueError(f"{', '.join(given)} cannot be given for {path}, whose arrays are taken as they are")
            return datasets.array_data(arrays, str(path), validation=validation)
        data = datasets.load(
            self.dataset,
            root,
            size=self.size,
            grayscale=self.grayscale,
            limit=self.limit,
            validation=validation,
        )
        if self.division:
            data = datasets.divide_anew(data, self.division)
        return data if self.labels is None else datasets.keep_labels(data, self.labels)
