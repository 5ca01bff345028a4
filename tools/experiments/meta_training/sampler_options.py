"""The options of `meta_train.py` that say what is meta-trained."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.sampler import REGISTRY
from meta_tasks.rules.gate import L2EGateRule
from meta_tasks.rules.learned import LEARNED_RULES, NetworkRule
from meta_tasks.rules.linear import L2ELinearRule


def check_positive(name: str, values: Sequence[float], most: float = math.inf) -> None:
    """Raise ValueError unless the option's values are finite, greater than 0 and at most ``most``."""
    for value in values:
        if not (0 < value <= most and math.isfinite(value)):
            bound = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"{name} must be greater than 0{bound}, got {value}")


def _of_all_samplers() -> type[Any]:
    """A dataclass with the settings of every learned sampler, all of them None: at the sampler's own default."""
    found: dict[str, Any] = {}
    for each in REGISTRY.values():
        kinds = typing.get_type_hints(each.settings_class)
        for name, one in ((one.name, one) for one in fields(each.settings_class)):
            owners = [owner for owner, other in REGISTRY.items() if name in other.settings_class.names()]
            text = f"{one.metadata['doc']} Of {', '.join(owners)}; by default the sampler's own.".strip()
            kind = Annotated[typing.Optional[kinds[name]], tyro.conf.arg(help=text)]  # type: ignore[valid-type]  # noqa: UP045
            found.setdefault(name, (name, kind, field(default=None)))
    return make_dataclass("SettingOptions", found.values(), frozen=True)


if typing.TYPE_CHECKING:
    SettingOptions: typing.TypeAlias = Any
    SamplerName: typing.TypeAlias = str
else:
    SamplerName = Literal[*REGISTRY]
    #: The settings of every learned sampler as options; a sampler refuses those that it does not have.
    SettingOptions = _of_all_samplers()


@dataclass(frozen=True)
class SamplerOptions:
    """What is meta-trained."""

    # Sampler to meta-train.
    sampler: SamplerName = "L2E"
    # Widths of its network's hidden layers; by default the sampler's own. (Of MetaSGMCMC, of each of its two networks.)
    hidden: tuple[int, ...] | None = None
    # Its settings.
    scales: Annotated[SettingOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=lambda: SettingOptions())
    # L2E and ScaleAdaptedL2E only: start at β = −gain·feature instead of at SGHMC (residual form) or at random (paper
    # form).
    start_feature: str | None = None
    # Gain of --start-feature; by default 1.
    start_gain: float | None = None
    # L2E, PrecondL2E and ScaleAdaptedL2E only: start from a weight file of this sampler and form (ScaleAdaptedL2E also
    # from one of L2E), for a second stage of training. The new network may have more features and units; these start
    # without effect.
    start_weights: Path | None = None
    # L2E only: learn nothing but a gate on the network of this weight file, which says how far each tensor moves by its
    # size, its magnitudes, N, and how much of the run is over; 16 meta-parameters. The network's settings and its
    # hidden layers are those of the file.
    gate_of: Path | None = None
    # L2E only: learn nothing but which features of a weight to move along, and a gate; some thirty meta-parameters, a
    # dozen with --normalise-output True, which goes without the gate. It starts at --start-feature, or at
    # --start-weights that were learned so from the same feature.
    linear: bool = False
    # With --linear: what a unit of the direction's meta-parameters is worth beside the gate's; by default .3. A larger
    # one leaves the start's direction sooner.
    direction_share: float | None = None
    # With --linear and --normalise-output True: what each component of the direction loses after each iteration (try
    # .01), so that features whose meta-gradient is noise drop out of it.
    direction_sparsity: float | None = None
    # With --linear: features that the direction leaves out, such as parameter: to go along the weight itself changes
    # the prior, and short runs do not show what that does to long ones.
    direction_without: tuple[str, ...] = ()
    # L2E and PrecondL2E with a feature set that sees the progress of the run ("lean", "adaptive_run", "matrix"): share
    # of the tasks in which the network is told the number of steps.
    tell_horizon: float | None = None

    def make(self) -> NetworkRule:
        """The rule.

        Raises:
            ValueError, TypeError, FileNotFoundError, ModuleNotFoundError: there is no such rule, or no such start.
        """
        check_positive("hidden", self.hidden or ())
        if self.start_feature is not None and self.start_weights is not None and not self.linear:
            raise ValueError(f"start_feature={self.start_feature} and start_weights={self.start_weights}: choose one")
        only = {
            "L2E": ("start_feature", "start_gain", "start_weights", "tell_horizon", "gate_of", "linear"),
            "PrecondL2E": ("start_weights", "tell_horizon"),
            "ScaleAdaptedL2E": ("start_feature", "start_gain", "start_weights"),
        }
        for name in only["L2E"]:
            value = getattr(self, name)
            if value is not None and value is not False and name not in only.get(self.sampler, ()):
                raise ValueError(f"{name}={value} does not belong to {self.sampler}")
        if self.start_feature is None and self.start_gain is not None:
            raise ValueError(f"start_gain={self.start_gain} needs a start_feature")
        given = {each.name: getattr(self.scales, each.name) for each in fields(self.scales)}
        if self.direction_share is not None and not self.linear:
            raise ValueError(f"direction_share={self.direction_share} needs linear")
        if self.direction_sparsity is not None and not self.linear:
            raise ValueError(f"direction_sparsity={self.direction_sparsity} needs linear")
        if self.direction_without and not self.linear:
            raise ValueError(f"direction_without={self.direction_without} needs linear")
        if self.linear:
            return self._make_linear(given)
        if self.gate_of is not None:
            return self._make_gate({**given, "hidden": self.hidden})
        rule = LEARNED_RULES[self.sampler]
        settings = REGISTRY[self.sampler].settings_class.given(**given)
        start: dict[str, Any] = {} if self.tell_horizon is None else {"tell_horizon": self.tell_horizon}
        if self.start_weights is not None:
            start["start"] = self.start_weights
        elif self.start_feature is not None:
            start["start"] = (self.start_feature, 1.0 if self.start_gain is None else self.start_gain)
        return rule(hidden=self.hidden, settings=settings, **start)

    def _make_linear(self, given: dict[str, Any]) -> NetworkRule:
        for name, value in {"hidden": self.hidden, "gate_of": self.gate_of}.items():
            if value is not None:
                raise ValueError(f"{name}={value} cannot be given beside linear")
        if self.start_feature is None:
            raise ValueError("linear needs a start_feature")
        gain = 1.0 if self.start_gain is None else self.start_gain
        settings = L2ESettings.given(**given)
        own: dict[str, Any] = {"tell_horizon": self.tell_horizon or 0.0, "origin": self.start_weights}
        own |= {"without": self.direction_without, "sparsity": self.direction_sparsity or 0.0}
        if self.direction_share is not None:
            own["direction_share"] = self.direction_share
        return L2ELinearRule(self.start_feature, gain, settings=settings, **own)

    def _make_gate(self, others: dict[str, Any]) -> NetworkRule:
        starts = {"start_weights": self.start_weights, "start_feature": self.start_feature}
        for name, value in {**others, **starts}.items():
            if value is not None and name != "feature_set":
                raise ValueError(f"{name}={value} cannot be given beside gate_of={self.gate_of}, which has its own")
        assert self.gate_of is not None
        own = {"feature_set": others["feature_set"]} if others["feature_set"] else {}
        return L2EGateRule(self.gate_of, tell_horizon=self.tell_horizon or 0.0, **own)
