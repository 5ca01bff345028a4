"""Rivals on the weights of an adapter: each gives probabilities (sample, row, class) after as many gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.tuning import Choice
from learned_samplers import SGHMC, SGLD, AdaptedSGHMC, PosteriorSamples, metrics
from learned_samplers.adapters import AdapterSamples
from learned_samplers.approximations import IVON, laplace_samples
from learned_samplers.base.optional import require

MEMBERS, SAMPLES, ROWS, CHUNK = 5, 10, 16, 250


@dataclass(frozen=True, order=True)
class Setting(Choice):
    """A learning rate, a prior precision, and a chain's temperature or IVON's first curvature."""

    precision: float = 0.0
    temperature: float = 1.0
    curvature: float | None = None

    def __str__(self) -> str:
        cold = f", T {self.temperature:g}" * (self.temperature != 1.0)
        first = "" if self.curvature is None else f", h₀ {self.curvature:g}"
        return f"lr {self.lr:g}, λ {self.precision:g}{cold}{first}"


@dataclass(frozen=True)
class Fine:
    """Input of a method: labelled rows, held-out rows, gradients, a setting, and a maker of fresh adapters.

    Attributes:
        modes: weights of modes that other methods have found on the same rows, by setting.
    """

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    steps: int
    setting: Setting
    fresh: Callable[[int], Any]
    seed: int
    modes: dict[Setting, dict[str, Tensor]]

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


def sampled(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapter's weights and the head's."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def in_chunks(predict: Predict, x: Tensor) -> Tensor:
    """Return predictions (sample, row, class) without holding all rows' states at once."""
    with torch.no_grad():
        return torch.cat([predict(rows) for rows in x.split(CHUNK)], 1)


def trained(fine: Fine, steps: int, member: int = 0, dropout: bool = False) -> Any:
    """Return a model at the mode of its posterior: AdamW, whose loss holds the prior; its rate falls to zero."""
    model = fine.fresh(1000 * fine.seed + member).train(dropout)
    weights = [*sampled(model).values()]
    optimizer = torch.optim.AdamW(weights, lr=fine.setting.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for x, y in fine.minibatches(steps):
        prior = sum(p.square().sum() for p in weights) * fine.setting.precision / (2 * len(fine.x))
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) + prior).backward()
        optimizer.step()
        schedule.step()
    return model


def mode(fine: Fine) -> Any:
    """Return a model at the mode, trained once for all methods that begin with it."""
    if fine.setting in fine.modes:
        model = fine.fresh(1000 * fine.seed)
        model.load_state_dict(fine.modes[fine.setting], strict=False)
        return model
    model = trained(fine, fine.steps)
    fine.modes[fine.setting] = {name: p.detach().clone() for name, p in sampled(model).items()}
    return model


def mixture(models: Sequence[nn.Module]) -> Predict:
    """Return predictions of one model after the other."""
    return lambda x: torch.stack([model(x).softmax(1) for model in models])


def map_(fine: Fine) -> Predict:
    """One set of weights."""
    model = mode(fine)
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
    return mixture([trained(fine, fine.steps // MEMBERS, member) for member in range(MEMBERS)])


def dropout(fine: Fine) -> Predict:
    """One set of weights, with dropout in training and in ten predictions."""
    model = trained(fine, fine.steps, dropout=True)
    return mixture([model] * SAMPLES)


def laplace_fit(model: nn.Module, fine: Fine, x: Tensor, structure: str) -> Any:
    """Return a Gaussian around a mode, of the weights that require gradients, by `laplace-torch`."""
    fitted = require("laplace", "laplace").Laplace(
        model, "classification", subset_of_weights="all", hessian_structure=structure
    )
    fitted.prior_precision = fine.setting.precision
    fitted.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, fine.y), batch_size=CHUNK))
    return fitted


def last_layer(fine: Fine) -> Predict:
    """One set of weights, and ten draws of the head, by all curvatures of the head."""
    model = mode(fine).get_base_model()
    head = model.head.modules_to_save["default"]
    states = torch.cat([model.features(rows).detach() for rows in fine.x.split(CHUNK)])
    draws = laplace_samples(head, laplace_fit(head, fine, states, "full"), SAMPLES)
    return lambda x: draws.predict_samples(model.features(x))


