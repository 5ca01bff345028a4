"""The task families that have names: `family_named`, `FAMILIES`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
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


def _paper() -> ImageTaskFamily:
    return ImageTaskFamily(
        "paper", ("mnist", "fashion_mnist", "emnist", "bloodmnist"), _cnns((4, 8, 16), (1, 2, 3, 4, 5), (False, True))
    )


def _full() -> ImageTaskFamily:
    return ImageTaskFamily(
        "full",
        ("mnist", "fashion_mnist", "fashion_mnist", "bloodmnist", "pathmnist", "organamnist", "digits"),
        (
            *_cnns((4, 8, 16), (1, 2, 3, 4, 5), (False, True)),
            *_mlps((20,), (100, 50), activations=("relu", "tanh", "gelu")),
        ),
        sizes=(None, None, 14, 20),
        batch_sizes=(32, 64, 128),
        lrs=(0.02, 0.05, 0.1, 0.2),
        weight_scale_spreads=(0.0, 0.0, 0.5),
        grayscale=True,
        label_subset_share=0.25,
        small_data_share=0.3,
    )


def _cpu() -> ImageTaskFamily:
    return ImageTaskFamily(
        "cpu",
        (*("mnist", "fashion_mnist", "fashion_mnist") * 2, "digits", "pneumoniamnist", "retinamnist", "breastmnist"),
        (*_cnns((4, 8), (1, 2), (False, True)), *_mlps((20,), (30, 20), activations=("relu", "tanh"))),
        sizes=(8, 8, 10, 14, 14, 20),
        batch_sizes=(32, 64),
        lrs=(0.001, 0.002, 0.005, 0.01),
        prior_precisions=(1.0, 5.0, 20.0),
        weight_scale_spreads=(0.0, 0.0, 0.5),
        grayscale=True,
        label_subset_share=0.25,
        small_data_share=0.25,
    )


def _general() -> ImageTaskFamily:
    return ImageTaskFamily(
        "general",
        (*("mnist", "fashion_mnist", "fashion_mnist") * 2, "digits", "pneumoniamnist", "retinamnist", "breastmnist"),
        (
            *_mlps((16,), (32,), (32, 16), activations=("relu", "silu")),
            *_cnns((4, 8), (1, 2), (False,)),
        ),
        sizes=(8, 8, 8, 10, 14),
        batch_sizes=(32, 64),
        lrs=(0.001, 0.002, 0.005, 0.01),
        temperatures=(1.0, 0.1),
        prior_precisions=(1.0, 5.0, 20.0),
        weight_scale_spreads=(0.0, 0.5, 1.0),
        grayscale=True,
        label_subset_share=0.2,
        small_data_share=0.25,
    )


def _residual() -> ImageTaskFamily:
    general = _general()
    networks = tuple(("resnet_frn", {"width": width, "blocks": (1, 1)}) for width in (4, 4, 8))
    # A third of what a task of the family costs goes to the residual ones; an eighth of the tasks are theirs.
    return replace(general, name="residual", architectures=(*general.architectures * 2, *networks))


def _direction() -> ImageTaskFamily:
    # Where to move, not how far: with few data the slowest direction wins, by memorising least, so there are many here,
    # and hardly any noise. Directions differ where images are hard and networks deep, not where either is easy.
    return ImageTaskFamily(
        "direction",
        ("cluttered_fashion",),
        (
            *_mlps((32, 32, 32, 32), activations=("relu", "silu")),
            ("resnet_frn", {"width": 4, "blocks": (1, 1)}),
        ),
        sizes=(12, 16),
        batch_sizes=(64, 128),
        lrs=(0.0005, 0.001, 0.002),
        temperatures=(0.1,),
        prior_precisions=(1.0, 5.0, 20.0),
    )


def _small() -> ImageTaskFamily:
    return ImageTaskFamily(
        "small",
        ("fashion_mnist",),
        _cnns((4,), (1, 2), (False,)),
        sizes=(8, 14),
        batch_sizes=(64,),
        lrs=(0.001, 0.002, 0.005, 0.01),
        grayscale=True,
    )


def _digits() -> ImageTaskFamily:
    return ImageTaskFamily(
        "digits",
        ("digits",),
        (*_cnns((4,), (1,), (False, True)), *_mlps((20,), activations=("relu",))),
        batch_sizes=(32,),
        validation_size=256,
    )


def _mnist_mlp() -> ImageTaskFamily:
    return ImageTaskFamily(
        "mnist_mlp",
        ("mnist",),
        _mlps((20,), activations=("relu",)),
        batch_sizes=(500,),
        lrs=(0.02,),
        prior_precisions=(1.0,),
    )


#: Named presets. "paper": the 120 configurations of the L2E paper (Section 5 and Appendix I.2) with BloodMNIST as its
#: MedMNIST set and EMNIST in its 10-class split. "full": those networks and what generalisation wants besides,
#: for GPUs. "cpu": the same at 8 to 20 pixels. "general": what carries over to larger networks: MLPs and convolutions
#: of several widths at 8 to 14 pixels, two temperatures, weights of very different scales. "residual": and normalised
#: residual networks, which take two to four times as long. "direction": for the direction of a step alone: MLPs of
#: four hidden layers and small residual networks on cluttered images of 12 and 16 pixels, all of them. "small":
#: Fashion-MNIST and 4 channels alone, the paper's Small-L2E. "mnist_mlp": the one network that Meta-SGMCMC was trained
#: on, 784-20-10 at a batch of 500. "digits": needs no file, for a first try.
FAMILIES: dict[str, Callable[[], ImageTaskFamily]] = {
    "paper": _paper,
    "full": _full,
    "cpu": _cpu,
    "general": _general,
    "residual": _residual,
    "direction": _direction,
    "small": _small,
    "mnist_mlp": _mnist_mlp,
    "digits": _digits,
}


def family_named(name: str, **changes: Any) -> ImageTaskFamily:
    """The preset of that name, with other values for the fields in ``changes``.

    Raises:
        ValueError: there is no such preset; or as `ImageTaskFamily`.
    """
    validation.one_of("task family", name, FAMILIES)
    return replace(FAMILIES[name](), **changes)
