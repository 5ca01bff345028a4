"""The task families that have names: `family_named`, `FAMILIES`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from learned_samplers.base import validation
from meta_tasks.tasks.family import Architecture, ImageTaskFamily

__all__ = ["FAMILIES", "family_named"]


def _cnns(channels: tuple[int, ...], depths: tuple[int, ...], residual: tuple[bool, ...]) -> tuple[Architecture, ...]:
    return tuple(
        ("cnn", {"channels": c, "depth": l, "residual": r}) for c, l, r in itertools.product(channels, depths, residual)
    )


def _mlps(*hidden: tuple[int, ...], activations: tuple[str, ...]) -> tuple[Architecture, ...]:
    return tuple(("mlp", {"hidden": h, "activation": a}) for h, a in itertools.product(hidden, activations))


_PAPER = _cnns((4, 8, 16), (1, 2, 3, 4, 5), (False, True))
_GENERAL = (*_mlps((16,), (32,), (32, 16), activations=("relu", "silu")), *_cnns((4, 8), (1, 2), (False,)))
_SMALL_RESNET = ("resnet_frn", {"width": 4, "blocks": (1, 1)})
_SMALL_IMAGES = (
    *("mnist", "fashion_mnist", "fashion_mnist") * 2,
    "digits",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
)
_LOW_LRS = (0.001, 0.002, 0.005, 0.01)

#: Named presets.
FAMILIES: dict[str, Callable[..., ImageTaskFamily]] = {
    # The 120 configurations of the L2E paper (Section 5, Appendix I.2) with BloodMNIST as its MedMNIST set and EMNIST
    # in its 10-class split.
    "paper": partial(
        ImageTaskFamily,
        dataset_names=("mnist", "fashion_mnist", "emnist", "bloodmnist"),
        architectures=_PAPER,
    ),
    # The same at a tenth of the cost: at most three convolutions of at most eight channels, and the two sets that most
    # people have.
    "paper_small": partial(
        ImageTaskFamily,
        dataset_names=("mnist", "fashion_mnist"),
        architectures=_cnns((4, 8), (1, 2, 3), (False, True)),
    ),
    # Networks of that kind and perceptrons at 8 to 20 pixels, and what generalisation wants besides.
    "cpu": partial(
        ImageTaskFamily,
        dataset_names=_SMALL_IMAGES,
        architectures=(
            *_cnns((4, 8), (1, 2), (False, True)),
            *_mlps((20,), (30, 20), activations=("relu", "tanh")),
        ),
        sizes=(8, 8, 10, 14, 14, 20),
        batch_sizes=(32, 64),
        lrs=_LOW_LRS,
        prior_precisions=(1.0, 5.0, 20.0),
        weight_scale_spreads=(0.0, 0.0, 0.5),
        grayscale=True,
        label_subset_share=0.25,
        small_data_share=0.25,
    ),
    # What carries over to larger networks: MLPs and convolutions of several widths at 8 to 14 pixels, two temperatures,
    # weights of very different scales; and normalised residual networks, which take two to four times as long: a third
    # of what a task of the family costs goes to them; an eighth of the tasks are theirs.
    "residual": partial(
        ImageTaskFamily,
        dataset_names=_SMALL_IMAGES,
        architectures=(*_GENERAL * 2, _SMALL_RESNET, _SMALL_RESNET, ("resnet_frn", {"width": 8, "blocks": (1, 1)})),
        sizes=(8, 8, 8, 10, 14),
        batch_sizes=(32, 64),
        lrs=_LOW_LRS,
        temperatures=(1.0, 0.1),
        prior_precisions=(1.0, 5.0, 20.0),
        weight_scale_spreads=(0.0, 0.5, 1.0),
        grayscale=True,
        label_subset_share=0.2,
        small_data_share=0.25,
    ),
    # Where to move, not how far: with few data the slowest direction wins, by memorising least, so there are many here,
    # and hardly any noise. Directions differ where images are hard and networks deep, not where either is easy.
    "direction": partial(
        ImageTaskFamily,
        dataset_names=("cluttered_fashion",),
        architectures=(*_mlps((32, 32, 32, 32), activations=("relu", "silu")), _SMALL_RESNET),
        sizes=(12, 16),
        batch_sizes=(64, 128),
        lrs=(0.0005, 0.001, 0.002),
        temperatures=(0.1,),
        prior_precisions=(1.0, 5.0, 20.0),
    ),
    # The one network that Meta-SGMCMC was trained on, 784-20-10 at a batch of 500.
    "mnist_mlp": partial(
        ImageTaskFamily,
        dataset_names=("mnist",),
        architectures=_mlps((20,), activations=("relu",)),
        batch_sizes=(500,),
        lrs=(0.02,),
        prior_precisions=(1.0,),
    ),
    # Needs no file, for a first try.
    "digits": partial(
        ImageTaskFamily,
        dataset_names=("digits",),
        architectures=(*_cnns((4,), (1,), (False, True)), *_mlps((20,), activations=("relu",))),
        batch_sizes=(32,),
        validation_size=256,
    ),
}


def family_named(name: str, **changes: Any) -> ImageTaskFamily:
    """The preset of that name, with other values for the fields in ``changes``.

    Raises:
        ValueError: there is no such preset; or as `ImageTaskFamily`.
    """
    validation.one_of("task family", name, FAMILIES)
    return replace(FAMILIES[name](name=name), **changes)
