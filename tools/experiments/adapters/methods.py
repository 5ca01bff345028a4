"""Rivals on the weights of an adapter: each gives probabilities (sample, row, class) after as many gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers import SGHMC, SGLD, AdaptedSGHMC, PosteriorSamples, SampleCollection, metrics
from learned_samplers.adapters import AdapterSamples
from learned_samplers.approximations import IVON, laplace_samples
from learned_samplers.base.optional import require

MEMBERS, SAMPLES, ROWS, CHUNK = 5, 10, 16, 250


@dataclass(frozen=True)
class Fine:
    """Input of a method: labelled rows, held-out rows, gradients, a setting, and a maker of fresh adapters."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    steps: int
    lr: float
    precision: float
    fresh: Callable[[int], Any]
    seed: int

    def minibatches(self, steps: int) -> Any:
        """Yield rows drawn by chance, all of them once before any comes again."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(order) < ROWS:
                order = torch.randperm(len(self.x), generator=generator)
            rows, order = order[:ROWS], order[ROWS:]
            yield self.x[rows], self.y[rows]


Predict = Callable[[Tensor], Tensor]


def sampled(model: nn.Module) -> list[nn.Parameter]:
    """Return the adapter's weights and the head's."""
    return [p for p in model.parameters() if p.requires_grad]


def in_chunks(predict: Predict, x: Tensor) -> Tensor:
    """Return predictions (sample, row, class) without holding all rows' states at once."""
    with torch.no_grad():
        return torch.cat([predict(rows) for rows in x.split(CHUNK)], 1)


def mode(fine: Fine, steps: int, member: int = 0, dropout: bool = False) -> Any:
    """Return a model at the mode of its posterior: AdamW, whose loss holds the prior."""
    model = fine.fresh(1000 * fine.seed + member).train(dropout)
    weights = sampled(model)
    optimizer = torch.optim.AdamW(weights, lr=fine.lr, weight_decay=0.0)
    for x, y in fine.minibatches(steps):
        prior = sum(p.square().sum() for p in weights) * fine.precision / (2 * len(fine.x))
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) + prior).backward()
        optimizer.step()
    return model


def map_(fine: Fine) -> Predict:
    """One set of weights."""
    model = mode(fine, fine.steps)
    return lambda x: model(x).softmax(1)[None]


def tempered(fine: Fine) -> Predict:
    """One set of weights, with the temperature that fits the held-out rows best."""
    predict = map_(fine)
    try:
        factor = metrics.fit_temperature(in_chunks(predict, fine.held_x)[0], fine.held_y)
    except ValueError as error:  # the study takes this for a run without a result
        raise FloatingPointError(str(error)) from error
    return lambda x: metrics.with_temperature(predict(x)[0], factor)[None]


def ensemble(fine: Fine) -> Predict:
    """Five sets of weights that share the gradients."""
    models = [mode(fine, fine.steps // MEMBERS, member) for member in range(MEMBERS)]
    return lambda x: torch.stack([model(x).softmax(1) for model in models])


def dropout(fine: Fine) -> Predict:
    """One set of weights, with dropout in training and in ten predictions."""
    model = mode(fine, fine.steps, dropout=True)
    return lambda x: torch.stack([model(x).softmax(1) for _ in range(SAMPLES)])


def last_layer(fine: Fine) -> Predict:
    """One set of weights, and ten draws of the head by `laplace-torch`, around it."""
    model = mode(fine, fine.steps).get_base_model()
    head = copy.deepcopy(model.head.modules_to_save["default"])
    states = torch.cat([model.features(rows).detach() for rows in fine.x.split(CHUNK)])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(states, fine.y), batch_size=CHUNK)
    make = require("laplace", "laplace").Laplace
    fitted = make(head, "classification", subset_of_weights="all", hessian_structure="full")
    fitted.prior_precision = fine.precision
    fitted.fit(loader)
    draws = laplace_samples(head, fitted, SAMPLES)
    return lambda x: draws.predict_samples(model.features(x))


def ivon(fine: Fine) -> Predict:
    """Ten draws of a Gaussian that IVON has trained."""
    model = fine.fresh(1000 * fine.seed)
    sampler = IVON(sampled(model), lr=fine.lr, num_data=len(fine.x), prior_precision=fine.precision)
    for x, y in fine.minibatches(fine.steps):
        with sampler.sampled_params():
            sampler.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()
    return SampleCollection.from_draws(model, sampler.sampled_params, SAMPLES).predict_samples


def chain(make: Callable[..., Any], **settings: Any) -> Callable[[Fine], Predict]:
    """Ten samples of the second half of a chain."""

    def run(fine: Fine) -> Predict:
        model = fine.fresh(1000 * fine.seed)
        options = {"lr": fine.lr, "num_data": len(fine.x), "prior_precision": fine.precision, **settings}
        if make is AdaptedSGHMC:
            options["total_steps"] = fine.steps
        sampler = make(sampled(model), generator=torch.Generator().manual_seed(fine.seed), **options)
        half = fine.steps // 2
        posterior = PosteriorSamples(model, sampler, burn_in=half, thinning=half // SAMPLES, store_frozen=False)
        for x, y in fine.minibatches(fine.steps):
            sampler.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            sampler.step()
        return AdapterSamples.of(posterior).predict_samples

    return run


ADAM, RATES = (0.001, 0.005), (0.05, 0.2)
#: Name → the method and the two learning rates that are tried.
METHODS: dict[str, tuple[Callable[[Fine], Predict], tuple[float, float]]] = {
    "MAP": (map_, ADAM),
    "MAP, temperature scaling": (tempered, ADAM),
    "ensemble": (ensemble, ADAM),
    "MC dropout": (dropout, ADAM),
    "last-layer Laplace": (last_layer, ADAM),
    "IVON": (ivon, RATES),
    "SGLD": (chain(SGLD), RATES),
    "SGHMC": (chain(SGHMC, momentum_decay=0.1), (0.01, 0.05)),
    "AdaptedSGHMC": (chain(AdaptedSGHMC), ADAM),
}
