"""Parts of `FSVGD` beside the networks: measurement sets, function-space priors, likelihoods of all particles."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from learned_samplers.base import validation

#: (inputs (n, ...), inputs (m, ...)) → covariance (n, m).
Covariance = Callable[[Tensor, Tensor], Tensor]
#: (inputs (n, ...), count) → outputs of so many functions drawn from the prior, (count, n) or (count, n, C).
Draws = Callable[[Tensor, int], Tensor]


def measurement_set(
    batch: Tensor, inputs: Tensor, count: int, *, scale: float, generator: torch.Generator | None = None
) -> Tensor:
    """Inputs to compare functions at: the minibatch (B, ...) and ``count`` draws of ν, its rows plus scale·N(0, I).

    Raises:
        ValueError, TypeError: ``count`` is negative or no integer, ``scale`` is negative.
    """
    validation.tensor("batch", batch)
    validation.tensor("inputs", inputs)
    validation.integer("count", count, least=0)
    validation.non_negative("scale", scale)
    validation.generator("generator", generator)
    device = inputs.device if generator is None else generator.device
    chosen = torch.randint(len(inputs), (count,), generator=generator, device=device).to(inputs.device)
    noise = torch.randn(count, *inputs.shape[1:], generator=generator, dtype=inputs.dtype, device=device)
    return torch.cat([batch, inputs[chosen] + scale * noise.to(inputs.device)])


def squared_exponential(length_scale: float = 1.0, standard_deviation: float = 1.0) -> Covariance:
    """k(x, x′) = s²·exp(−‖x − x′‖²/2ℓ²), in the units of the inputs and the outputs."""
    validation.positive("length_scale", length_scale)
    validation.positive("standard_deviation", standard_deviation)

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        x, y = _wide(x.flatten(1)), _wide(y.flatten(1))
        distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        return standard_deviation**2 * torch.exp(-distances.square() / (2 * length_scale**2))

    return covariance


class GaussianProcessPrior:
    """A prior on functions: independent Gaussian processes of mean zero, one an output.

    Args:
        covariance: such as `squared_exponential`.
        jitter: variance that is added to every input's; without it close inputs make the covariance singular.
    """

    def __init__(self, covariance: Covariance, *, jitter: float = 1e-4):
        validation.function("covariance", covariance, "squared_exponential()")
        validation.positive("jitter", jitter)
        self.covariance, self.jitter = covariance, jitter

    def log_density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """log p(f(x)) of every particle, (M,), for inputs (n, ...) and outputs (M, n) or (M, n, C).

        In float32 at least, within ``torch.autocast`` too.

        Raises:
            ValueError: the shapes do not fit, or the covariance with its jitter is not positive definite.
        """
        values = _channels(inputs, outputs)
        # Rounded to 8 bits, 1 + jitter is 1.
        with torch.autocast(outputs.device.type, enabled=False):
            matrix = self.covariance(inputs, inputs).to(values.dtype)
            matrix = matrix + self.jitter * torch.eye(len(inputs), dtype=values.dtype, device=values.device)
            return _gaussian_log_density(values, _cholesky(matrix, "the covariance; try a larger jitter"))


class FittedPrior:
    """The normal distribution fitted to the outputs of fresh prior draws at a few inputs, as in f-SVGD's code.

    Args:
        draws: gives functions of the prior, such as `network_draws`.
        num_draws: functions a fit.
        num_inputs: inputs a fit, chosen at random from the measurement set at every call.
        floor: least eigenvalue of the fitted covariance, in squared units of the outputs.
        generator: for the choice of inputs.

    Raises:
        ValueError, TypeError: a number is out of range.
    """

    def __init__(
        self,
        draws: Draws,
        *,
        num_draws: int = 40,
        num_inputs: int = 4,
        floor: float = 1e-3,
        generator: torch.Generator | None = None,
    ):
        validation.function("draws", draws, "network_draws(network, 1.0)")
        validation.generator("generator", generator)
        validation.integer("num_draws", num_draws, least=2)
        validation.integer("num_inputs", num_inputs)
        validation.positive("floor", floor)
        self.draws, self.num_draws, self.num_inputs, self.floor = draws, num_draws, num_inputs, floor
        self.generator = generator

    def log_density(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """log p(f(x)) at the chosen inputs, (M,), for inputs (n, ...) and outputs (M, n) or (M, n, C).

        In float32 at least, within ``torch.autocast`` too, the draws included.
        """
        values = _channels(inputs, outputs)
        device = inputs.device if self.generator is None else self.generator.device
        chosen = torch.randperm(len(inputs), generator=self.generator, device=device)[: self.num_inputs]
        chosen = chosen.to(inputs.device)
        with torch.autocast(outputs.device.type, enabled=False):
            mean, factor = self._fit(inputs[chosen], values.dtype)
            return _gaussian_log_density(values[:, chosen] - mean, factor)

    @torch.no_grad()
    def _fit(self, inputs: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean (n, C) and Cholesky factors (C, n, n) of the normal distribution fitted to fresh draws."""
        drawn = self.draws(inputs, self.num_draws)
        drawn = (drawn[..., None] if drawn.dim() == 2 else drawn).to(dtype).permute(2, 0, 1)
        mean = drawn.mean(1, keepdim=True)
        covariance = (drawn - mean).mT @ (drawn - mean) / (self.num_draws - 1)
        eigenvalues, vectors = torch.linalg.eigh(covariance)
        floored = (vectors * eigenvalues.clamp_min(self.floor)[..., None, :]) @ vectors.mT
        return mean[:, 0].mT, _cholesky(floored, "the fitted covariance; try a larger floor")


