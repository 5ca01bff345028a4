"""Draws of a Laplace approximation by ``laplace-torch``, as samples that predict like all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base import validation
from learned_samplers.posterior.collection import SampleCollection
from learned_samplers.posterior.normalisation import normalisation_buffers


def laplace_samples(model: nn.Module, laplace: Any, count: int) -> SampleCollection:
    """Draw weights from a fitted Laplace approximation (of the last layer, or of the whole network); a baseline.

    Fit the Laplace approximation as that package says, then draw from it::

        from laplace import Laplace  # pip install laplace-torch

        laplace = Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
        laplace.fit(train_loader)
        laplace.optimize_prior_precision()
        probabilities = laplace_samples(model, laplace, 30).predict(test_inputs)

    The draws go through the network itself. ``laplace-torch``'s own default linearises the network instead, and for a
    last layer the two agree but for its approximation of the softmax's mean.

    Args:
        model: the trained network that ``laplace`` was fitted to.
        laplace: a fitted object of ``laplace-torch`` over all parameters or over those of the last layer.
        count: number of draws, ≥ 1.

    Raises:
        ValueError: the approximation is not of this network's weights, or covers neither all nor the last of them.
    """
    validation.integer("count", count)
    mean = laplace.mean.detach()
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters.values()])
    names = list(parameters)
    while names and sum(parameters[name].numel() for name in names) > mean.numel():
        names.pop(0)
    size = sum(parameters[name].numel() for name in names)
    if size != mean.numel() or not torch.equal(flat[-size:], mean.flatten()):
        raise ValueError(
            f"laplace must be fitted to the last layer or to all weights of this {type(model).__name__}: its mean of "
            f"{mean.numel()} numbers is not what the model's last parameters hold"
        )
    fixed: dict[str, Tensor] = {name: p.detach() for name, p in parameters.items() if name not in names}
    statistics = set(normalisation_buffers(model))
    fixed |= {name: buffer for name, buffer in model.named_buffers() if name in statistics}
    samples = []
    for draw in laplace.sample(count):
        parts = draw.split([parameters[name].numel() for name in names])
        drawn = {name: part.view_as(parameters[name]) for name, part in zip(names, parts, strict=True)}
        samples.append({**fixed, **drawn})
    return SampleCollection.from_samples(model, samples)
