"""L2E in the paper's form as 15 numbers: β linear in the nine features, and its gain in five root mean squares."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.operations import IN_PLACE, kick, scalar_sqrt
from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS
from learned_samplers.learned.features import FLOOR, LOG_SCALE, SMALL, TINY
from meta_tasks.rules.base import MemberStep, SamplerRule, State

START = 5.0  # β = START·r̂ at the start.
LARGEST_GAIN = 3.0  # bound on the logarithm of the gain
COHERENCES = (0.9, 0.99)
_SHARES = 1 - torch.tensor(AVERAGE_DECAYS)[:, None]

Prepared = tuple[Tensor, Tensor]


class LeanRule(SamplerRule):
    """Eq. 6 of the L2E paper with α = 0 and, x̂ the nine features of its feature set "paper",

        β = START·(r̂ + w·x̂)·exp(c·y + c₀),

    where y are of a tensor: ¼ of the logarithms of ‖ε·N·g‖, ‖θ‖, ‖r‖ (root mean squares) and of the gradient's
    coherence at d = 0.9 and 0.99, as the set "adaptive" has them. The meta-parameters are (w, c, c₀), zero at the
    start, where β is the gradient of a kinetic energy and the sampler has a law.
    """

    name = "LeanL2E"
    #: g, θ, r and the averages of g, in one tensor (P, 9, d).
    state_names = ("rows",)
    names = (
        *FEATURE_SETS["paper"].names,
        *(f"gain {name}" for name in ("kick", "parameter", "momentum", *(f"coherence {d}" for d in COHERENCES))),
        "gain",
    )
    num_weights = len(names)
    by_member = True

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "start": START, "names": list(self.names)}

    def prepare(self, weights: Tensor) -> Prepared:
        """Weights of the features (P, 9), and of the gain (P, 6, 1)."""
        begun = torch.zeros(9)
        begun[2] = 1.0
        return START * (begun + weights[:, :9]), weights[:, 9:, None]

    def initial_state(self, parameter: Tensor, segments: Segments) -> State:
        return (parameter.new_zeros(len(parameter), 9, segments.total),)

    def update(self, prepared: Prepared, at: MemberStep) -> tuple[Tensor, State]:
        """Take one step, see `SamplerRule.update`; β at the new momentum differs in what hangs on r alone."""
        (rows,), theta, hyper, segments = at.state, at.parameter, at.hyper, at.segments
        a, momentum, step_size = hyper.momentum_decay, rows[:, 2], scalar_sqrt(hyper.lr / hyper.num_data)
        rows[:, 0], rows[:, 1] = at.gradient, theta
        rows[:, 3:].lerp_(at.gradient.unsqueeze(1), _SHARES)
        squares = segments.mean_square(rows)
        factors = torch.rsqrt(squares + FLOOR) * prepared[0].unsqueeze(-1)
        factors[:, 2] = 0.0
        fixed = torch.cat(
            [
                torch.bmm(factors[:, None, :, i], rows[..., start:stop]).squeeze(1)
                for i, (start, stop) in enumerate(pairwise(segments.edges))
            ],
            1,
        )
        of_others = self._exponent(prepared[1], squares, at)

        def beta(square: Tensor) -> Tensor:
            log_momentum = (square + SMALL).log_().mul_(0.5 * LOG_SCALE)
            exponent = torch.addcmul(of_others, prepared[1][:, 2], log_momentum)
            gain = exponent.clamp_(-LARGEST_GAIN, LARGEST_GAIN).exp_()
            of_momentum = prepared[0][:, 2:3] * torch.rsqrt(square + FLOOR) * gain
            return (segments.expand(gain) * fixed).addcmul_(segments.expand(of_momentum), momentum)

        friction = a * beta(squares[:, 2])
        force: dict[str, Any] = dict(num_data=hyper.num_data, prior_precision=hyper.prior_precision)
        kick(momentum, theta, at.gradient, step_size=step_size, **force, ops=IN_PLACE)
        if at.noise is not None:
            IN_PLACE.add(momentum, at.noise, scalar_sqrt(2 * a * hyper.temperature))
        momentum.sub_(friction)
        return IN_PLACE.add(theta, beta(segments.mean_square(momentum)), step_size), (rows,)

    @staticmethod
    def _exponent(weights: Tensor, squares: Tensor, at: MemberStep) -> Tensor:
        """c·y + c₀ of every tensor without the momentum's part, (P, S)."""
        gradient, parameter = squares[:, 0], squares[:, 1]
        y = [gradient * (at.hyper.lr * at.hyper.num_data) + SMALL, parameter + SMALL]
        for d in COHERENCES:
            average = squares[:, 3 + AVERAGE_DECAYS.index(d)] / (1 - d ** (at.step + 1)) ** 2
            y.append((average + TINY) / (gradient + TINY))
        logs = torch.stack(y, 1).log_().mul_(0.5 * LOG_SCALE)
        return (weights[:, [0, 1, 3, 4]] * logs).sum(1).add_(weights[:, 5])
