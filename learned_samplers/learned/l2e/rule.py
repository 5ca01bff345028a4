"""The L2E update rules: pure functions of flat buffers, with any leading batch axes.

A model's tensors lie end to end in one axis of length d (`Segments` says where each begins). The optimizer `L2E`, the
meta-trainer (a leading axis of P perturbed networks) and the tests all call these functions.

Source: Kim, Jung, Kim and Lee, "Learning to Explore for Stochastic Gradient MCMC", ICML 2024 (Eq. 6, Appendix I).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from learned_samplers.base.operations import FUNCTIONAL, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.classical.sghmc import sghmc_rule
from learned_samplers.learned.features import FeatureSet, TensorScales, feature_set_named, update_averages
from learned_samplers.learned.network import NetworkOnChain, Phi


def velocity_scale(beta_scale: Any, num_data: Any, reference_data: Any) -> Any:
    """s_β, or s_β·√(N/N₀) where there is a reference N₀."""
    return beta_scale if reference_data is None else beta_scale * scalar_sqrt(num_data / reference_data)


def decayed(phi: Phi, step: Any, decay_time: Any, num_data: Any, reference_data: Any) -> Phi:
    """The network with 1/√(1 + t/τ) times the outputs, τ = ``decay_time``, or τ = ``decay_time``·N₀/N where there is a
    reference N₀; as it is where ``decay_time`` is None."""
    if decay_time is None:
        return phi
    if reference_data is not None:
        decay_time = decay_time * reference_data / num_data
    passed = step.double() if isinstance(step, Tensor) else step
    factor = 1 / scalar_sqrt(1 + passed / decay_time)
    *hidden, (weight, bias) = phi
    return [*hidden, (weight * factor, bias * factor)]


def l2e_residual_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    step: Any = 0,
    alpha_scale: Any = 0.1,
    beta_scale: Any = 1.0,
    friction_scale: Any = 1.0,
    reference_data: Any = None,
    decay_time: Any = None,
    output_bound: float | None = None,
    feature_set: str | FeatureSet = "paper",
) -> tuple[Tensor, Tensor, Tensor]:
    """SGHMC plus learned terms; with a last layer of zeros it is `sghmc_rule`, bit for bit.

    With ε = √(lr/N), momentum decay a and (α, β) = network(features(θ, r)):

        m ← running averages of g
        r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ − s_α·α(θ, r) − a·s_β·β(θ, r)
        θ ← θ + ε·(r + s_β·β(θ, r_new))

    that is, Eq. 6 of the paper with ∂g/∂r = r + s_β·β and ∂g/∂θ = (s_α/ε)·α.

    Args:
        parameter, gradient, noise, momentum: (..., d); gradient of the *mean* minibatch loss, noise standard normal or
            None at temperature 0.
        averages: (..., `FeatureSet.num_averages`, d), zeros at the start.
        phi: the network's layers, with the leading axes of ``parameter`` or none.
        segments: where the tensors lie in the flat axis.
        step: updates done so far (0 at the first), a number or a zero-dimensional tensor.
        alpha_scale, beta_scale: s_α and s_β, in units of the momentum, whose equilibrium scale is √T.
        friction_scale: a further factor on β in the friction alone; with 0 the friction acts on r only (the same rule
            with another α, easier to learn: at 1 a lasting β is cancelled by the momentum that it builds up).
        reference_data: N₀; s_β is then multiplied by √(N/N₀), so that the learned velocity moves θ by √(lr/N₀)·s_β·β
            whatever N is, as an adaptive optimizer's step does. None leaves s_β as it is.
        decay_time: τ in steps; (α, β) are then divided by √(1 + t/τ), t the updates done before, so that the rule tends
            to `sghmc_rule` and its law to that of SGHMC. With ``reference_data`` it holds at N = N₀, and is τ·N₀/N at
            another N: the fewer the data, the longer it is the noise that keeps a chain from memorising them. None: no
            decay.
        output_bound, feature_set: of the network, see `apply_network` and `features`.

    Returns:
        The new (parameter, momentum, averages). Nothing is changed in place; differentiable in every tensor.
    """
    named = feature_set_named(feature_set)
    beta_scale = velocity_scale(beta_scale, num_data, reference_data)
    phi = decayed(phi, step, decay_time, num_data, reference_data)
    averages = update_averages(averages, gradient, named)
    scales = TensorScales(parameter, gradient, averages, segments, named, lr=lr, num_data=num_data, step=step)
    network = NetworkOnChain(phi, scales, output_bound)
    alpha, beta = network(momentum)
    _, momentum = sghmc_rule(
        parameter, gradient, noise, momentum, lr=lr, num_data=num_data, temperature=temperature,
        prior_precision=prior_precision, momentum_decay=momentum_decay,
    )  # fmt: skip
    momentum = FUNCTIONAL.add(momentum, alpha, -alpha_scale)
    momentum = FUNCTIONAL.add(momentum, beta, -momentum_decay * beta_scale * friction_scale)
    (beta,) = network(momentum, heads=(1,))
    velocity = FUNCTIONAL.add(momentum, beta, beta_scale)
    return FUNCTIONAL.add(parameter, velocity, scalar_sqrt(lr / num_data)), momentum, averages


def l2e_paper_rule(
    parameter: Tensor,
    gradient: Tensor,
    noise: Tensor | None,
    momentum: Tensor,
    averages: Tensor,
    *,
    phi: Phi,
    segments: Segments,
    lr: Any,
    num_data: Any,
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    step: Any = 0,
    alpha_scale: Any = 1e-3,
    beta_scale: Any = 1e-3,
    friction_scale: Any = 1.0,
    output_bound: float | None = None,
    feature_set: str | FeatureSet = "paper",
    noise_multiplier: Any = 1.0,
    friction: str = "equation6",
) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's Eq. 6, with ε = √(lr/N), (α, β) = 10⁻³ · network(features(θ, r)) and ν = ``noise_multiplier``:

        m ← running averages of g
        r ← r − ε·[N·g + λθ + α(θ, r) + C·β(θ, r)] + √(2aνT)·ξ
        θ ← θ + ε·β(θ, r_new)

    The friction is C = a/ε with ``friction="equation6"`` (so that the noise has variance 2Cε·T = 2aT, as Eq. 6 has it),
    or C = a with ``friction="algorithm2"`` (Algorithm 2 of the paper, noise of variance 2a). The published code is
    ``friction="algorithm2", noise_multiplier=1e-3`` at ``num_data=50_000``, T = 1, momentum starting at zero.

    Arguments and returns are those of `l2e_residual_rule`; ``alpha_scale`` and ``beta_scale`` multiply the network's
    outputs, 10⁻³ in the published code.
    """
    named = feature_set_named(feature_set)
    averages = update_averages(averages, gradient, named)
    scales = TensorScales(parameter, gradient, averages, segments, named, lr=lr, num_data=num_data, step=step)
    network = NetworkOnChain(phi, scales, output_bound)
    alpha, beta = network(momentum)
    step_size = scalar_sqrt(lr / num_data)
    momentum = FUNCTIONAL.add(momentum, gradient, -step_size * num_data)
    momentum = FUNCTIONAL.add(momentum, parameter, -step_size * prior_precision)
    momentum = FUNCTIONAL.add(momentum, alpha, -step_size * alpha_scale)
    damping = momentum_decay if friction == "equation6" else step_size * momentum_decay
    momentum = FUNCTIONAL.add(momentum, beta, -damping * beta_scale * friction_scale)
    if noise is not None:
        momentum = FUNCTIONAL.add(momentum, noise, scalar_sqrt(2 * momentum_decay * noise_multiplier * temperature))
    (beta,) = network(momentum, heads=(1,))
    return FUNCTIONAL.add(parameter, beta, step_size * beta_scale), momentum, averages
