"""Settings of the learned samplers: all that an update needs besides lr, N, temperature, prior and momentum decay.

Each rule has one frozen dataclass, which holds the defaults and the checks. The optimizer's keywords, the inner loop of
meta-training, the measures, the command line and the weight card all read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import nn

from learned_samplers.base.operations import as_number
from learned_samplers.base.settings import setting, settings_of
from learned_samplers.learned.network import Phi, build_network

#: Fields that a card has at its top; the other ones stand under its "scales".
_AT_THE_TOP = ("form", "feature_set")


@dataclass(frozen=True, kw_only=True)
class LearnedSettings:
    """Base class of the settings of learned samplers.

    Raises:
        ValueError, TypeError: a value is out of range or of a wrong type; the message names the setting and the value.
    """

    #: Name of the sampler's class.
    sampler: ClassVar[str]
    #: Widths of the hidden layers of a fresh network.
    hidden: ClassVar[tuple[int, ...]] = (32, 32)
    #: What a last layer of zeros makes of the sampler.
    at_zero: ClassVar[str] = "the update is that of SGHMC"
    #: Settings of before, and the one value that is left of each: cards and states may still name them.
    retired: ClassVar[dict[str, Any]] = {}
    feature_set: str = setting(default="", check=lambda name, value: None)

    @property
    def zero_is_base(self) -> bool:
        """True where a last layer of zeros makes the sampler its hand-designed base, SGHMC."""
        return True

    def __post_init__(self) -> None:
        for name, declared in settings_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, torch.dtype):
                value = str(value).removeprefix("torch.")
            declared.validate(value)
            if isinstance(value, torch.Tensor):
                value = as_number(value)
            if value is not None and not isinstance(value, str) and type(value) not in (int, float, bool):
                value = float(value)
            object.__setattr__(self, name, value)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the settings that this sampler has."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def current(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings of a card or a saved state without those that are retired.

        Raises:
            ValueError: a retired setting has another value than the one that is left.
        """
        for name, value in cls.retired.items():
            if values.get(name, value) not in (value, None):
                raise ValueError(f"{name}={values[name]!r} of {cls.sampler} is no longer offered; {value!r} is left")
        return {name: value for name, value in values.items() if name not in cls.retired}

    @classmethod
    def asked(cls, settings: Any, **keywords: Any) -> dict[str, Any]:
        """Return the settings that a sampler's ``settings=`` and keywords ask for; a keyword None asks for nothing.

        Args:
            settings: None, a dict of some settings (the card's and the defaults are the others), or all of them in an
                instance of this class.

        Raises:
            ValueError, TypeError: ``settings`` is something else, or a setting is named twice; see also `given`.
        """
        keywords = {name: value for name, value in keywords.items() if value is not None}
        if settings is None:
            named: dict[str, Any] = {}
        elif isinstance(settings, cls):
            named = settings.as_dict()
        elif isinstance(settings, dict):
            named = settings
            for name in named:
                if name not in cls.names():
                    raise ValueError(f"settings: {name} does not belong to {cls.sampler}, got {named[name]!r}")
        else:
            raise TypeError(f"settings must be {cls.__name__} or a dict, got {type(settings).__name__}")
        for name, value in keywords.items():
            if name in named:
                raise ValueError(f"{name}={value!r} cannot be given beside settings=, which has a {name} of its own")
        if not isinstance(settings, cls):
            # Form and features are checked before the file of the weights is read.
            cls.given(**{name: named.get(name, keywords.get(name)) for name in _AT_THE_TOP if name in cls.names()})
        return {**named, **keywords}

    @classmethod
    def given(cls, **values: Any) -> Self:
        """Settings from those values that are not None, and the defaults.

        Raises:
            ValueError: a value was given for a setting that this sampler does not have, or see the class.
        """
        chosen = {name: value for name, value in values.items() if value is not None}
        for name, value in chosen.items():
            if name not in cls.names():
                raise ValueError(f"{name} does not belong to {cls.sampler}, got {value!r}")
        return cls(**chosen)

    @classmethod
    def from_card(cls, card: dict[str, Any], **values: Any) -> Self:
        """Settings as given (None: not given), else as in the card of the weights ({}: no card), else the defaults.

        Raises:
            ValueError, TypeError: as `given`.
        """
        named = cls.current({name: card[name] for name in _AT_THE_TOP if name in card} | card.get("scales", {}))
        not_in_card = {name for name, declared in settings_of(cls).items() if not declared.in_card}
        of_a_run = not_in_card & set(card.get("scales", {}))
        if of_a_run:
            raise ValueError(f"the card's scales hold {', '.join(sorted(of_a_run))}, which belong to a run")
        chosen = {name: value for name, value in values.items() if value is not None}
        return cls.given(**{**named, **chosen})

    def to_card(self) -> dict[str, Any]:
        """The fields of a weight card that say how the network is used: which sampler, inputs and scales."""
        declared = settings_of(type(self))
        scales = {name: getattr(self, name) for name, setting in declared.items() if setting.in_card}
        top = {name: scales.pop(name) for name in _AT_THE_TOP if name in scales}
        return {"sampler": self.sampler, **top, "features": list(self.features), "scales": scales}

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, for state dicts and checkpoints."""
        return asdict(self)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the network's inputs, in order."""
        raise NotImplementedError

    @property
    def outputs(self) -> int:
        """Number of the network's outputs."""
        return 2

    def fresh_network(
        self, hidden: Sequence[int] | None = None, *, generator: torch.Generator | None = None
    ) -> nn.Sequential:
        """An untrained network, whose last layer is zero where that makes the sampler its hand-designed base."""
        return build_network(
            len(self.features),
            self.hidden if hidden is None else hidden,
            self.outputs,
            zero_last=self.zero_is_base,
            generator=generator,
        )

    def check_network(self, phi: Phi) -> None:
        """Raise ValueError unless the network has the inputs and outputs that the update needs."""
        into, out = phi[0][0].shape[-1], phi[-1][0].shape[-2]
        if (into, out) != (len(self.features), self.outputs):
            raise ValueError(
                f"network must take {len(self.features)} features ({self.feature_set!r}) and give {self.outputs} "
                f"outputs, got {into} and {out}"
            )


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names in which two dicts of settings differ, in order."""
    return [name for name in (*ours, *(name for name in theirs if name not in ours)) if _differ(name, ours, theirs)]


def _differ(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return name not in ours or name not in theirs or ours[name] != theirs[name]
