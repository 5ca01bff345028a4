"""Base class of the learned samplers: a small network beside the parameters, and a step on flat buffers."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from learned_samplers.base import validation as check
from learned_samplers.base.guards.precision import working_dtype
from learned_samplers.base.momentum import MomentumSampler
from learned_samplers.base.segments import Segments
from learned_samplers.base.settings import choice, data_count, learning_rate, setting
from learned_samplers.base.step import GroupInputs, blocks
from learned_samplers.learned.badge import HEURISTIC, badge_of
from learned_samplers.learned.network import Phi, check_forward, flatten, layers_of, shapes_of
from learned_samplers.learned.settings import LearnedSettings, differences
from learned_samplers.learned.weights import resolve

if TYPE_CHECKING:
    from learned_samplers.learned.hub import Weights

#: The learned samplers by the name of their class, which is their name in cards and on the command line too. A subclass
#: of `LearnedSampler` with a `settings_class` of its own is here as soon as its module is imported.
REGISTRY: dict[str, type[LearnedSampler]] = {}

# Small tensors are updated together, up to so many coordinates: copies of them are all that a step in place needs
# besides the state.
_AT_ONCE_ON_CPU, _AT_ONCE_ON_GPU = 1 << 19, 1 << 22


class LearnedSampler(MomentumSampler):
    """Base class of samplers whose update holds a small network, applied to each weight by itself.

    Subclasses set `settings_class`, which makes them known under their name, and `flat_rule`. The network is in the
    parameters' dtype, is never part of ``param_groups``, and a state dict names it by a fingerprint: a chain is never
    resumed with other weights or settings than its own.
    """

    lr: float | None = learning_rate(  # type: ignore[assignment]
        default=None,
        kw_only=False,
        doc="learning rate of ordinary training; by default what the network's card recommends.",
    )
    num_data: float = data_count(default=None, kw_only=False, doc="N, the number of training points; it must be given.")
    network: Any = setting(
        default="default",
        of_sampler=True,
        doc="name of shipped weights, path of a weight file or folder, what `from_pretrained` returns, an "
        '``nn.Module`` of ``nn.Linear`` layers with ReLU between them, or None for fresh weights. "default" is what '
        "the class ships, if anything.",
    )
    settings: Any = setting(
        default=None,
        of_sampler=True,
        doc="a dict of further settings, those of `settings_class`, where each is explained; what it leaves out is the "
        "card's, else the default. Or all of them, in an instance of that class.",
    )
    momentum_decay: float | None = setting(  # type: ignore[assignment]
        default=None,
        check=partial(check.fraction, open_left=True),
        doc="a in (0, 1]; 1 − a is SGD's momentum, and may be given as ``momentum=``; by default the card's, else 0.1.",
    )
    foreach: bool | None = choice(
        None, True, False, default=None, doc="as every sampler takes it; here tensors are always updated together."
    )

    #: The dataclass of its settings.
    settings_class: ClassVar[type[LearnedSettings]]
    #: Whether the update leaves the posterior alone for any network, up to the step size.
    claims_law: ClassVar[bool] = False
    needs_master_in_float16 = True
    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "prior_precision", "momentum_decay")
    #: The update of flat buffers: (parameter, gradient, noise, momentum, …) ↦ (parameter, momentum, …), with ``phi``,
    #: ``segments``, ``settings`` and one value for each of `hyperparameters`. What comes behind the momentum it may be
    #: told to change ``in_place``, and is then given as a tensor for each parameter.
    flat_rule: ClassVar[Callable[..., tuple[Any, ...]]]
    #: Keywords of `flat_rule` in a step of the optimizer.
    in_place: ClassVar[dict[str, Any]] = {}
    #: The shipped weights that ``network="default"`` means.
    default_network: ClassVar[str | None] = None
    #: The card of the weights, {} if they came without one.
    card: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "settings_class" not in cls.__dict__:
            return
        name, registered = getattr(cls.settings_class, "sampler", None), REGISTRY.get(cls.__name__)
        if name != cls.__name__:
            raise TypeError(f"{cls.settings_class.__name__}.sampler must be {cls.__name__!r}, got {name!r}")
        # A class may be defined anew where it stood before, as in a notebook.
        if registered and (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is a learned sampler {name} already, in {registered.__module__}")
        REGISTRY[cls.__name__] = cls

    def prepare(self, params: Any, values: dict[str, Any]) -> dict[str, Any]:
        """Find the network and its settings, by what was asked for, the card, and the defaults, in this order."""
        network, settings = values["network"], values["settings"]
        keywords = {name: values[name] for name in self.settings_class.names() if name in values}
        asked = self.settings_class.asked(settings, **keywords)
        if isinstance(network, str) and network == "default":
            network = self._shipped(asked)
        of_weights = {name: asked[name] for name in ("form", "feature_set") if name in asked}
        module, self.card = resolve(network, self.settings_class, **of_weights)  # type: ignore[misc]
        if not isinstance(settings, LearnedSettings):
            settings = self.settings_class.from_card(self.card, **asked)
        self.settings = settings
        self._settled()
        self._fresh = module is None
        if module is None:
            module = settings.fresh_network(generator=torch.Generator().manual_seed(0))
        phi = layers_of(module)
        settings.check_network(phi)
        check_forward(module)
        if not all(part.isfinite().all() for pair in phi for part in pair):
            raise ValueError("network must have finite weights")
        recommended = {"lr": None, "momentum_decay": 0.1, **self.card.get("defaults", {})}
        chosen = {name: value if values[name] is None else values[name] for name, value in recommended.items()}
        if chosen["lr"] is None:
            raise ValueError("lr must be given: the network comes without a card that recommends one, got None")
        in_use = {name: getattr(settings, name) for name in keywords}
        return {**super().prepare(params, values), **chosen, **in_use, "network": module, "settings": settings}

    def start(self, params: Any, defaults: dict[str, Any]) -> None:
        super().start(params, defaults)
        parameters = [p for group in self.param_groups for p in group["params"]]
        first = next((p for p in parameters if p.is_floating_point()), parameters[0])  # others are frozen
        weight, dtype = layers_of(self.network)[0][0], working_dtype(self.param_groups[0], first)
        if (weight.dtype, weight.device) != (dtype, first.device):
            self.network = copy.deepcopy(self.network).to(dtype=dtype, device=first.device)

    def _begin(self) -> None:
        super()._begin()
        #: By dtype and device: rows for θ, g, noise and r of tensors that go together.
        self.buffers: dict[Any, Tensor] = {}
        self.linears: tuple[Any, list[nn.Linear]] = (None, [])

    def _shipped(self, asked: dict[str, Any]) -> str | None:
        """The name of the shipped weights that ``network="default"`` means with these settings, None for fresh ones."""
        return self.default_network

    def _settled(self) -> None:
        """Derive class-like attributes from the settings, before the parameters are looked at; subclasses do."""

    def rule(
        self, parameter: Tensor, gradient: Tensor, noise: Tensor | None, *state: Tensor, **hyper: Any
    ) -> tuple[Tensor, ...]:
        """`flat_rule` for one tensor of any shape, differentiable also in the network's weights."""
        shape = parameter.shape
        after = self.flat_rule(
            parameter.reshape(-1),
            gradient.reshape(-1),
            None if noise is None else noise.reshape(-1),
            *(self.flat_state(name, [tensor]) for name, tensor in zip(self.state_names, state, strict=True)),
            phi=self._phi(parameter),
            segments=Segments.of([parameter]),
            settings=self.settings,
            **hyper,
        )
        moved, *changed = after
        named = zip(self.state_names, changed, strict=True)
        return moved.reshape(shape), *(x.reshape(self.state_shape(name, parameter)) for name, x in named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in self.settings_class.names():
            if isinstance(param_group, dict) and name in param_group:
                raise ValueError(
                    f"{name} is a setting of the whole sampler, not of a parameter group, got {param_group[name]!r}"
                )
        super().add_param_group(param_group)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Weights:
        """Find weights for this sampler, to be given as ``network=``, saved or shared.

        Args:
            name: of shipped weights; path of a weight file, or of a folder that ``save_pretrained`` wrote; or a
                repository of the Hugging Face hub, "owner/name", for which ``huggingface_hub`` is needed.
            options: of the hub: ``revision``, ``token``, ``cache_dir``, ``force_download``, ``local_files_only``.

        Returns:
            `learned_samplers.learned.hub.Weights`, with ``save_pretrained(folder)`` and ``push_to_hub(repository)``.

        Raises:
            TypeError, ValueError, FileNotFoundError: no such weights, damaged ones, or those of another sampler.
            ModuleNotFoundError: a repository, without ``huggingface_hub``.
        """
        from learned_samplers.learned.hub import Weights  # which imports huggingface_hub

        weights = Weights.from_pretrained(name, **options)
        resolve(weights, cls.settings_class)
        return weights

    # ---------------------------------------------------------------- the badge

    @property
    def badge(self) -> str:  # type: ignore[override]
        """Badge that a measurement with these weights, at these settings, has earned; else "heuristic"."""
        return self._badge()[0]

    @property
    def badge_reason(self) -> str:
        """The reason for the badge, in a sentence."""
        return self._badge()[1]

    def _badge(self) -> tuple[str, str]:
        if not self.card:
            origin = "is untrained" if self._fresh else "came as a module, without a card"
            last = layers_of(self.network)[-1]
            base = (
                f"; its last layer is zero, so that {self.settings.at_zero}"
                if not any(part.any() for part in last) and self.settings.zero_is_base
                else ""
            )
            return HEURISTIC, f"the invariant law of this network has not been measured; it {origin}{base}"
        return badge_of(
            self.card["law"],
            self.settings,
            self.param_groups,
            claims_law=self.claims_law,
            sha256=self.fingerprint()["sha256"],
        )

    # ---------------------------------------------------------------- the step

    def advance(self, group: dict[str, Any], inputs: GroupInputs, lead: Sequence[int] = (), **more: Any) -> None:
        """Apply `flat_rule` to all tensors of a group, as many at a time as share a buffer.

        ``lead`` are the leading axes that all tensors have, of chains; ``more`` are further keywords of the rule.
        """
        hyper = {**self.hyper(group), "settings": self.settings, **more}
        plain = not (lead or self.parts is not None or torch.compiler.is_compiling())
        states = self.plan(inputs.params).states if plain else [self.state[p] for p in inputs.params]
        for p, gradient, kept in zip(inputs.params, inputs.gradients, states, strict=True):  # before any noise is drawn
            if self.state_names[-1] not in kept:
                self.begin_state(group, p, gradient)
        made = self.plan(inputs.params).made if plain else {}
        # Views of the states are kept from step to step; ``state.data = …`` would leave them behind.
        batches = made.get("batches", ())
        places = [[[*map(Tensor.data_ptr, x)] for x in batch.states] for batch in batches]
        if "batches" not in made or places != [batch.places for batch in batches]:
            made["batches"] = [self._batch(inputs.params, chosen, lead) for chosen in self.batches(inputs.params)]
        for batch in made["batches"]:
            params, gradients = [inputs.params[i] for i in batch.chosen], [inputs.gradients[i] for i in batch.chosen]
            momenta, *kept = batch.states
            noise = self.noise_for(params, hyper)
            lists = zip((params, gradients, noise, momenta), batch.buffers, strict=True)
            packed: list[Any] = [
                None if tensors is None else gather(tensors, lead, buffer) for tensors, buffer in lists
            ]
            theta, *others = packed
            moved, momentum, *_ = self.flat_rule(
                theta, *others, *kept, phi=self._phi(theta), segments=batch.segments, **self.in_place, **hyper
            )
            scatter(moved, params, batch.buffers[0])
            scatter(momentum, momenta, batch.buffers[-1])

    def _batch(self, params: list[Tensor], chosen: list[int], lead: Sequence[int]) -> Batch:
        """What the steps of tensors that go together have in common."""
        tensors = [params[i] for i in chosen]
        states = [[self.state[p][name] for p in tensors] for name in self.state_names]
        if self.parts is not None:
            return Batch(chosen, states, self.parts.segments(tensors[0]))
        if lead:
            return Batch(chosen, states, Segments(tuple([p.numel() // lead[0] for p in tensors])))
        batch = Batch(chosen, states, Segments.of(tensors))
        if torch.compiler.is_compiling():
            return batch
        batch.places = [[*map(Tensor.data_ptr, x)] for x in states]
        if len(tensors) > 1:
            like, everything = tensors[0], sum(p.numel() for group in self.param_groups for p in group["params"])
            size = max(batch.segments.total, min(everything, _AT_ONCE_ON_CPU if like.is_cpu else _AT_ONCE_ON_GPU))
            key = like.dtype, like.device
            if key not in self.buffers or self.buffers[key].shape[-1] < size:
                self.buffers[key] = like.new_empty(len(batch.buffers), size)
            flats = [row[: batch.segments.total] for row in self.buffers[key]]
            batch.buffers = [(flat, list(torch._C._nn.unflatten_dense_tensors(flat, tensors))) for flat in flats]
            batch.segments.staying.update({id(flat): {} for flat in flats})
        batch.segments.staying.update({id(kept): {} for kept in states if all(map(Tensor.is_contiguous, kept))})
        return batch

    def batches(self, params: list[Tensor]) -> Iterator[list[int]]:
        """Tensors that are updated together, by position: of one dtype and device; empty ones are left out."""
        if self.parts is not None:  # one by one in all processes, which exchange each one's statistics
            yield from ([i] for i in range(len(params)))
            return
        by_kind: dict[Any, list[int]] = {}
        for i, p in enumerate(params):
            if p.numel():
                by_kind.setdefault((p.dtype, p.device), []).append(i)
        for alike in by_kind.values():
            limit = _AT_ONCE_ON_CPU if params[alike[0]].is_cpu else _AT_ONCE_ON_GPU
            for block in blocks([params[i] for i in alike], limit):
                yield alike[block]

    def begin_state(self, group: dict[str, Any], p: Tensor, gradient: Tensor) -> None:
        """Make the state of a parameter at its first gradient."""
        for name in self.state_names:
            self.state_of(group, p, name)

    def flat_state(self, name: str, tensors: list[Tensor]) -> Tensor:
        """State ``name`` of several parameters laid end to end, behind the axes that it has before the parameter's."""
        return gather(tensors)

    def _phi(self, like: Tensor) -> Phi:
        """The network's layers, whose making has checked them, in a tensor's dtype and on its device."""
        if self.linears[0] is not self.network:
            self.linears = self.network, [x for x in self.network.modules() if isinstance(x, nn.Linear)]
        return [(linear.weight.to(like), linear.bias.to(like)) for linear in self.linears[1]]

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        """Shape of the state tensor ``name``."""
        return tuple(p.shape)

    # ---------------------------------------------------------------- saving and resuming

    def fingerprint(self) -> dict[str, Any]:
        """The settings and a SHA-256 of the weights: what a chain must keep to be the same chain."""
        phi = layers_of(self.network)
        content = flatten(phi).detach().to("cpu", torch.float64).numpy().tobytes()
        digest = hashlib.sha256(repr(shapes_of(phi)).encode() + content).hexdigest()
        return {"sha256": digest, "settings": self.settings.as_dict()}

    def state_dict(self) -> dict[str, Any]:
        """As `Sampler.state_dict`, with the settings as plain values and a SHA-256 of the network's weights."""
        saved = super().state_dict()
        saved["sampler"]["network"] = self.fingerprint()
        return saved

    def validate_header(self, header: dict[str, Any]) -> None:
        super().validate_header(header)
        theirs, ours = header.get("network"), self.fingerprint()
        if not isinstance(theirs, dict) or not isinstance(theirs.get("settings", {}), dict):
            raise ValueError(f"state_dict does not say which network it is of: network is {theirs!r:.60}")
        saved, settings = self.settings.current(theirs.get("settings", {})), ours["settings"]
        for name in differences(settings, saved):
            raise ValueError(
                f"state_dict is of a chain with other settings: {name} is {saved.get(name)!r} there, "
                f"{settings.get(name)!r} here: make the sampler with the chain's network= and settings"
            )
        if theirs.get("sha256") != ours["sha256"]:
            raise ValueError(
                f"state_dict is of a chain with another network: sha256 is {theirs.get('sha256')!r} there, "
                f"{ours['sha256']!r} here"
            )

    def __getstate__(self) -> dict[str, Any]:
        names = ("network", "settings", "card", "_fresh", *(set(self.settings_class.names()) & self.declared.keys()))
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}


# -------------------------------------------------------------------- flat buffers


#: A flat buffer, and views of it in the shapes of the tensors that are laid there.
Buffer = tuple[Tensor, list[Tensor]]


@dataclass
class Batch:
    """Tensors that a step updates together: their places, states by name, and what of them stays where it is.

    ``buffers`` are for θ, g, noise and r; None where a buffer is made anew. ``places`` are where the states lie.
    """

    chosen: list[int]
    states: list[list[Tensor]]
    segments: Segments
    buffers: Sequence[Buffer | None] = (None, None, None, None)
    places: Sequence[list[int]] = ()


def gather(tensors: Sequence[Tensor], lead: Sequence[int] = (), buffer: Buffer | None = None) -> Tensor:
    """Tensors laid end to end, (*lead, d), where all have the leading axes ``lead``; a single one perhaps as a view."""
    if buffer is not None:
        torch._foreach_copy_(buffer[1], list(tensors))
        return buffer[0]
    if len(tensors) == 1:
        return tensors[0].reshape(*lead, -1)
    if lead:
        return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)
    return torch._C._nn.flatten_dense_tensors(list(tensors))


def scatter(flat: Tensor, tensors: Sequence[Tensor], buffer: Buffer | None = None) -> None:
    """Write a flat buffer (*lead, d) back into the tensors it was gathered from."""
    if buffer is not None and flat is buffer[0]:
        torch._foreach_copy_(list(tensors), buffer[1])
        return
    if len(tensors) == 1 and not torch.compiler.is_compiling() and flat.data_ptr() == tensors[0].data_ptr():
        return  # a view, changed in place
    if flat.dim() == 1:
        pieces = torch._C._nn.unflatten_dense_tensors(flat, list(tensors))
    else:
        members = flat[..., 0].numel()
        pieces = [
            piece.reshape(x.shape)
            for x, piece in zip(tensors, flat.split([x.numel() // members for x in tensors], -1), strict=True)
        ]
    torch._foreach_copy_(list(tensors), list(pieces))