def whole_adapter(fine: Fine) -> Predict:
    """One set of weights, and ten draws of adapter and head, by Kronecker-factored curvatures."""
    model = mode(fine)
    weights = [*sampled(model).values()]
    fitted = laplace_fit(model, fine, fine.x, "kron")
    draws = []
    for draw in fitted.sample(SAMPLES):
        nn.utils.vector_to_parameters(draw, weights)
        draws.append(copy.deepcopy(model))
    return mixture(draws)


def ivon(fine: Fine) -> Predict:
    """Ten draws of a Gaussian that IVON has trained."""
    model, setting = fine.fresh(1000 * fine.seed), fine.setting
    options: dict[str, Any] = {"num_data": len(fine.x), "prior_precision": setting.precision}
    options["hess_init"] = setting.curvature
    sampler = IVON(sampled(model).values(), lr=setting.lr, betas=(0.9, 1 - 10 / fine.steps), **options)
    schedule = torch.optim.lr_scheduler.LinearLR(sampler, 1.0, 0.01, fine.steps)
    for x, y in fine.minibatches(fine.steps):
        with sampler.sampled_params():
            sampler.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()
        schedule.step()
    draws = []
    for _ in range(SAMPLES):
        with sampler.sampled_params():
            draws.append(copy.deepcopy(model))
    return mixture(draws)


def chain(make: Callable[..., Any], **settings: Any) -> Callable[[Fine], Predict]:
    """Ten samples of the second half of a chain."""

    def run(fine: Fine) -> Predict:
        model = fine.fresh(1000 * fine.seed)
        options = {"lr": fine.setting.lr, "num_data": len(fine.x), "prior_precision": fine.setting.precision}
        options |= {"temperature": fine.setting.temperature, **settings}
        if make is AdaptedSGHMC:
            options["total_steps"] = fine.steps
        generator = torch.Generator().manual_seed(fine.seed)
        sampler = make(sampled(model).values(), generator=generator, **options)
        half = fine.steps // 2
        posterior = PosteriorSamples(model, sampler, burn_in=half, thinning=half // SAMPLES, store_frozen=False)
        for x, y in fine.minibatches(fine.steps):
            sampler.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            sampler.step()
        return AdapterSamples.of(posterior).predict_samples

    return run


def grid(rates: Sequence[float], precisions: Sequence[float], **more: Sequence[float]) -> list[Setting]:
    """Return every combination of learning rates, prior precisions and what else a method has."""
    return [
        Setting(lr, precision, **dict(zip(more, values, strict=True)))
        for lr, precision, *values in product(rates, precisions, *more.values())
    ]


PRECISIONS, COLD = (10.0, 30.0), {"temperature": (0.1,)}
MODES = grid((0.02, 0.05, 0.1), PRECISIONS)
#: Name → the method and the six settings that are tried: three learning rates, two precisions.
METHODS: dict[str, tuple[Callable[[Fine], Predict], list[Setting]]] = {
    "MAP": (map_, MODES),
    "MAP, temperature scaling": (tempered, MODES),
    "last-layer Laplace": (last_layer, MODES),
    "Laplace of the adapter": (whole_adapter, MODES),
    "MC dropout": (dropout, MODES),
    "ensemble": (ensemble, grid((0.02, 0.05, 0.1), PRECISIONS)),
    "IVON": (ivon, grid((0.1, 0.3, 1.0), PRECISIONS, curvature=(0.01,))),
    "SGLD": (chain(SGLD), grid((0.05, 0.2, 0.5), PRECISIONS, **COLD)),
    "SGHMC": (chain(SGHMC, momentum_decay=0.1), grid((0.02, 0.05, 0.1), PRECISIONS, **COLD)),
    "AdaptedSGHMC": (chain(AdaptedSGHMC), grid((0.003, 0.01, 0.03), PRECISIONS, **COLD)),
}
