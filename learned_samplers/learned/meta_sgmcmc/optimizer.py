"""Meta-SGMCMC: a learned curl and a learned friction inside the complete recipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from learned_samplers.base.group_keys import SamplerOptions
from learned_samplers.base.operations import is_finite
from learned_samplers.base.sampler import arguments
from learned_samplers.base.segments import Segments
from learned_samplers.base.step import Evaluation, GroupInputs, blocks
from learned_samplers.learned.flat_buffers import coordinates_at_once, gather, scatter, together
from learned_samplers.learned.meta_sgmcmc.rule import MetaSGMCMCSettings, meta_sgmcmc_rule
from learned_samplers.learned.native.meta_sgmcmc import can_meta_step, meta_step_tensors_
from learned_samplers.learned.network import Phi
from learned_samplers.learned.sampler import LearnedSampler

# Coordinates of a chain that are updated at a time, so that ten units' activations stay in the second-level cache.
_BLOCK_ON_CPU = 1 << 14
_BLOCK_ON_GPU = 1 << 22


class MetaSGMCMC(LearnedSampler):
    """A learned sampler whose curl and friction are small networks, corrected so that it keeps the posterior.

    Source: Gong, Li and Hernández-Lobato, Meta-learning for stochastic gradient MCMC, ICLR 2019; its curl is Q, its
    diffusion D.

    With ε = √(lr/N), momentum decay a, ∇Ũ = N·g + λθ, u = s_u·Ũ/N, γ = s_g·∇Ũ/N, ξ ~ N(0, I), coordinate by coordinate:

        Q(u, r) = clip(β + s_Q·f_Q(u, r), ±c_Q)
        A(u, r, γ) = clip(a·((1−κ)·Q² + κ + s_D·f_D(u, r, γ)), [0, c_A])
        r ← r − A·r − εQ·∇Ũ + T·(ε·∂Q/∂θ + ∂A/∂r) + √(2AT − ε²Q²B)·ξ
        θ ← θ + ε·(Q(u, r_new)·r_new − T·∂Q/∂r(u, r_new)),    ∂Q/∂θ = ∂Q/∂u·s_u·∇Ũ/N

    the paper's update with η = ε, D = A/ε, α = (1−κ)·a/ε and c = κ·a/ε. The untrained sampler (last layers zero, β = 1)
    is `SGHMC` to rounding. Signs and corrections are derived in ``docs/meta_sgmcmc.md``; the published code has the
    sign of ∂Q/∂θ the other way, which moves the law.

    The energy Ũ is an input: ``step`` takes a closure that returns the mean loss, as the usual closure does; or, with
    gradients that are there already, ``step(lambda: loss)``. It is called once. A loss of shape (M,) means M chains in
    the leading axis of every parameter, each with its own energy (``backward`` of the sum).

    Invariant law: exp(−U/T − ‖r‖²/2T) for any network, up to O(ε) at constant friction C = a/ε. `check_sampler` with
    random networks at lr .1 and a = .1 found variances 6 and 13 % off, and 1 and 3 % at lr/4; a network whose Q grows
    steeply with the energy needs a smaller lr. The badge is "O(h)" where that was measured with the very weights and
    settings in use, as their card says; for other networks it is "heuristic". At ε = .05, where the rule is within 3 %
    of Gaussians, leaving out a part of Γ, or the published sign, put it off by 17 % and more.

    A whole training step of an MLP 784-20-10 at batch 500 takes 1.13 times `SGHMC`'s on one CPU core, in float32 and by
    compiled code; by torch 2.8 times, and 1.9 with finite differences.

    Args:
        params, lr, num_data, temperature, prior_precision, momentum_decay, momentum_init, foreach, generator, options:
            as for `L2E`.
        network: "default" is the shipped "meta-sgmcmc". Else the name of shipped weights, path of a weight file, an
            ``nn.Module`` laid out as
            `learned_samplers.learned.meta_sgmcmc.network.build_meta_network` does, or None for fresh weights: `SGHMC`.
        form: "signed" (f_D may lower the friction to 0) or "absolute" (|f_D|, as the published code has it); by default
            the card's, else "signed".
        feature_set: "energy", the inputs above; or "energy_rms", where r and γ are divided by their root mean squares
            over the tensor (γ = s_g·∇Ũ/rms(∇Ũ)) and Γ follows; by default the card's, else "energy".
        curl_offset, curl_scale, curl_clip: β, s_Q, c_Q; by default the card's, else 1, 1 and 5.
        friction_scale, constant_friction, friction_clip: s_D, κ in [0, 1], c_A (above 1 a step overshoots); by default
            the card's, else 1, 0 and 1.
        energy_scale, gradient_scale: s_u and s_g; by default the card's, else 1.
        gradient_variance: B ≥ 0, the variance of ∇Ũ's minibatch noise, in units of (∇U)²; by default 0.
        correction: "autograd" (the default): exact derivatives; or "finite_difference": forward differences over
            δ = ``probe_size`` (by default 10⁻³) in the networks' inputs, for float32 and float64, never by compiled
            code.
        settings: a `learned_samplers.learned.meta_sgmcmc.rule.MetaSGMCMCSettings` in the place of ``form``,
            ``feature_set`` and the keywords from ``curl_offset`` to ``probe_size``.

    Raises:
        ValueError, TypeError: an argument is out of range, of a wrong type, or contradicts the network's card; a step
            without a closure, or with one that returns no loss, or losses of a wrong shape.
        FloatingPointError: loss, energy or gradient are not finite; nothing has changed then.
    """

    needs_closure = True
    reads_loss = True
    settings_class = MetaSGMCMCSettings
    not_sharded = "its network sees the energy of all weights"
    settings: MetaSGMCMCSettings
    claims_law = True
    state_names = ("momentum",)
    takes_prior_mean = False

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        num_data: float | None = None,
        *,
        network: str | os.PathLike[str] | nn.Module | None = "default",
        form: str | None = None,
        feature_set: str | None = None,
        momentum_decay: float | None = None,
        temperature: float = 1.0,
        prior_precision: float = 0.0,
        curl_offset: float | None = None,
        curl_scale: float | None = None,
        friction_scale: float | None = None,
        constant_friction: float | None = None,
        energy_scale: float | None = None,
        gradient_scale: float | None = None,
        curl_clip: float | None = None,
        friction_clip: float | None = None,
        gradient_variance: float | None = None,
        correction: str | None = None,
        probe_size: float | None = None,
        settings: MetaSGMCMCSettings | None = None,
        momentum_init: str = "zero",
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SamplerOptions],
    ):
        super().__init__(params, arguments(locals()), generator=generator)

    def _shipped(self, own: dict[str, Any], num_data: float) -> str:
        return "meta-sgmcmc"

    @property
    def form(self) -> str:
        """How the output of f_D enters the friction, "signed" or "absolute"."""
        return self.settings.form

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        if self.settings.correction == "finite_difference":
            for entry in group.get("params", ()):
                dtype = (entry[1] if isinstance(entry, tuple) else entry).dtype
                if dtype not in (torch.float32, torch.float64):
                    raise ValueError(f"correction='finite_difference' needs float32 or float64 parameters, got {dtype}")

    # ---------------------------------------------------------------- the energy

    def evaluate(self, closure: Callable[[], Any] | None) -> Evaluation:
        """Compute gradients and energies; each group's ``prepared`` is its energy."""
        if closure is None:
            raise ValueError(
                "MetaSGMCMC.step needs a closure that returns the mean loss, for the energy is an input of its "
                "networks: step(closure), or step(lambda: loss) after loss.backward(); got None"
            )
        evaluation = super().evaluate(closure)
        energies = self.energies(torch.as_tensor(evaluation.loss).detach(), self.param_groups)
        for group, inputs, energy in zip(self.param_groups, evaluation.groups, energies, strict=True):
            if not is_finite(energy):
                self._report(group, energy)
            inputs.prepared = energy
        return evaluation

    def energies(self, loss: Tensor, groups: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Ũ = N·loss + ½Σλ‖θ‖² over all groups, once for each group's N, of the loss's shape: () or (M,).

        Raises:
            ValueError: the loss has neither shape () nor that of every parameter's leading axis.
        """
        sampled = [(group, p) for group in groups for p in group["params"] if p.requires_grad]
        fits = loss.dim() == 0 or (loss.dim() == 1 and all(p.shape[:1] == loss.shape for _, p in sampled))
        if not fits:
            shapes = sorted({tuple(p.shape) for _, p in sampled})
            raise ValueError(
                f"closure returned losses of shape {tuple(loss.shape)}; expected () or the leading axis of the "
                f"parameters, whose shapes are {shapes}"
            )
        loss = loss.to(torch.promote_types(loss.dtype, torch.float32))
        prior = torch.zeros_like(loss)
        for group, p in sampled:
            precision = group["prior_precision"]
            if isinstance(precision, Tensor) or precision != 0:
                square = p.to(loss.dtype).square().reshape(*loss.shape, -1).sum(-1)
                prior = prior + 0.5 * precision * square.to(loss.device)
        return [loss * group["num_data"] + prior for group in groups]

    def _report(self, group: dict[str, Any], energy: Tensor) -> None:
        for other in self.param_groups:
            for i, p in enumerate(other["params"]):
                if p.requires_grad and not p.isfinite().all():
                    raise FloatingPointError(f"parameter {self.name_of(other, i)} is not finite; nothing was changed")
        where = f" of chains {(~energy.isfinite()).nonzero().flatten().tolist()}" if energy.dim() else ""
        raise FloatingPointError(
            f"the energy Ũ = N·loss + ½λ‖θ‖²{where} is not finite, with num_data={group['num_data']} and "
            f"prior_precision={group['prior_precision']}; nothing was changed"
        )

    # ---------------------------------------------------------------- the step

    @property
    def _sees_tensors(self) -> bool:
        """Whether the networks' inputs depend on whole tensors."""
        return self.settings.feature_set == "energy_rms"

    def flat_rule(self, *tensors: Any, **hyper: Any) -> tuple[Tensor, Tensor]:
        return meta_sgmcmc_rule(*tensors, **hyper)

    def rule(
        self, parameter: Tensor, gradient: Tensor, noise: Tensor | None, *state: Tensor, **hyper: Any
    ) -> tuple[Tensor, ...]:
        """`meta_sgmcmc_rule` for one tensor of any shape and ``energy=``, differentiable also in the weights."""
        if not parameter.numel():  # nothing to move, and no mean square to divide by
            return parameter, *state
        chains = hyper["energy"].shape
        flat = (None if x is None else x.reshape(*chains, -1) for x in (parameter, gradient, noise, *state))
        segments = Segments((parameter.numel() // max(hyper["energy"].numel(), 1),))
        after = self.flat_rule(*flat, phi=self._phi(parameter), segments=segments, **hyper)
        return tuple(x.reshape(parameter.shape) for x in after)

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        params, grads, hyper = inputs.params, inputs.gradients, self.hyper(group)
        momenta = [self.state_of(group, p, "momentum") for p in params]
        for alike in together(params):
            chosen, slopes, moved = ([row[i] for i in alike] for row in (params, grads, momenta))
            phi, energy = self._phi(chosen[0]), inputs.prepared.to(chosen[0].device)
            if not can_meta_step(phi, self.settings, *chosen, *slopes, *moved):
                self._advance_flat(chosen, slopes, moved, energy, phi, hyper)
                continue
            for block in blocks(chosen, coordinates_at_once(chosen, compiled=True)):
                noise = self.noise_for(chosen[block], hyper)
                rows = chosen[block], slopes[block], noise, moved[block]
                meta_step_tensors_(*rows, energy=energy, phi=phi, **hyper)

    def _advance_flat(
        self, params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], energy: Tensor, phi: Phi, hyper: Any
    ) -> None:
        chains = tuple(energy.shape)
        noise = self.noise_for(params, hyper)
        buffers = [
            gather(params, chains),
            gather(grads, chains),
            None if noise is None else gather(noise, chains),
            gather(momenta, chains),
        ]
        lengths = [p.numel() // max(energy.numel(), 1) for p in params]
        pieces = [buffers] if self._sees_tensors else _pieces(buffers)
        segments = Segments(tuple(lengths))
        parts = [self.flat_rule(*each, energy=energy, phi=phi, segments=segments, **hyper) for each in pieces]
        after = parts[0] if len(parts) == 1 else [torch.cat(part, -1) for part in zip(*parts, strict=True)]
        for tensors, flat in zip((params, momenta), after, strict=True):
            scatter(flat, tensors, lengths)


def _pieces(buffers: list[Tensor | None]) -> list[list[Tensor | None]]:
    """The buffers in runs of coordinates of about one block's size over all chains."""
    first = buffers[0]
    assert first is not None
    limit = _BLOCK_ON_CPU if first.device.type == "cpu" else _BLOCK_ON_GPU
    size, total = max(limit // max(first[..., 0].numel(), 1), 1), first.shape[-1]
    if total <= size:
        return [buffers]
    starts = range(0, total, size)
    return [[None if x is None else x[..., start : start + size] for x in buffers] for start in starts]
