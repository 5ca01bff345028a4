"""`SteinKL`: the divergence of a sampler's law from the posterior, whose gradient `stein_score` estimates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.particles.kernels import squared_bandwidth, squared_distances
from meta_tasks.objectives.base import Objective

__all__ = ["SteinKL", "stein_score"]


def stein_score(samples: Tensor, ridge: float = 0.05) -> Tensor:
    """The score ∇ log q of a distribution q at samples of it, by the Stein gradient estimator.

    With the kernel k(x, y) = exp(−‖x − y‖²/2h) between the samples and K its matrix:

        Ŝ = −(K + ηI)⁻¹ B,    Bᵢ = Σⱼ ∇_{xⱼ} k(xⱼ, xᵢ),    h = median of ‖xᵢ − xⱼ‖² over the pairs / 2

    The ridge η shrinks the estimate, and K samples span at most K − 1 directions of it: it is an estimate for the
    gradient of a divergence, not a density.

    Args:
        samples: (..., K, d) with K ≥ 2; no gradient flows through them.
        ridge: η > 0.

    Returns:
        (..., K, d), of the samples' dtype; zero where all samples are the same.

    Raises:
        ValueError: fewer than two samples, or a ridge that is not positive.
    """
    if samples.dim() < 2 or samples.shape[-2] < 2:
        raise ValueError(f"samples must be (..., K, d) with K of at least 2, got {tuple(samples.shape)}")
    validation.positive("ridge", ridge)
    count, x = samples.shape[-2], samples.detach()
    distances = squared_distances(x)
    # That rule divides the median by 2·log K.
    width = (squared_bandwidth(distances, "off_diagonal_median") * math.log(count))[..., None, None]
    apart = width > 0
    values = torch.exp(-distances / (2 * torch.where(apart, width, 1.0)))
    # B = −(K − diag K1)·X/h, the sum over the neighbours' pulls.
    pull = torch.where(apart, (values - torch.diag_embed(values.sum(-1))) / width, 0.0)
    weights = torch.linalg.solve(values + ridge * torch.eye(count, dtype=values.dtype, device=values.device), pull)
    # The rows of K − diag K1 add up to zero, so the mean does not matter: without it single precision keeps its digits.
    return weights.to(x.dtype) @ (x - x.mean(-2, keepdim=True))


class SteinKL(Objective):
    """The KL divergence KL[q‖p] of a sampler's distribution q from the law p ∝ exp(−U) that it is asked for.

    Its gradient in the meta-parameters φ can be estimated, its value cannot:

        ∂KL/∂φ = E[(∇ log q(θ) + ∇U(θ))·∂θ/∂φ],    ∇ log q by `stein_score`

    *Cross-chain*: the samples of q are all chains' states at one time. *In-chain*: the states that one chain has
    collected so far, of which those of the current window carry the gradient. Both are divided by N, the number of
    training points. A minibatch's ∇Ũ stands for ∇U, of which it is an unbiased estimate. At a temperature T the energy
    that is meant, and given here, is that of the posterior over T.

    Source: Gong, Li and Hernández-Lobato, "Meta-Learning for Stochastic Gradient MCMC", ICLR 2019.

    Attributes:
        kept: states of earlier windows, (C, d) each.
    """

    name = "stein_kl"
    reads_states = True
    #: Smallest number of samples from which ∇ log q is estimated.
    least = 3
    #: η of `stein_score`.
    ridge = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self._terms: list[Tensor] = []
        self._window: list[tuple[Tensor, Tensor]] = []

    def cross_chain(self, parameter: Tensor, slope: Tensor, energy: Tensor, num_data: float, counts: Tensor) -> None:
        """Add the loss of all chains' states at one time.

        Args:
            parameter, slope: θ and ∇Ũ(θ), (C, d); gradients flow through θ alone.
            energy: Ũ(θ), (C,).
            num_data: N.
            counts: (C,) booleans: the chains that count.
        """
        mean = energy.detach() / num_data
        self.total, self.count = mean if self.total is None else self.total + mean, self.count + 1
        chosen, slope = parameter[counts], slope[counts]
        if len(chosen) >= self.least:
            self._terms.append(_kl_term(chosen, stein_score(chosen, self.ridge) + slope, num_data))

    def collect(self, parameter: Tensor, slope: Tensor) -> None:
        """Keep copies of the states (C, d), with ∇Ũ there, as samples of each chain."""
        # The next step of a chain that is not on the tape is taken in place.
        self._window.append((parameter.clone(), slope))

    def close_window(self, num_data: float, counts: Tensor) -> Tensor | None:
        """A scalar whose gradient is that of the mean cross-chain loss and the in-chain loss; None if none can be read.

        The states that were collected in the window are without gradient from now on.
        """
        parts = [torch.stack(self._terms).mean()] if self._terms else []
        samples = [*self.kept, *(state.detach() for state, _ in self._window)]
        if self._window and bool(counts.any()) and len(samples) >= self.least:
            new, slope = (torch.stack(states, 1)[counts] for states in zip(*self._window, strict=True))
            score = stein_score(torch.stack(samples, 1)[counts], self.ridge)[:, len(self.kept) :]
            parts.append(_kl_term(new, score + slope, num_data))
        self.kept, self._terms, self._window = samples, [], []
        return torch.stack(parts).sum() if parts else None

    def start_window(self) -> None:
        """Begin a new mean of the energy; what was collected before is kept, without gradient."""
        self.total, self.count = None, 0
        self.kept, self._window = [*self.kept, *(state.detach() for state, _ in self._window)], []

    def loss(self) -> Tensor:
        """The part of KL/N that is known: Ũ/N of each chain (C,), in nats, mean over the window."""
        return self._collected() / self.count

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        super().load_state_dict(state)
        self.kept = list(state["kept"])  # type: ignore[call-overload]


def _kl_term(parameter: Tensor, direction: Tensor, num_data: float) -> Tensor:
    """A scalar with the gradient ``direction``/N in the mean of θ (..., d)."""
    return (direction.detach() * parameter).sum(-1).mean() / num_data
