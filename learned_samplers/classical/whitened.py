"""SGHMC that also moves along a chosen direction: the momentum of each matrix, whitened and made orthogonal."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.matrices import (
    directions,
    renew_roots,
    renew_roots_,
    state_shape,
    update_covariances_,
    warn_if_slow,
)
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.prior_mean import PriorMean
from learned_samplers.base.sampler import Sampler, arguments
from learned_samplers.base.segments import matrix_sides
from learned_samplers.base.step import GroupInputs, blocks
from learned_samplers.classical.sghmc import sghmc_rule

#: d of the running average m ← d·m + (1−d)·g that the direction is made of.
DECAY = 0.9
#: N₀: the direction moves a weight by s·√(lr/N₀), however many data there are.
REFERENCE_DATA = 50_000


def whitened_sghmc_rule(
    parameter: Any,
    gradient: Any,
    noise: Any,
    momentum: Any,
    average: Any,
    whitening: Any,
    *,
    lr: Any,
    num_data: Any,
    prior_precision: Any,
    direction_scale: Any,
    step: Any,
    ops: Operations = FUNCTIONAL,
    **settings: Any,
) -> tuple[Any, Any, Any, Any]:
    """One step of `WhitenedSGHMC` as a pure function.

    m ← d·m + (1−d)·g;  D = `directions` of d·m + (1−d)·g;  `sghmc_rule`;  θ ← θ − s·√(lr/N₀)·D.

    A tensor of shape (n, ...) is one matrix of n rows: there are no batch axes. ``step`` is the number of updates done,
    ``settings`` are the temperature and momentum decay.
    """
    average = ops.add(ops.scale(average, DECAY), gradient, 1 - DECAY)
    ahead = ops.combine(ops.affine(average, DECAY, 0.0), gradient, 1 - DECAY)
    whitening = ops.map(torch.clone, whitening) if ops is FUNCTIONAL else whitening
    direction = _directions(ahead, gradient, parameter, whitening, prior_precision / num_data)
    if ops is FUNCTIONAL:
        renew_roots_([whitening], step)
    settings |= {"lr": lr, "num_data": num_data, "prior_precision": prior_precision, "ops": ops}
    parameter, momentum = sghmc_rule(parameter, gradient, noise, momentum, **settings)
    parameter = ops.add(parameter, direction, -direction_scale * scalar_sqrt(lr / REFERENCE_DATA))
    return parameter, momentum, average, whitening


def _directions(ahead: Any, gradient: Any, parameter: Any, whitening: Any, decay: Any) -> Any:
    """The direction of a tensor, or of each of a list; their covariances are updated in place."""
    if isinstance(parameter, Tensor):
        return _directions([ahead], [gradient], [parameter], [whitening], decay)[0]
    with torch.no_grad():
        m, g, theta = ([x.reshape(matrix_sides(x.shape)) for x in each] for each in (ahead, gradient, parameter))
        update_covariances_(whitening, g)
        return [d.reshape(p.shape) for d, p in zip(directions(m, whitening, theta, decay), parameter, strict=True)]


class WhitenedSGHMC(Sampler):
    """SGHMC and, beside it, a step of fixed length along each matrix's whitened, orthogonal momentum: it fits fast.

    With ε = √(lr/N), momentum decay a, ξ ~ N(0, I), d = 0.9, and each tensor as a matrix with its first axis for rows

        m ← d·m + (1−d)·g;   R ← 0.95·R + 0.05·GᵀG,  G = g as a matrix            (root of R: every ten steps, in turns)
        M = d·m + (1−d)·g                                                                        a step ahead
        D = orth(M·(R + 10⁻⁴·‖R‖)^(−1/2)) · ‖M‖/√(‖M‖² + ‖λθ/N‖²)
        r ← (1−a)·r − ε·(N·g + λθ) + √(2aT)·ξ
        θ ← θ + ε·r − s·√(lr/N₀)·D,    N₀ = 50,000

    orth(X) is the orthogonal factor U·Vᵀ of X = U·S·Vᵀ (nearly: five Newton–Schulz steps) with root mean square 1; a
    bias or a vector is only divided by its own. So D has length 1 a weight, whatever the gradients are, and the last
    factor, the attenuation, shortens it where they fall below the prior's pull: there a chain would only memorise. It
    is 1 without a prior. R is of the inputs of a layer, in equal blocks of at most 288. It is left out until a block
    has its first root, and for a matrix of very many inputs beside its outputs
    (`learned_samplers.base.matrices.state_shape`). orth is of equal blocks of at most 128 rows, or columns if these are
    fewer.

    Sources: the orthogonal factor is that of Muon (Jordan et al., 2024), the whitening Shampoo's on one side (Gupta,
    Koren and Singer, 2018); to add both to SGHMC, and the attenuation, are ours. A person chose all of it: nothing here
    is learned.

    Invariant law: none. The direction is as long at the mode as far from it, so that weights which the data hardly
    determine keep a spread of its step. `check_sampler` on Gaussians of 44 × 46 weights, N = 50,000, lr = 0.0005: the
    variance is 1.7 times the target's at lr·k/N = 0.05 and 7.8 times at 0.2; at a quarter of that lr 0.4 and 1.7.
    Average what it visits; for samples with a law use it as the warm-up of `AdaptedSGHMC`.

    Args:
        params, num_data, temperature, prior_precision, prior_mean, momentum_init, generator, options: as for `SGHMC`.
        lr: the default is for networks that fit some thousand training examples in some hundred steps; 0.001 is better
            with ten thousand and more. One step of the direction moves a weight by about s·√(lr/N₀), 0.001 by default.
        momentum_decay: a in (0, 1], of r.
        direction_scale: s, at 0 this is `SGHMC`.
        foreach: as every sampler takes it; here tensors are always updated together.

    Beside the momentum it keeps m, and of each block of R two matrices: 1.6 numbers a weight for a ResNet-18. Where
    that is slow on a CPU it warns.

    Raises:
        ValueError, TypeError: an argument is out of range or of a wrong type; see `Sampler.step` for those of a step.
    """

    badge = "heuristic"
    not_sharded = "its direction is of whole matrices"
    not_differentiable = "the root of a covariance is not differentiated through"
    state_names = ("momentum", "average", "whitening")
    hyperparameters = (*Sampler.hyperparameters, "momentum_decay", "direction_scale", "step")
    rule = staticmethod(whitened_sghmc_rule)
    needs_master_in_float16 = True

    def __init__(
        self,
        params: Any,
        lr: float = 0.0005,
        num_data: float | None = None,
        *,
        momentum_decay: float = 0.1,
        direction_scale: float = 10.0,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        prior_mean: PriorMean = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)
        every = [p for group in self.param_groups for p in group["params"]]
        warn_if_slow(every, "WhitenedSGHMC moves along", "SGHMC is without it", stacklevel=3)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        validation.momentum(group)
        validation.non_negative("direction_scale", group["direction_scale"])

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return state_shape(p.shape) if name == "whitening" else tuple(p.shape)

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        return p.new_zeros(self.state_shape(name, p)) if name == "whitening" else super().initial_state(group, p, name)

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        hyper = self.hyper(group)
        some = [(p, g) for p, g in zip(inputs.params, inputs.gradients, strict=True) if p.numel()]
        params, gradients = [p for p, _ in some], [g for _, g in some]
        state = [[self.state_of(group, p, name) for p in inputs.params] for name in self.state_names]
        state = [[x for x, p in zip(each, inputs.params, strict=True) if p.numel()] for each in state]
        for block in blocks(params):
            noise = self.noise_for(params[block], hyper)
            self.rule(params[block], gradients[block], noise, *(x[block] for x in state), **hyper, ops=FOREACH)
        renew_roots(self, group)
