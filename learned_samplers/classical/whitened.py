"""SGHMC that also moves along a chosen direction: the momentum of each matrix, whitened and made orthogonal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learned_samplers.base import validation
from learned_samplers.base.matrices import (
    directions,
    renew_roots,
    renew_roots_,
    state_shape,
    update_covariances_,
)
from learned_samplers.base.matrix_cost import warn_if_slow
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.operations import FOREACH, FUNCTIONAL, Operations, scalar_sqrt
from learned_samplers.base.segments import matrix_sides
from learned_samplers.base.settings import choice, data_count, learning_rate, setting
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
    temperature: Any,
    prior_precision: Any,
    momentum_decay: Any,
    direction_scale: Any,
    step: Any,
    ops: Operations = FUNCTIONAL,
) -> tuple[Any, Any, Any, Any]:
    """Update of `WhitenedSGHMC` as a pure function.

    m ← d·m + (1−d)·g;  D = `directions` of d·m + (1−d)·g;  `sghmc_rule`;  θ ← θ − s·√(lr/N₀)·D.

    A tensor of shape (n, ...) is one matrix of n rows: there are no batch axes. ``step`` is the number of updates done.
    """
    average = ops.add(ops.scale(average, DECAY), gradient, 1 - DECAY)
    ahead = ops.combine(ops.affine(average, DECAY, 0.0), gradient, 1 - DECAY)
    whitening = ops.map(torch.clone, whitening) if ops is FUNCTIONAL else whitening
    direction = _directions(ahead, gradient, parameter, whitening, prior_precision / num_data)
    if ops is FUNCTIONAL:
        renew_roots_([whitening], step)
    parameter, momentum = sghmc_rule(
        parameter,
        gradient,
        noise,
        momentum,
        lr=lr,
        num_data=num_data,
        temperature=temperature,
        prior_precision=prior_precision,
        momentum_decay=momentum_decay,
        ops=ops,
    )
    parameter = ops.add(parameter, direction, -direction_scale * scalar_sqrt(lr / REFERENCE_DATA))
    return parameter, momentum, average, whitening


def _directions(ahead: Any, gradient: Any, parameter: Any, whitening: Any, decay: Any) -> Any:
    """The direction of a tensor, or of each of a list; their covariances are updated in place."""
    if isinstance(parameter, Tensor):
        return _directions([ahead], [gradient], [parameter], [whitening], decay)[0]
    with torch.no_grad():
        m, g, theta = ([x.reshape(matrix_sides(x.shape)) for x in tensors] for tensors in (ahead, gradient, parameter))
        update_covariances_(whitening, g)
        return [d.reshape(p.shape) for d, p in zip(directions(m, whitening, theta, decay), parameter, strict=True)]


class WhitenedSGHMC(MomentumSampler):
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

    Beside the momentum it keeps m, and of each block of R two matrices: 1.6 numbers a weight for a ResNet-18. Where
    that is slow on a CPU it warns.
    """

    lr: float = learning_rate(
        default=0.0005,
        kw_only=False,
        doc="the default is for networks that fit some thousand training examples in some hundred steps; 0.001 is "
        "better with ten thousand and more. One step of the direction moves a weight by about s·√(lr/N₀), 0.001 by "
        "default.",
    )
    num_data: float = data_count(default=None, kw_only=False, doc="N, the number of training points; it must be given.")
    direction_scale: float = setting(default=10.0, check=validation.non_negative, doc="s; at 0 this is `SGHMC`.")
    foreach: bool | None = choice(
        None, True, False, default=None, doc="as every sampler takes it; here tensors are always updated together."
    )

    badge = "heuristic"
    not_sharded = "its direction is of whole matrices"
    not_differentiable = "the root of a covariance is not differentiated through"
    state_names = ("momentum", "average", "whitening")
    rule = staticmethod(whitened_sghmc_rule)
    needs_master_in_float16 = True

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        parameters = [p for group in self.param_groups for p in group["params"]]
        warn_if_slow(parameters, "WhitenedSGHMC moves along", "SGHMC is without it")

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return state_shape(p.shape) if name == "whitening" else tuple(p.shape)

    def is_possible_state(self, group: dict[str, Any], name: str, state: Tensor) -> bool:
        # Covariances and their roots have no negative diagonal; where there are none the state is empty.
        return name != "whitening" or state.dim() < 2 or not bool((state.diagonal(dim1=-2, dim2=-1) < 0).any())

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        return p.new_zeros(self.state_shape(name, p)) if name == "whitening" else super().initial_state(group, p, name)

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        hyper = self.hyper(group)
        pairs = [(p, g) for p, g in zip(inputs.params, inputs.gradients, strict=True) if p.numel()]
        params, gradients = [p for p, _ in pairs], [g for _, g in pairs]
        state = [[self.state_of(group, p, name) for p in inputs.params] for name in self.state_names]
        state = [[x for x, p in zip(tensors, inputs.params, strict=True) if p.numel()] for tensors in state]
        for block in blocks(params):
            noise = self.noise_for(params[block], hyper)
            self.rule(params[block], gradients[block], noise, *(x[block] for x in state), **hyper, ops=FOREACH)
        renew_roots(self, group)
