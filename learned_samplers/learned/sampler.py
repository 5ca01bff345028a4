"""What the learned samplers share: a small network beside the parameters, and a step on flat buffers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from learned_samplers.base import validation as check
from learned_samplers.base.guards.precision import working_dtype
from learned_samplers.base.sampler import Sampler
from learned_samplers.base.segments import Segments
from learned_samplers.base.step import GroupInputs
from learned_samplers.base.whitening import RootSteps, initial_whitening
from learned_samplers.base.whitening import state_shape as whitening_shape
from learned_samplers.learned.badge import HEURISTIC, badge_of
from learned_samplers.learned.feature_sets import FEATURE_SETS
from learned_samplers.learned.flat_buffers import gather, scatter, together
from learned_samplers.learned.network import Phi, flatten, layers_of, shapes_of
from learned_samplers.learned.network_check import check_forward
from learned_samplers.learned.settings import LearnedSettings, differences
from learned_samplers.learned.weights import resolve
from learned_samplers.learned.whole_matrices import warn_if_slow

#: The learned samplers by the name of their class, which is their name in cards and on the command line too. A subclass
#: of `LearnedSampler` with a `settings_class` of its own is here as soon as its module is imported.
REGISTRY: dict[str, type[LearnedSampler]] = {}


class LearnedSampler(Sampler):
    """Base class of samplers whose update holds a small network, applied to each weight by itself.

    Subclasses set `settings_class`, which makes them known under their name, and `flat_rule`. The network is in the
    parameters' dtype, is never part of ``param_groups``, and a state dict names it by a fingerprint: a chain is never
    resumed with other weights or settings than its own.
    """

    #: The dataclass of its settings.
    settings_class: ClassVar[type[LearnedSettings]]
    #: Whether the update leaves the posterior alone for any network, up to the step size.
    claims_law: ClassVar[bool] = False
    needs_master_in_float16 = True
    hyperparameters: ClassVar[tuple[str, ...]] = ("lr", "num_data", "temperature", "prior_precision", "momentum_decay")
    #: The settings in use, of the whole sampler; lr, temperature and the like stand in the parameter groups.
    settings: LearnedSettings
    #: State tensors that keep several rows a coordinate: name → K; they have shape (K, *parameter.shape).
    rows: dict[str, int]
    #: When the roots of covariances were made, where the feature set whitens.
    roots: RootSteps
    #: The network in use; its ``nn.Linear`` layers in order are the weights.
    network: nn.Module
    #: The card of the weights, {} if they came without one.
    card: dict[str, Any]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "settings_class" not in cls.__dict__:
            return
        name, known = getattr(cls.settings_class, "sampler", None), REGISTRY.get(cls.__name__)
        if name != cls.__name__:
            raise TypeError(f"{cls.settings_class.__name__}.sampler must be {cls.__name__!r}, got {name!r}")
        # A class may be defined anew where it stood before, as in a notebook.
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is a learned sampler {name} already, in {known.__module__}")
        REGISTRY[cls.__name__] = cls

    def __init__(self, params: Any, given: dict[str, Any], *, generator: torch.Generator | None = None):
        """``given`` are a subclass's arguments: the network, the settings (None: by default), the groups' defaults."""
        network, settings = given.pop("network"), given.pop("settings")
        own = {name: given.pop(name, None) for name in self.settings_class.names()}
        if settings is not None:
            self._check_settings(settings, own)
            own = settings.as_dict()
        else:
            # What is asked of the weights is checked before their file is read.
            self.settings_class.given(**{name: own[name] for name in ("form", "feature_set") if name in own})
        if isinstance(network, str) and network == "default":
            check.number_of_data(given["num_data"])
            network = self._shipped(own, given["num_data"])
        asked = {name: own[name] for name in ("form", "feature_set") if name in own}
        module, self.card = resolve(network, self.settings_class, **asked)
        self.settings = settings or self.settings_class.from_card(self.card, **own)
        self._fresh = module is None
        if module is None:
            module = self.settings.fresh_network(generator=torch.Generator().manual_seed(0))
        phi = layers_of(module)
        self.settings.check_network(phi)
        check_forward(module)
        if not all(part.isfinite().all() for pair in phi for part in pair):
            raise ValueError("network must have finite weights")
        recommended = {"lr": None, "momentum_decay": 0.1, **self.card.get("defaults", {})}
        for name, value in recommended.items():
            given[name] = value if given[name] is None else given[name]
        if given["lr"] is None:
            raise ValueError(self._without_lr())
        self.rows, self.roots = self._rows(), RootSteps()
        super().__init__(params, given, generator=generator)
        first = self.param_groups[0]["params"][0]
        weight = phi[0][0]
        dtype = working_dtype(self.param_groups[0], first)
        if (weight.dtype, weight.device) != (dtype, first.device):
            module = copy.deepcopy(module).to(dtype=dtype, device=first.device)
        self.network = module
        self._warn_if_slow()

    def _warn_if_slow(self) -> None:
        sees = FEATURE_SETS.get(getattr(self.settings, "feature_set", ""))
        if sees is not None:
            warn_if_slow([p for group in self.param_groups for p in group["params"]], type(self).__name__, sees)

    def _check_settings(self, settings: Any, own: dict[str, Any]) -> None:
        if not isinstance(settings, self.settings_class):
            raise TypeError(f"settings must be {self.settings_class.__name__}, got {type(settings).__name__}")
        for name, value in own.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} cannot be given beside settings=, which has a {name} of its own")

    def _shipped(self, own: dict[str, Any], num_data: float) -> str | None:
        """The name of the shipped weights that ``network="default"`` means for so many data, None for fresh ones."""
        return None

    def _without_lr(self) -> str:
        return "lr must be given: the network comes without a card that recommends one, got None"

    def _rows(self) -> dict[str, int]:
        return {}

    def flat_rule(self, *tensors: Any, phi: Phi, segments: Segments, **hyper: Any) -> tuple[Tensor, ...]:
        """The update of flat buffers, out of place: (parameter, gradient, noise, state…) ↦ (parameter, state…).

        ``hyper`` has ``settings`` and one value for each of `hyperparameters`, as the pure rules take them.
        """
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
            segments=Segments.of([parameter]),
            **hyper,
        )
        moved, *changed = after
        kept = zip(self.state_names, changed, strict=True)
        return moved.reshape(shape), *(x.reshape(self.state_shape(name, parameter)) for name, x in kept)

    def _validate(self, group: dict[str, Any]) -> None:
        super()._validate(group)
        check.fraction("momentum_decay", group["momentum_decay"], open_left=True)
        check.one_of("momentum_init", group["momentum_init"], ("zero", "normal"))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        for name in self.settings_class.names():
            if isinstance(param_group, dict) and name in param_group:
                raise ValueError(
                    f"{name} is a setting of the whole sampler, not of a parameter group, got {param_group[name]!r}"
                )
        super().add_param_group(param_group)

    # ---------------------------------------------------------------- the badge

    @property
    def badge(self) -> str:  # type: ignore[override]
        """What a measurement with these weights has shown of the invariant law, at these settings; else "heuristic"."""
        return self._badge()[0]

    @property
    def badge_reason(self) -> str:
        """Why the badge is what it is, in a sentence."""
        return self._badge()[1]

    def _badge(self) -> tuple[str, str]:
        if not self.card:
            came = "is untrained" if self._fresh else "came as a module, without a card"
            last = layers_of(self.network)[-1]
            base = (
                f"; its last layer is zero, so that {self.settings.at_zero}"
                if not any(part.any() for part in last) and self.settings.zero_is_base
                else ""
            )
            return HEURISTIC, f"the invariant law of this network has not been measured; it {came}{base}"
        return badge_of(
            self.card["law"],
            self.settings,
            self.param_groups,
            claims_law=self.claims_law,
            sha256=self.fingerprint()["sha256"],
        )

    # ---------------------------------------------------------------- the step

    def advance(self, group: dict[str, Any], inputs: GroupInputs) -> None:
        """Apply `flat_rule` to all tensors of a group that can share a buffer at once."""
        params, hyper = inputs.params, self.hyper(group)
        for p in params:  # all of it, before any noise is drawn
            for name in self.state_names:
                self.state_of(group, p, name)
        for alike in together(params):
            chosen = [params[i] for i in alike]
            self.advance_flat(chosen, [inputs.gradients[i] for i in alike], self.noise_for(chosen, hyper), hyper)

    def advance_flat(
        self, params: list[Tensor], gradients: list[Tensor], noise: list[Tensor] | None, hyper: dict[str, Any]
    ) -> None:
        """Apply `flat_rule` to some tensors of one dtype and device, laid end to end, and write the results back."""
        segments = Segments.of(params)
        states = [[self.state[p][name] for p in params] for name in self.state_names]
        after = self.flat_rule(
            gather(params),
            gather(gradients),
            None if noise is None else gather(noise),
            *(self._flat_state(name, tensors) for name, tensors in zip(self.state_names, states, strict=True)),
            phi=self._phi(params[0]),
            segments=segments,
            **hyper,
        )
        moved, *changed = after
        scatter(moved, params, segments)
        for name, tensors, buffer in zip(self.state_names, states, changed, strict=True):
            scatter(buffer, tensors, [tensor.numel() // self.rows.get(name, 1) for tensor in tensors])

    def keep_roots(self, params: list[Tensor], step: Any) -> None:
        """After a step: make the roots of covariances that the rule has not made for long.

        Raises:
            RuntimeError: inside ``torch.compile``, where nothing can be kept by the step: a parameter has no gradient.
        """
        if torch.compiler.is_compiling():
            if any(p.grad is None for group in self.param_groups for p in group["params"] if p.requires_grad):
                raise RuntimeError(
                    f"{type(self).__name__} whitens, and a parameter has no gradient: take the step outside of "
                    "torch.compile"
                )
        else:
            self.roots.after(int(step), params, (self.state[p]["whitening"] for p in params))

    def bookmark(self) -> Callable[[], None]:
        return self.roots.bookmark()

    def _flat_state(self, name: str, tensors: list[Tensor]) -> Tensor:
        lead = (self.rows[name],) if name in self.rows else ()
        return torch.cat([tensor.reshape(*lead, -1) for tensor in tensors], -1)

    def _phi(self, like: Tensor) -> Phi:
        return [(w.to(like), b.to(like)) for w, b in layers_of(self.network)]

    def initial_state(self, group: dict[str, Any], p: Tensor, name: str) -> Tensor:
        if name == "whitening":
            return initial_whitening(p)
        if name in self.rows:
            return p.new_zeros(self.state_shape(name, p))
        return super().initial_state(group, p, name)

    def state_shape(self, name: str, p: Tensor) -> tuple[int, ...]:
        if name == "whitening":
            return whitening_shape(p.shape)
        return (self.rows[name], *p.shape) if name in self.rows else tuple(p.shape)

    def hyper(self, group: dict[str, Any], *, keep_tensors: bool = False) -> dict[str, Any]:
        return {**super().hyper(group, keep_tensors=keep_tensors), "settings": self.settings}

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
        irregular = self.roots.irregular(self.step_count)
        if irregular:
            saved["sampler"]["roots"] = {i: irregular[p] for _, p, i in self.indexed(saved) if p in irregular}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume bit for bit, as `Sampler.load_state_dict`.

        Raises:
            ValueError: also if the state is of a chain with another network or other settings. Nothing has changed.
        """
        self.validate_saved(state_dict)
        super().load_state_dict(state_dict)
        known = state_dict["sampler"].get("roots", {})
        saved = {p: known[i] for _, p, i in self.indexed(state_dict) if i in known}
        self.roots = RootSteps()
        self.roots.resume(self.step_count, saved, (p for p, own in self.state.items() if "whitening" in own))

    def validate_header(self, header: dict[str, Any]) -> None:
        super().validate_header(header)
        theirs, ours = header.get("network"), self.fingerprint()
        if not isinstance(theirs, dict):
            raise ValueError(f"state_dict does not say which network it is of: network is {theirs!r:.60}")
        saved, own = self.settings.completed(theirs.get("settings", {})), ours["settings"]
        for name in differences(own, saved):
            raise ValueError(
                f"state_dict is of a chain with other settings: {name} is {saved.get(name)!r} there, "
                f"{own.get(name)!r} here: make the sampler with the chain's network= and settings"
            )
        if theirs.get("sha256") != ours["sha256"]:
            raise ValueError(
                f"state_dict is of a chain with another network: sha256 is {theirs.get('sha256')!r} there, "
                f"{ours['sha256']!r} here"
            )

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("network", "settings", "rows", "roots", "card", "_fresh")}
        return {**super().__getstate__(), **own}
