"""`Shaping`: transforms the loss differences of antithetic pairs before they weight the perturbations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from learned_samplers.base import validation

__all__ = ["Shaping"]


@dataclass(frozen=True)
class Shaping:
    """Transforms the loss differences L₊ − L₋ of the pairs before they weight the perturbations.

    Args:
        kind: "none"; "mean" divides each difference by the pair's mean loss, so that hard tasks do not drown easy
            ones; "clip" cuts it to [−limit, limit]; "sign" keeps its sign; "rank" takes the difference of the centred
            ranks, in [−½, ½], that the losses have among all of this step. Only "none" leaves the estimator unbiased.
        limit: bound on the size of the shaped difference; needed for "clip", allowed for "none" and "mean".

    Raises:
        ValueError: an unknown kind, or a limit that is not positive, missing, or without effect.
    """

    kind: str = "mean"
    limit: float | None = None

    def __post_init__(self) -> None:
        validation.one_of("shaping", self.kind, ("none", "mean", "clip", "sign", "rank"))
        if self.limit is not None:
            validation.positive("limit of the shaping", self.limit)
        if (self.kind == "clip") != (self.limit is not None) and self.kind not in ("none", "mean"):
            raise ValueError(f"limit={self.limit} does not go with shaping {self.kind!r}")

    def __call__(self, losses: Tensor) -> Tensor:
        """Shaped differences (pairs,) of finite losses (pairs, 2)."""
        difference = losses[:, 0] - losses[:, 1]
        if self.kind == "mean":
            difference = difference / losses.mean(1).clamp_min(1e-8)
        elif self.kind == "sign":
            difference = difference.sign()
        elif self.kind == "rank":
            difference = _centred_ranks(losses)
        return difference if self.limit is None else difference.clamp(-self.limit, self.limit)


def _centred_ranks(losses: Tensor) -> Tensor:
    flat = losses.flatten()
    # Equal losses share the mean of their ranks, so that an ineffective perturbation counts nothing.
    below = (flat[:, None] > flat[None, :]).to(flat).sum(1)
    below += 0.5 * ((flat[:, None] == flat[None, :]).to(flat).sum(1) - 1)
    ranks = (below / max(len(flat) - 1, 1) - 0.5).view_as(losses)
    return ranks[:, 0] - ranks[:, 1]
