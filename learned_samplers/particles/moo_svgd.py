"""Multi-objective Stein variational gradient descent."""

from __future__ import annotations

from torch import Tensor

from learned_samplers.base.settings import choice
from learned_samplers.particles.base import Role
from learned_samplers.particles.directions import repulsion, svgd_direction, weighted
from learned_samplers.particles.kernels import KernelMatrix
from learned_samplers.particles.svgd import SteinSampler
from learned_samplers.particles.target_weights import mgda_weights


class MOOSVGD(SteinSampler):
    """Spreads M networks over the trade-offs between several tasks (the Pareto front).

    Multi-objective SVGD (Liu, Tong and Liu, NeurIPS 2021): MGDA at each particle, a kernel between them.

    Update, with gₖ = ∇Ũₖ = N·∇lossₖ + λθ, w(θⱼ) the weights of `MGDA` at particle j, and a kernel on the vectors of
    losses L(θ):

        φ(θᵢ) = (1/M) Σⱼ [−k(Lⱼ, Lᵢ) Σₖ wₖ(θⱼ) gₖ(θⱼ)] + (T/M) (∂Lᵢ/∂θᵢ)ᵀ Σⱼ ∇_{Lⱼ} k(Lⱼ, Lᵢ)
        θᵢ ← θᵢ + (lr/N)·φ(θᵢ)

    so that particles spread over the Pareto front. The repulsion is a combination of the gradients at hand and costs no
    further pass. Heads take their own ∇Ũₖ in the place of the weighted sum, with the same kernel.

    A particle follows the gradients of all particles with like losses, which for networks with initial weights of their
    own are gradients at other places: noise of a gradient's size. At learning rates that `MGDA` bears (beware of the
    1/M) ReLU networks can lose all their units to it, and nothing revives them: 4 particles of 30 in an epoch of
    Multi-MNIST at lr 0.5, with or without repulsion, none at 0.2 (reports/multi_task.md). ``kernel_on="parameters"``
    hardly mixes gradients, for then the kernel between such networks is small.

    Attributes:
        weights: (M, K), those of the last step, or None before it.

    Raises:
        ValueError, TypeError: as for `SVGD`.
    """

    kernel_on: str = choice(
        "losses",
        "parameters",
        default="losses",
        of_sampler=True,
        doc='"losses", or "parameters" as in the toy of MT-SGD\'s published code.',
    )

    def _kernel(self, role: Role) -> tuple[KernelMatrix, Tensor]:
        """The kernel's matrices and the repulsion of the parameters, (M, d)."""
        if self.kernel_on == "parameters":
            return super()._kernel(role)
        objectives = role.losses.T.to(role.points.dtype)
        matrix = self.kernel(objectives)
        push = repulsion(objectives, matrix)
        if role.task is not None:
            push = push[:, role.task, None]
        # (∂L/∂θ)ᵀ push, with ∂L/∂θ = (∇Ũ − λθ)/N.
        return matrix, weighted(role.loss_gradients, push)

    def _trunk(self, role: Role) -> Tensor:
        matrix, repelled = self._kernel(role)
        self._new_weights = mgda_weights(role.gradients)
        return svgd_direction(-weighted(role.gradients, self._new_weights), repelled, matrix, role.temperature)