def network_draws(network: nn.Module, standard_deviation: float, *, generator: torch.Generator | None = None) -> Draws:
    """Functions of a network whose parameters are all N(0, standard_deviation²); its own parameters are not used.

    Raises:
        ValueError, TypeError: ``network`` is no module, or ``standard_deviation`` is not a positive number.
    """
    validation.module("network", network)
    validation.positive("standard_deviation", standard_deviation)
    validation.generator("generator", generator)

    def draws(inputs: Tensor, count: int) -> Tensor:
        parameters = {
            name: standard_deviation
            * torch.randn(
                count, *p.shape, generator=generator, dtype=p.dtype, device=generator.device if generator else p.device
            ).to(p.device)
            for name, p in network.named_parameters()
        }
        if inputs.is_floating_point():  # what was computed under autocast may be in half precision
            inputs = inputs.to(next(iter(parameters.values())).dtype)
        return torch.vmap(lambda p: torch.func.functional_call(network, p, (inputs,)))(parameters)

    return draws


def regression_loss(outputs: Tensor, targets: Tensor, log_noise: Tensor) -> Tensor:
    """Mean of −log N(y; f, σ²) over the minibatch, (M,): outputs (M, B), targets (B,), log_noise = log σ (M,)."""
    for name, value in (("outputs", outputs), ("targets", targets), ("log_noise", log_noise)):
        validation.tensor(name, value)
    if outputs.dim() != 2 or outputs.shape[1:] != targets.shape or log_noise.shape != outputs.shape[:1]:
        raise ValueError(
            "regression_loss needs outputs (M, B), targets (B,) and log_noise (M,), got "
            f"{tuple(outputs.shape)}, {tuple(targets.shape)} and {tuple(log_noise.shape)}"
        )
    scaled = (outputs - targets) / log_noise.exp()[:, None]
    return scaled.square().mean(1) / 2 + log_noise + math.log(2 * math.pi) / 2


def classification_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the minibatch, (M,): outputs are logits (M, B, C), labels (B,) integers."""
    validation.tensor("outputs", outputs)
    validation.tensor("labels", labels)
    if outputs.dim() != 3 or outputs.shape[1:2] != labels.shape:
        raise ValueError(
            f"classification_loss needs logits (M, B, C) and labels (B,), got {tuple(outputs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got dtype {labels.dtype}")
    repeated = labels.long().repeat(len(outputs))
    try:
        losses = nn.functional.cross_entropy(outputs.flatten(0, 1), repeated, reduction="none")
    except IndexError as error:
        raise ValueError(f"labels must be classes from 0 to {outputs.shape[2] - 1}: {error}") from error
    return losses.view(outputs.shape[:2]).mean(1)


def _channels(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Outputs as (M, n, C), in float32 at least."""
    validation.tensor("inputs", inputs)
    validation.tensor("outputs", outputs)
    if outputs.dim() not in (2, 3) or outputs.shape[1] != len(inputs):
        raise ValueError(
            f"outputs must have shape (M, n) or (M, n, C) for inputs (n, ...), got {tuple(outputs.shape)} for "
            f"{tuple(inputs.shape)}"
        )
    return _wide(outputs[..., None] if outputs.dim() == 2 else outputs)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _cholesky(matrix: Tensor, what: str) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if (info != 0).any() or not factor.isfinite().all():
        raise ValueError(f"not positive definite: {what}")
    return factor


def _gaussian_log_density(values: Tensor, factor: Tensor) -> Tensor:
    """Sum over channels of log N(values; 0, LLᵀ): values (M, n, C), L (n, n) for all channels or (C, n, n)."""
    normal = MultivariateNormal(values.new_zeros(values.shape[1]), scale_tril=factor, validate_args=False)
    return normal.log_prob(values.mT).sum(-1)
