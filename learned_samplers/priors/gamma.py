"""A prior whose precision is sampled with the weights: nobody has to guess it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import prior_mean, sharding, validation
from learned_samplers.base.operations import as_number
from learned_samplers.base.prior import Prior
from learned_samplers.base.protocol import Chain


class GammaHyperprior(Prior):
    """A precision for each tensor, λ ~ Gamma(shape, rate), drawn anew given the weights every so many steps.

        SGHMC(model.parameters(), lr=0.05, num_data=N, prior_precision=GammaHyperprior())

    The joint law at temperature T, with L = −log p(D|θ) and d weights in a tensor, is

        p(θ, λ | D) ∝ Gamma(λ; shape, rate) · exp(−L(θ)/T) · N(θ; μ, T/λ)

    so that the weights given λ follow exp(−U/T) as with a fixed one, and λ given the weights is drawn from

        λ | θ ~ Gamma(shape + d/2, rate + ‖θ − μ‖²/(2T))

    The factor (λ/T)^(d/2) of the normal is kept whatever T is. Without it, tempering the whole joint density to the
    power 1/T, λ runs away: at T = 0.1 a tensor that the data leave alone draws a λ ten times larger each time.

    Sources: MacKay, Bayesian interpolation, 1992; Neal, Bayesian Learning for Neural Networks, 1996; beside SGHMC:
    Chen, Fox and Guestrin, ICML 2014.

    Invariant law: that of the sampler for the weights, and for λ given the weights the conditional exactly.

    λ and the weights move together, so that λ takes many draws to settle. Each tensor becomes a parameter group, and λ
    stands there as ``prior_precision``: it is saved with the state and resumes bit for bit. At temperature 0, as while
    a cycle explores, nothing is drawn.

    Args:
        shape: a > 0.
        rate: b > 0, in θ². The prior's mean of λ is a/b.
        start: λ > 0 before the first draw.
        every: steps between two draws.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type.
    """

    def __init__(self, shape: float = 1.0, rate: float = 0.1, start: float = 1.0, every: int = 20):
        for name, value in {"shape": shape, "rate": rate, "start": start}.items():
            validation.positive(name, value)
        validation.integer("every", every)
        self.shape, self.rate, self.start, self.every = float(shape), float(rate), float(start), int(every)

    def precision(self, name: str | None, p: Tensor) -> float:
        return self.start

    def draw(self, sampler: Chain, group: dict[str, Any]) -> None:
        temperature = as_number(sampler.hyper(group)["temperature"])
        params = [p for p in group["params"] if p.requires_grad]
        if not temperature or not params:
            return
        size = sum(p.numel() for p in params)
        square = sum(sharding.total(x.double().square()) for x in prior_mean.centred(group, params))
        drawn = precision_given(self, size, torch.as_tensor(square).double(), temperature, sampler.generator)
        group["prior_precision"] = drawn.item()

    def __repr__(self) -> str:
        return f"GammaHyperprior(shape={self.shape:g}, rate={self.rate:g}, start={self.start:g}, every={self.every})"


def precision_given(prior: Any, size: int, squares: Tensor, temperature: float, generator: Any) -> Tensor:
    """Draw λ ~ Gamma(shape + d/2, rate + ‖θ − μ‖²/(2T)) for each of several blocks of weights.

    Args:
        prior: its ``shape`` and ``rate`` are those of the Gamma law of λ.
        size: d, weights of a block.
        squares: ‖θ − μ‖² of each block.
    """
    device = squares.device if generator is None else generator.device
    shape = torch.full(squares.shape, prior.shape + size / 2, dtype=squares.dtype, device=device)
    unit = torch._standard_gamma(shape, generator=generator).to(squares.device)
    return unit / (prior.rate + squares / (2 * temperature))
