"""The step that L2E and Precond-L2E share: in place, tensor by tensor, by compiled code where that is available."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.base.step import GroupInputs, blocks
from learned_samplers.learned.feature_sets import FeatureSet, feature_set_named
from learned_samplers.learned.features import begin_late_
from learned_samplers.learned.flat_buffers import coordinates_at_once, together
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.native.step import can_step, step_tensors_
from learned_samplers.learned.network import Phi
from learned_samplers.learned.preconditioned.rule import PreconditionedSettings
from learned_samplers.learned.sampler import LearnedSampler
from learned_samplers.learned.two_passes import TwoPasses


class TwoPassSampler(LearnedSampler):
    """A learned sampler with running averages, whose update is `TwoPasses`."""

    hyperparameters: ClassVar[tuple[str, ...]] = (*LearnedSampler.hyperparameters, "step")
    settings: L2ESettings | PreconditionedSettings

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("momentum", "averages", "whitening") if self.feature_set.whitens else ("momentum", "averages")

    @property
    def feature_set(self) -> FeatureSet:
        """What the network sees."""
        return feature_set_named(self.settings.feature_set)

    def passes(self) -> TwoPasses | None:
        """The update as two passes of the network; None if these settings need more than that."""
        raise NotImplementedError

    @property
    def not_sharded(self) -> str:  # type: ignore[override]
        """Statistics of whole tensors are there, derivatives of the network along a tensor are not."""
        if self._narrow:
            return "averages in bfloat16 are rounded by a coordinate's place in a whole tensor"
        if self.feature_set.whole is not None:
            others = "take other weights, such as network='l2e' of L2E"
            return f"feature set {self.feature_set.name!r} sees whole matrices ({others})"
        return "" if self.passes() is not None else "its correction differentiates the network along whole tensors"

    @property
    def _narrow(self) -> bool:
        return self.settings.averages_dtype == "bfloat16"

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "averages" and self._narrow:
            return p.new_zeros(self.state_shape(name, p), dtype=torch.bfloat16)
        return super().initial_state(group, p, name)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for state in self.state.values() if self._narrow else ():
            if "averages" in state:  # which torch has given the parameter's dtype
                state["averages"] = state["averages"].to(torch.bfloat16)

    load_state_dict.__doc__ = LearnedSampler.load_state_dict.__doc__

    def _rows(self) -> dict[str, int]:
        return {"averages": self.feature_set.num_averages}

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        params, gradients, hyper = inputs.params, inputs.gradients, self.hyper(group)
        for p, gradient in zip(params, gradients, strict=True):  # all of it, before any noise is drawn
            joins = hyper["step"] and "averages" not in self.state.get(p, {})
            for name in self.state_names:
                self.state_of(group, p, name)
            if joins:
                segments = Segments.of([p]) if self.parts is None else self.parts.segments(p)
                if segments.lengths[0]:
                    mean_square = segments.mean(gradient.reshape(-1).square())
                    begin_late_(self.state[p]["averages"], mean_square, self.feature_set, hyper["step"])
        if self.parts is not None:  # tensor by tensor in all processes, which exchange each one's statistics
            for p, gradient in zip(params, gradients, strict=True):
                self._advance_part(p, gradient, hyper, self.parts.segments(p))
            return
        for alike in together(params):
            chosen, slopes = [params[i] for i in alike], [gradients[i] for i in alike]
            momenta, *kept = ([self.state[p][name] for p in chosen] for name in self.state_names)
            phi = self._phi(chosen[0])
            compiled = can_step(phi, self.settings, *chosen, *slopes, *momenta, averages=kept[0])
            for block in blocks(chosen, coordinates_at_once(chosen, compiled)):
                state = momenta[block], *(each[block] for each in kept)
                self._advance(chosen[block], slopes[block], state, phi, hyper, compiled)
        if self.feature_set.whitens:
            self.keep_roots(params, hyper["step"])

    def _advance_part(self, p: Tensor, gradient: Tensor, hyper: dict[str, Any], segments: Segments) -> None:
        noise, passes = self.noise_for([p], hyper), self.passes()
        assert passes is not None
        state = [self.state[p][name] for name in self.state_names]
        _in_place(passes, p, gradient, noise, *state, phi=self._phi(p), segments=segments, **hyper)

    def _advance(
        self,
        params: list[Tensor],
        gradients: list[Tensor],
        state: tuple[list[Tensor], ...],
        phi: Phi,
        hyper: dict[str, Any],
        compiled: bool,
    ) -> None:
        noise, passes = self.noise_for(params, hyper), self.passes()
        if compiled:
            step_tensors_(params, gradients, noise, *state, phi=phi, **hyper)
        elif passes is not None and len(params) == 1 and not torch.compiler.is_compiling():
            _in_place(passes, params[0], gradients[0], noise, *(each[0] for each in state), phi=phi, **hyper)
        else:
            self.advance_flat(params, gradients, noise, hyper)


def _in_place(
    passes: TwoPasses,
    parameter: Tensor,
    gradient: Tensor,
    noise: Sequence[Tensor] | None,
    momentum: Tensor,
    averages: Tensor,
    whitening: Tensor | None = None,
    **hyper: Any,
) -> None:
    # A view where the layout allows it, else a copy (channels_last), which is written back.
    theta, r, kept = parameter.reshape(-1), momentum.reshape(-1), averages.reshape(len(averages), -1)
    hyper.setdefault("segments", Segments.of([parameter]))
    drawn = None if noise is None else noise[0].reshape(-1)
    covariances = None if whitening is None else whitening.view(-1)
    passes.step_(theta, gradient.reshape(-1), drawn, r, kept, covariances, **hyper)
    for tensor, flat in ((parameter, theta), (momentum, r), (averages, kept)):
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view(tensor.shape))
