"""The methods of the table at 32×32: how each is made, and which of its networks are averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from experiments.harness.runs.methods import soap
from experiments.harness.runs.muon import Muon, Shampoo
from learned_samplers import L2E, SGHMC, AdaptedSGHMC, WhitenedSGHMC
from learned_samplers.approximations import IVON

Make = Callable[[list[torch.Tensor], float, int, int], torch.optim.Optimizer]

TEMPERATURE, PRIOR = 0.1, 5.0


@dataclass(frozen=True)
class Method:
    """A row: ``make(params, lr, num_data, steps)`` and how a run becomes a prediction.

    ``average``: "last" (the last weights), "trajectory" (predictions of ten snapshots of the last fifth, or of two at
    the end of each cycle or chain), "ema" (moving average of the weights over a tenth of the run), or "draws" (ten of
    IVON's Gaussian at the end).
    """

    make: Make
    rates: tuple[float, ...]
    average: str = "last"
    cosine: bool = False
    sampler: bool = False
    #: Epochs of the run are divided into so many parts: networks from scratch, or cycles of one chain.
    networks: int = 1
    cycles: int = 1
    #: The rate is that chosen for this method, unless it has one of its own.
    rate_of: str = ""


def _plain(make: Callable[..., torch.optim.Optimizer], **own: Any) -> Make:
    return lambda params, lr, num_data, steps: make(params, lr=lr, **own)


_SGD, _ADAM = _plain(torch.optim.SGD, momentum=0.9), _plain(torch.optim.Adam)
_MUON, _SHAMPOO, _SOAP = _plain(Muon), _plain(Shampoo), _plain(soap, weight_decay=0.0)


def _ivon(params: list[torch.Tensor], lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    memory = min(0.99999, max(0.9, 1 - 10 / steps))
    return IVON(params, lr, num_data, betas=(0.9, memory), hess_init=0.5, **_posterior())


def _posterior(temperature: float = TEMPERATURE) -> dict[str, Any]:
    return {"temperature": temperature, "prior_precision": PRIOR}


def _sghmc(temperature: float = TEMPERATURE) -> Make:
    return lambda params, lr, num_data, steps: SGHMC(params, lr, num_data, **_posterior(temperature))


def _l2e(temperature: float = TEMPERATURE) -> Make:
    return lambda params, lr, num_data, steps: L2E(params, lr, num_data, total_steps=steps, **_posterior(temperature))


def _adapted(temperature: float = TEMPERATURE, cycles: bool = False) -> Make:
    """``lr`` is that of the warm-up; the chain's is half as much again."""

    def make(params: list[torch.Tensor], lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
        kwargs: dict[str, Any] = {"total_steps": steps, "cycle_length": steps if cycles else None}
        warmup = partial(WhitenedSGHMC, lr=lr)
        return AdaptedSGHMC(params, 1.5 * lr, num_data, warmup=warmup, **kwargs, **_posterior(temperature))

    return make


def _as_it_comes(params: list[torch.Tensor], lr: float, num_data: int, steps: int) -> torch.optim.Optimizer:
    """At the rate of a run of more than four epochs, which ``lr`` is."""
    return AdaptedSGHMC(params, lr, num_data, total_steps=steps, warmup=L2E, **_posterior())


#: Whose rates are chosen, the slowest first.
METHODS: dict[str, Method] = {
    "SOAP, moving average": Method(_SOAP, (0.001, 0.002, 0.005), "ema"),
    "L2E": Method(_l2e(), (0.001, 0.002, 0.005), "trajectory", sampler=True),
    "AdaptedSGHMC": Method(_adapted(), (0.001, 0.002, 0.005), "trajectory", sampler=True),
    "Shampoo, trajectory": Method(_SHAMPOO, (0.002, 0.005, 0.01), "trajectory"),
    "Shampoo, cosine": Method(_SHAMPOO, (0.002, 0.005, 0.01), cosine=True),
    "Muon, trajectory": Method(_MUON, (0.005, 0.01, 0.02), "trajectory"),
    "IVON": Method(_ivon, (0.05, 0.1, 0.2), "draws", cosine=True, sampler=True),
    "SGHMC": Method(_sghmc(), (0.05, 0.1, 0.2), "trajectory", sampler=True),
    "Adam, moving average": Method(_ADAM, (0.001, 0.002, 0.005), "ema"),
    "SGD, cosine": Method(_SGD, (0.05, 0.1, 0.2), cosine=True),
}
#: Rows whose rate was chosen for another one; at 5 epochs they are not run.
DERIVED: dict[str, Method] = {
    "SGHMC in cycles": Method(_sghmc(), (), "trajectory", cosine=True, sampler=True, cycles=5, rate_of="SGHMC"),
    "L2E in cycles": Method(_l2e(), (), "trajectory", cosine=True, sampler=True, cycles=5, rate_of="L2E"),
    "AdaptedSGHMC in cycles": Method(
        _adapted(cycles=True), (), "trajectory", sampler=True, cycles=5, rate_of="AdaptedSGHMC"
    ),
    "AdaptedSGHMC(warmup=L2E), as it comes": Method(
        _as_it_comes, (0.002,), "trajectory", sampler=True, rate_of="AdaptedSGHMC"
    ),
    "5 chains of AdaptedSGHMC": Method(_adapted(), (), "trajectory", sampler=True, networks=5, rate_of="AdaptedSGHMC"),
    "5 networks by SGD": Method(_SGD, (), cosine=True, networks=5, rate_of="SGD, cosine"),
    "5 networks by Shampoo": Method(_SHAMPOO, (), cosine=True, networks=5, rate_of="Shampoo, cosine"),
    "SGHMC, T = 0": Method(_sghmc(0.0), (), "trajectory", sampler=True, rate_of="SGHMC"),
    "L2E, T = 0": Method(_l2e(0.0), (), "trajectory", sampler=True, rate_of="L2E"),
    "AdaptedSGHMC, T = 0": Method(_adapted(0.0), (), "trajectory", sampler=True, rate_of="AdaptedSGHMC"),
}
#: In the order in which they are run.
ROWS = (
    "SGD, cosine",
    "SGHMC",
    "L2E",
    "AdaptedSGHMC",
    "AdaptedSGHMC in cycles",
    "5 networks by SGD",
    "Shampoo, trajectory",
    "5 networks by Shampoo",
    "SGHMC in cycles",
    "Muon, trajectory",
    "SOAP, moving average",
    "Adam, moving average",
    "IVON",
    "AdaptedSGHMC, T = 0",
    "L2E, T = 0",
    "SGHMC, T = 0",
    "L2E in cycles",
    "Shampoo, cosine",
    "AdaptedSGHMC(warmup=L2E), as it comes",
    "5 chains of AdaptedSGHMC",
)
