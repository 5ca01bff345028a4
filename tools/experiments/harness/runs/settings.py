"""Settings of a run: data, network, budget and posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from experiments.harness.options import at_least, names_once, share_below_one
from experiments.harness.runs.own_models import is_own
from learned_samplers.base.validation import non_negative, one_of
from meta_tasks import datasets
from meta_tasks.datasets.arrays import arrays_in
from meta_tasks.networks import text_networks

SPLITS = ("train", "val", "test")
MODELS = ("mlp", "cnn", "lenet", "gong_cnn", "resnet20_frn", "resnet", *text_networks())


@dataclass(frozen=True)
class Settings:
    """Data, network, budget and posterior; the same for every method of a comparison."""

    # A name (digits, mnist, cifar10, imdb, …), or npz:FILE with x_train, y_train, x_test, y_test.
    dataset: str = "digits"
    length: int | None = None  # Texts: words of each that are kept.
    vocabulary: int | None = None  # Texts: the most frequent words, which have an index of their own.
    ood: tuple[str, ...] = ()  # Out-of-distribution data sets: names as of --dataset, or photos, notmnist.
    size: int | None = None  # Side of the images in pixels; by default their own.
    # Training examples held out for validation, a share below 1 or a number; by default the set's own, or a tenth.
    validation: float | None = None
    limit: int | None = None  # Number of training images to keep, a seeded stratified choice.
    # Labels to keep, renumbered in this order. (Of presets and Python alone.)
    labels: tyro.conf.Suppress[tuple[int, ...] | None] = None
    # Subtract the training images' mean of each channel, and divide by its standard deviation.
    standardise: bool = False
    # Crop and mirror the images of every minibatch at random; the loss is then not that of N examples.
    augment: bool = False
    # mlp, cnn, lenet, gong_cnn, resnet20_frn, resnet; cnn_lstm, transformer; or file.py:factory, module:factory.
    model: str = "cnn"
    channels: int | None = None  # Channels of each convolution (cnn, gong_cnn; default 16).
    # Number of convolutions (cnn), layers (resnet: 20, 32, 56) or layers of attention (transformer).
    depth: int | None = None
    hidden: tuple[int, ...] | None = None  # Widths of the hidden layers (mlp; default 100 100).
    # Activation function (mlp, gong_cnn, resnet).
    activation: Literal["relu", "tanh", "sigmoid", "silu", "gelu"] | None = None
    # Channels of the first stage (resnet, resnet20_frn), or width of the vectors (transformer, cnn_lstm).
    width: int | None = None
    epochs: int = 200  # Budget of every method in passes over the training data; an ensemble's members share it.
    steps: int | None = None  # Budget in minibatch gradients, instead of --epochs.
    batch_size: int = 64  # Examples in a minibatch.
    compiled: bool = False  # Compile the network's training steps by torch.compile.
    momentum_decay: float = 0.1  # Momentum decay a in (0, 1]: 1 − a is the momentum of SGD.
    # Temperature T of the samplers: they sample p(θ|D)^(1/T); 1 is the posterior, 0 has no noise.
    temperature: float = 0.1
    # Precision λ of the normal prior on every weight, in 1/weight²; optimizers get the weight decay λ/N.
    prior_precision: float = 1.0
    burn_in: float = 0.3  # Share of the steps before the first sample; HMC and AdaptedSGHMC adapt meanwhile.
    # Learning rate at the end, as a share of that at the beginning, along half a cosine; 1 is a constant rate.
    final_lr: float = 1.0
    num_samples: int = 30  # Posterior samples to keep of each run, evenly spaced.
    cycles: int = 4  # Number of cycles of the cyclical samplers.
    # Cycles at the beginning that give no samples. (Of presets and Python alone.)
    burn_in_cycles: tyro.conf.Suppress[int] = 0
    exploration_ratio: float = 0.8  # Share of a cycle without noise and without samples, in [0, 1).
    ensemble_size: int = 5  # Members of an ensemble, each of which gets that share of the budget.
    # Leapfrog steps of one HMC trajectory, which costs one gradient over all data more than that.
    leapfrog_steps: int = 10
    # Lines between pairs of samples along which losses are measured: all of ten samples' on validation images, or more
    # on test images.
    lines: int = 45
    half: Literal["all", "even", "odd"] = "all"  # Half of the test images that is scored: all, even or odd.
    # Weights of learned samplers, METHOD=NAME of shipped ones or METHOD=FILE.safetensors; by default each one's own.
    networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.is_text:
            datasets.check_name(self.dataset, "dataset")
        if not is_own(self.model):
            one_of("model (or file.py:factory, package.module:factory)", self.model, MODELS)
        elif options := self.network_options():
            raise ValueError(f"{', '.join(options)} cannot be given with model={self.model!r}, which builds itself")
        for name in self.ood:
            datasets.check_name(name, "ood")
        if self.ood:
            names_once(self, "ood")
        counts = (
            "length",
            "epochs",
            "steps",
            "batch_size",
            "num_samples",
            "cycles",
            "ensemble_size",
            "leapfrog_steps",
            "lines",
        )
        at_least(1, self, *counts)
        if not 0 <= self.burn_in_cycles < self.cycles:
            raise ValueError(f"burn_in_cycles must lie in [0, cycles={self.cycles}), got {self.burn_in_cycles}")
        share_below_one(self, "burn_in", "exploration_ratio")
        for name in ("momentum_decay", "final_lr"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        for name in ("temperature", "prior_precision"):
            non_negative(name, getattr(self, name))
        for text in self.networks:
            if not all(text.partition("=")):
                raise ValueError(f"networks must hold METHOD=NAME, got {text!r}")

    @property
    def named_networks(self) -> dict[str, str]:
        """Method, in lower case → the name of its weights, of those that are given."""
        parts = (text.partition("=") for text in self.networks)
        return {method.lower(): name for method, _, name in parts}

    @property
    def is_text(self) -> bool:
        """True if the data set's inputs are sequences of words."""
        return self.dataset in datasets.text_names()

    def network_options(self) -> dict[str, object]:
        """The options that were set, for `architectures.build`, which refuses those that the network lacks."""
        names = ("channels", "depth", "hidden", "activation", "width")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def steps_per_epoch(self, num_data: int) -> int:
        """Minibatches in one pass over the training data."""
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

    def load_ood(self, root: str | None, data: datasets.ImageData) -> dict[str, datasets.ImageData]:
        """The out-of-distribution images, in the shape of the data's."""
        if not self.ood:
            return {}
        channels, height, width = data.input_shape
        options: Any = {"size": height if height == width else None, "grayscale": channels == 1}
        images = {name: _sheet(name, root) or datasets.load(name, root, **options) for name in self.ood}
        training = replace(self, standardise=False).load_data(root) if self.standardise else data
        return {name: self._standardised(datasets.match(x, data), training) for name, x in images.items()}

    def _standardised(self, images: datasets.ImageData, training: datasets.ImageData) -> datasets.ImageData:
        if not self.standardise:
            return images
        mean, deviation = (f(training.train_x, (0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        splits: Any = {f"{split}_x": (getattr(images, f"{split}_x") - mean) / deviation for split in SPLITS}
        return replace(images, **splits)

    def load_data(self, root: str | None) -> datasets.ImageData:
        """The data alone."""
        validation = self.validation
        if validation is not None and validation >= 1 and validation == int(validation):
            validation = int(validation)  # the command line knows floats alone
        image_options = [name for name in ("ood", "size", "labels") if getattr(self, name)]
        if self.is_text:
            if image_options:
                raise ValueError(f"{', '.join(image_options)} cannot be given for {self.dataset}, which holds texts")
            words: Any = {"length": self.length, "vocabulary": self.vocabulary, "limit": self.limit}
            return datasets.load_text(self.dataset, root, validation=validation, **words)
        if text_options := [name for name in ("length", "vocabulary") if getattr(self, name) is not None]:
            raise ValueError(f"{', '.join(text_options)} cannot be given for {self.dataset}, which holds no texts")
        path = Path(self.dataset.removeprefix("npz:")).expanduser()
        if self.dataset.startswith("npz:") and (arrays := arrays_in(path)) is not None:
            if refused := image_options + ["limit"] * (self.limit is not None):
                raise ValueError(f"{', '.join(refused)} cannot be given for {path}, whose arrays are taken as they are")
            table = datasets.array_data(arrays, str(path), validation=validation)
            if not table.num_classes:
                raise ValueError(f"dataset={self.dataset!r} is a regression, y_train must hold the numbers of classes")
            return table
        data = datasets.load(self.dataset, root, size=self.size, limit=self.limit, validation=validation)
        data = data if self.labels is None else datasets.keep_labels(data, self.labels)
        return self._standardised(data, data)


def _sheet(name: str, root: str | None) -> datasets.ImageData | None:
    """Images of 32×32 pixels out of distribution, cut from the sheet ``<root>/<name>.webp`` if there is one."""
    path = datasets.data_root(root) / f"{name}.webp"
    if not path.is_file():
        return None
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    tiles = pixels.unfold(0, 32, 32).unfold(1, 32, 32).flatten(0, 1) / 255
    none, labels = tiles[:0], torch.zeros(len(tiles), dtype=torch.int64)
    return datasets.ImageData(name, 1, none, labels[:0], none, labels[:0], tiles, labels)
