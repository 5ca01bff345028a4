"""What the learned samplers share: a small network beside the parameters, and a step on flat buffers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learned_samplers.base import validation as check
from learned_samplers.base.master_weights import working_dtype
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.segments import Segments
from learned_samplers.base.step import GroupInputs
from learned_samplers.learned.l2e.rule import Phi
from learned_samplers.learned.network import flatten, layers_of, shapes_of


class LearnedSampler(Sampler):
    """A sampler whose update holds a network, applied to each coordinate; a group's tensors are updated together.

    Subclasses set `flat_rule`. The network is in the parameters' dtype, is never part of ``param_groups``, and a state
    dict names it by a fingerprint: a chain is never resumed with other weights than its own.
    """

    badge = "heuristic"
    needs_master_in_float16 = True
    #: State tensors that keep several rows a coordinate: name → K; they have shape (K, *parameter.shape).
    rows: dict[str, int]
    #: The network in use; its ``nn.Linear`` layers in order are the weights.
    network: nn.Module
    #: What else the fingerprint covers: the form of the update and the features.
    identity: dict[str, str]

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        network: nn.Module,
        inputs: int,
        outputs: int,
        rows: dict[str, int],
        identity: dict[str, str],
        generator: torch.Generator | None,
    ):
        self.identity, self.rows = identity, rows
        phi = layers_of(network)
        if (phi[0][0].shape[1], phi[-1][0].shape[0]) != (inputs, outputs):
            raise ValueError(
                f"network must take {inputs} features ({identity['feature_set']!r}) and give {outputs} outputs, got "
                f"{phi[0][0].shape[1]} and {phi[-1][0].shape[0]}"
            )
        if not all(part.isfinite().all() for pair in phi for part in pair):
            raise ValueError("network must have finite weights")
        super().__init__(params, defaults, generator=generator)
        first = self.param_groups[0]["params"][0]
        weight = phi[0][0]
        dtype = working_dtype(self.param_groups[0], first)
        if (weight.dtype, weight.device) != (dtype, first.device):
            network = copy.deepcopy(network).to(dtype=dtype, device=first.device)
        self.network = network

    def flat_rule(self, *tensors: Any, phi: Phi, segments: Segments, **hyper: Any) -> tuple[Tensor, ...]:
        """The update of flat buffers, out of place: (parameter, gradient, noise, state…) ↦ (parameter, state…)."""
        raise NotImplementedError

    def rule(
        self, parameter: Tensor, gradient: Tensor, noise: Tensor | None, *state: Tensor, **hyper: Any
    ) -> tuple[Tensor, ...]:
        """`flat_rule` for one tensor of any shape, differentiable also in the network's weights."""
        shape = parameter.shape
        after = self.flat_rule(
            parameter.reshape(-1),
            gradient.reshape(-1),
            None if noise is None else noise.reshape(-1),
            *(self._flat_state(name, [tensor]) for name, tensor in zip(self.state_names, state, strict=True)),
            phi=self._phi(parameter),
            segments=Segments((parameter.numel(),)),
            **hyper,
        )
        return tuple(x.reshape(*x.shape[:-1], *shape) for x in after)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        check.fraction("momentum_decay", group["momentum_decay"], open_left=True)
        check.one_of("momentum_init", group["momentum_init"], ("zero", "normal"))
        for name, value in group.items():
            if name.endswith("_scale"):
                check.non_negative(name, value)
        if group.get("output_bound") is not None:
            check.positive("output_bound", group["output_bound"])

    # ---------------------------------------------------------------- the step

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        params, grads, hyper = inputs.params, inputs.gradients, self.hyper(group)
        state = [[self.state_of(group, p, name) for p in params] for name in self.state_names]
        for members in together(params):
            chosen = [params[i] for i in members]
            segments = Segments(tuple(p.numel() for p in chosen))
            noise = self.noise_for(chosen, hyper)
            before = [
                self._flat_state(name, [tensors[i] for i in members])
                for name, tensors in zip(self.state_names, state, strict=True)
            ]
            after = self.flat_rule(
                gather(chosen),
                gather([grads[i] for i in members]),
                None if noise is None else gather(noise),
                *before,
                phi=self._phi(chosen[0]),
                segments=segments,
                **hyper,
            )
            for tensors, flat in zip([params, *state], after, strict=True):
                scatter(flat, [tensors[i] for i in members], segments)

    def _flat_state(self, name: str, tensors: list[Tensor]) -> Tensor:
        lead = (self.rows[name],) if name in self.rows else ()
        return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)

    def _phi(self, like: Tensor) -> Phi:
        return [(w.to(like), b.to(like)) for w, b in layers_of(self.network)]

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name in self.rows:
            return p.new_zeros(self.state_shape(name, p))
        return super().initial_state(group, p, name)

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        return (self.rows[name], *p.shape) if name in self.rows else tuple(p.shape)

    # ---------------------------------------------------------------- saving and resuming

    def fingerprint(self) -> dict[str, str]:
        """The form, the features and a SHA-256 of the weights: what a chain must keep to be the same chain."""
        phi = layers_of(self.network)
        content = flatten(phi).detach().to("cpu", torch.float64).numpy().tobytes()
        digest = hashlib.sha256(repr(shapes_of(phi)).encode() + content).hexdigest()
        return {**self.identity, "sha256": digest}

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        saved["sampler"]["network"] = self.fingerprint()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit for bit, as `Sampler.load_state_dict`.

        Raises:
            ValueError: also if the state is of a chain with another network, form or feature set. Nothing has changed.
        """
        self.validate_saved(state_dict)
        theirs, ours = state_dict["sampler"].get("network", {}), self.fingerprint()
        differs = [key for key in ours if theirs.get(key) != ours[key]]
        if differs:
            raise ValueError(
                f"state_dict is of a chain with another network: {differs[0]} is {theirs.get(differs[0])!r} there, "
                f"{ours[differs[0]]!r} here"
            )
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = {"network": self.network, "identity": self.identity, "rows": self.rows}
        return {**super().__getstate__(), **own}


def gather(tensors: Sequence[Tensor], lead: Sequence[int] = ()) -> Tensor:
    """Tensors laid end to end, (*lead, d), where all of them have the leading axes ``lead``."""
    return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)


def scatter(flat: Tensor, tensors: Sequence[Tensor], segments: Segments | Sequence[int]) -> None:
    """Write a flat buffer (..., d) back into the tensors it was gathered from; ``segments`` may be their lengths."""
    lengths = list(segments.lengths if isinstance(segments, Segments) else segments)
    for tensor, piece in zip(tensors, flat.split(lengths, -1), strict=True):
        tensor.copy_(piece.reshape(tensor.shape))


def together(params: Sequence[Tensor]) -> list[list[int]]:
    """Positions of the tensors that share a buffer: one dtype, one device; empty tensors are left out."""
    by_kind: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        if p.numel():
            by_kind.setdefault((p.dtype, p.device), []).append(i)
    return list(by_kind.values())


def settings_from(card: dict[str, Any], scales: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """lr, momentum decay and the scales of a sampler: as given, else the card's, else the library's.

    Args:
        card: of the weights, or {}.
        scales: the scales that the sampler has, with the library's values.
        given: the sampler's arguments, None where it is left to the card.

    Raises:
        ValueError: a scale was given, or stands in the card, that the sampler does not have; there is no lr.
    """
    foreign = {key: value for key, value in card.get("scales", {}).items() if key not in scales}
    foreign |= {key: v for key, v in given.items() if v is not None and key not in (*scales, "lr", "momentum_decay")}
    if foreign:
        key, value = next(iter(foreign.items()))
        raise ValueError(f"{key} does not belong to this form of the sampler, got {value!r}")
    chosen = {"lr": None, "momentum_decay": 0.1, **card.get("defaults", {}), **scales, **card.get("scales", {})}
    chosen.update({key: value for key, value in given.items() if value is not None})
    if chosen["lr"] is None:
        raise ValueError("lr must be given: the network comes without a card that recommends one")
    return {key: chosen[key] for key in ("lr", "momentum_decay", *scales)}
