"""The named sets of features that L2E's network may see; `learned_samplers.learned.features` computes them."""

from __future__ import annotations

from dataclasses import dataclass

#: d of the running averages m ← d·m + (1−d)·g that the network sees (Appendix I.1 of the paper).
AVERAGE_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)

#: Directions of whole matrices: the orthogonal factor of momentum, momentum whitened by its inputs' covariance, and the
#: orthogonal factor of that.
WHOLE = ("orthogonal", "whitened", "orthogonal_whitened")


@dataclass(frozen=True)
class FeatureSet:
    """A named choice of features; weights are bound to the name, so a name's meaning never changes.

    Raises:
        ValueError: ``whole`` is unknown, or there is nothing to make it of.

    The rows are: g, θ, r, the running averages of g, each divided by its root mean square over the tensor; then
    ``adaptive`` (one value a coordinate); then ``context`` (one value a tensor).
    """

    name: str
    context: tuple[str, ...] = ()
    #: d of the running averages v ← d·v + (1−d)·g², kept after the averages of g; with any there are adaptive rows.
    second_moment_decays: tuple[float, ...] = ()
    #: d of the running averages m ← d·m + (1−d)·g.
    average_decays: tuple[float, ...] = AVERAGE_DECAYS
    #: d of those averages whose ratios to √v̂ are adaptive rows.
    ratio_decays: tuple[float, ...] = (0.9, 0.99)
    #: What the last adaptive row is of each whole matrix, one of `WHOLE`, or None; the tensors' shapes are needed then.
    whole: str | None = None
    #: d of the average that it is made of.
    whole_decay: float = 0.9
    #: Whether it becomes short where the gradients are small beside the prior's pull, see
    #: `learned_samplers.base.matrices.attenuation`.
    damped: bool = False

    def __post_init__(self) -> None:
        if self.whole is None:
            if self.damped:
                raise ValueError("damped=True is for a row of whole matrices, got whole=None")
            return
        if self.whole not in WHOLE:
            raise ValueError(f"whole must be None or one of {', '.join(map(repr, WHOLE))}, got {self.whole!r}")
        if not self.second_moment_decays or self.whole_decay not in self.average_decays:
            raise ValueError(
                f"whole={self.whole!r} is an adaptive row of the average at {self.whole_decay:g}: it needs second "
                f"moments and that average, got {self.second_moment_decays} and {self.average_decays}"
            )

    @property
    def adaptive(self) -> tuple[str, ...]:
        """Names of the adaptive rows: ratios to √v̂ at the first of ``second_moment_decays``, then logarithms of √v̂,
        then what is made of a whole matrix."""
        if not self.second_moment_decays:
            return ()
        ratios = (f"average_{d:g}_to_rms" for d in self.ratio_decays)
        logs = (f"log_rms_{d:g}" for d in self.second_moment_decays)
        damped = "damped_" if self.damped else ""
        whole = () if self.whole is None else (f"{damped}{self.whole}_{self.whole_decay:g}",)
        return ("gradient_to_rms", *ratios, *logs, *whole)

    @property
    def size(self) -> int:
        """F, the number of features."""
        return 3 + len(self.average_decays) + len(self.adaptive) + len(self.context)

    @property
    def num_averages(self) -> int:
        """Running averages that the rule keeps for each coordinate."""
        return len(self.average_decays) + len(self.second_moment_decays)

    @property
    def whole_average(self) -> int:
        """The row of the averages that it is made of."""
        return self.average_decays.index(self.whole_decay)

    @property
    def whitens(self) -> bool:
        """Whether the rule keeps a covariance of each matrix, see `learned_samplers.base.whitening`."""
        return self.whole in ("whitened", "orthogonal_whitened")

    @property
    def sees_progress(self) -> bool:
        """Whether the network is told how much of the run is over, where that is known."""
        return "progress" in self.context

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each feature, in order."""
        averages = (f"average_{decay:g}" for decay in self.average_decays)
        return ("gradient", "parameter", "momentum", *averages, *self.adaptive, *self.context)


_SECOND_MOMENT_DECAYS = (0.99, 0.999)
_MAGNITUDES = ("log_kick", "log_parameter", "log_momentum", "log_displacement")
_COHERENCES = ("log_coherence_0.9", "log_coherence_0.99", "log_coherence_0.999")
_CONTEXT = (*_MAGNITUDES, *_COHERENCES, "log_size", "time_10", "time_100", "time_1000")
_RUN = ("time_10", "time_100", "time_1000", "time_10000", "log_data", "progress", "has_total")
_RUN_CONTEXT = (*_MAGNITUDES, *_COHERENCES, "log_size", *_RUN)

FEATURE_SETS: dict[str, FeatureSet] = {
    each.name: each
    for each in (
        FeatureSet("paper"),
        FeatureSet("scaled", context=_CONTEXT),
        FeatureSet("adaptive", _CONTEXT, _SECOND_MOMENT_DECAYS),
        FeatureSet("adaptive_data", (*_CONTEXT, "log_data"), _SECOND_MOMENT_DECAYS),
        FeatureSet("adaptive_run", _RUN_CONTEXT, _SECOND_MOMENT_DECAYS),
        FeatureSet("matrix", (*_RUN_CONTEXT, "is_matrix"), _SECOND_MOMENT_DECAYS, whole="orthogonal"),
        FeatureSet("whitened", (*_RUN_CONTEXT, "is_matrix"), _SECOND_MOMENT_DECAYS, whole="whitened"),
        FeatureSet(
            "orthogonal_whitened", (*_RUN_CONTEXT, "is_matrix"), _SECOND_MOMENT_DECAYS, whole="orthogonal_whitened"
        ),
        FeatureSet(
            "damped_orthogonal_whitened",
            (*_RUN_CONTEXT, "is_matrix"),
            _SECOND_MOMENT_DECAYS,
            whole="orthogonal_whitened",
            damped=True,
        ),
        FeatureSet("lean", _RUN_CONTEXT, (0.99,), (0.9, 0.99, 0.999), ratio_decays=(0.9, 0.99, 0.999)),
    )
}


def feature_set_named(name: str | FeatureSet) -> FeatureSet:
    """The feature set of that name.

    Raises:
        ValueError: there is none.
    """
    if isinstance(name, FeatureSet):
        return name
    if name not in FEATURE_SETS:
        raise ValueError(f"feature_set must be one of {', '.join(map(repr, FEATURE_SETS))}, got {name!r}")
    return FEATURE_SETS[name]


def check_total_steps(total_steps: int | None, feature_set: str) -> None:
    """Raise ValueError where a run's length is given to a network that cannot see it."""
    if total_steps is not None and not feature_set_named(feature_set).sees_progress:
        serving = ", ".join(repr(name) for name, each in FEATURE_SETS.items() if each.sees_progress)
        raise ValueError(
            f"total_steps is for a feature set with the progress of the run ({serving}), got {total_steps} with "
            f"feature_set={feature_set!r}"
        )
