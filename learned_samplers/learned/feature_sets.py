"""The named sets of features that the networks of L2E and its kin may see; `learned.features` computes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from learned_samplers.base.operations import scalar_log10

#: d of the running averages m ← d·m + (1−d)·g that the network sees (Appendix I.1 of the paper).
AVERAGE_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
#: d of the running averages v ← d·v + (1−d)·g² of an adaptive set.
_SECOND_MOMENT_DECAYS = (0.99, 0.999)
#: d of the averages whose ratios to √v̂ an adaptive set has; the first one is also what the matrix direction is made of.
_RATIO_DECAYS = (0.9, 0.99)

#: d of the averages whose length beside the gradient's is in the context: the gradient-to-noise ratio.
COHERENCE_DECAYS = (0.9, 0.99, 0.999)


@dataclass(frozen=True)
class FeatureSet:
    """A named choice of features; weights are bound to the name, so a name's meaning never changes.

    The rows are: g, θ, r, the running averages of g, each divided by its root mean square over the tensor; the matrix
    direction; those that are made coordinate by coordinate, ratios of gradient and averages to √v̂ and logarithms of √v̂;
    then ``context``, one value a tensor.
    """

    name: str
    #: Whether second moments are kept, adaptive rows made of them, and there is a context.
    adaptive: bool = False
    #: Whether there is the matrix direction, the momentum of each matrix whitened and
    #: made orthogonal, and whether the context tells the run's progress and what is a matrix.
    matrix: bool = False
    #: τ of the features t/(t + τ) of the context.
    times: tuple[int, ...] = ()

    context: tuple[str, ...] = field(init=False)
    average_decays: tuple[float, ...] = field(init=False, default=AVERAGE_DECAYS)
    #: d of v, kept after the averages of g.
    second_moment_decays: tuple[float, ...] = field(init=False)
    ratio_decays: tuple[float, ...] = field(init=False, default=_RATIO_DECAYS)
    #: Running averages that the rule keeps for each coordinate.
    num_averages: int = field(init=False)
    #: A name for each feature, in order.
    names: tuple[str, ...] = field(init=False)
    #: F, the number of features.
    size: int = field(init=False)
    #: Whether the network is told how much of the run is over, where that is known.
    sees_progress: bool = field(init=False)

    def __post_init__(self) -> None:
        seconds = _SECOND_MOMENT_DECAYS if self.adaptive else ()
        raw = ("gradient", "parameter", "momentum", *(f"average_{d:g}" for d in AVERAGE_DECAYS))
        ratios = ("gradient_to_rms", *(f"average_{d:g}_to_rms" for d in _RATIO_DECAYS)) if self.adaptive else ()
        logs, matrix = tuple(f"log_rms_{d:g}" for d in seconds), ("matrix_direction",) * self.matrix
        context: tuple[str, ...] = ()
        if self.adaptive:
            context = ("log_kick", "log_parameter", "log_momentum", "log_displacement")
            context += (*(f"log_coherence_{d:g}" for d in COHERENCE_DECAYS), "log_size")
            context += (*(f"time_{time}" for time in self.times), "log_data")
            context += ("progress", "has_total", "is_matrix") if self.matrix else ()
        names = (*raw, *matrix, *ratios, *logs, *context)
        own = {
            "context": context,
            "second_moment_decays": seconds,
            "num_averages": len(AVERAGE_DECAYS) + len(seconds),
            "names": names,
            "size": len(names),
            "sees_progress": self.matrix,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)


FEATURE_SETS: dict[str, FeatureSet] = {
    each.name: each
    for each in (
        FeatureSet("paper"),
        FeatureSet("adaptive", adaptive=True, times=(10, 100, 1000)),
        FeatureSet("matrix", adaptive=True, matrix=True, times=(10, 100, 1000, 10000)),
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


# Logarithms are flat below these mean squares, so that a dead tensor gives a finite feature: of gradients, whose scale
# is unknown, and of dimensionless quantities and parameters.
TINY, SMALL = 1e-16, 1e-8
#: Brings natural logarithms of magnitudes to the scale of the other features.
LOG_SCALE = 0.25


def logarithms(named: FeatureSet, squares: Any, momentum: Any, *, lr: Any, num_data: Any, time: Any) -> list[Any]:
    """Squares whose logarithm, times ½·`LOG_SCALE`, is in the context: (..., 1, S) each, of tensors or of arrays.

    Args:
        squares: means over each tensor of the squares of g, θ and the averages of g, (..., 2 + K, S).
        momentum: that of r, (..., 1, S).
        time: updates done, with this one.
    """
    gradient, parameter = squares[..., :1, :], squares[..., 1:2, :]
    found = [
        gradient * (lr * num_data) + SMALL,
        parameter + SMALL,
        momentum + SMALL,
        (momentum * (lr / num_data) + SMALL**2) / (parameter + SMALL),
    ]
    for d in COHERENCE_DECAYS:
        i = 2 + named.average_decays.index(d)
        found.append((squares[..., i : i + 1, :] / (1 - d**time) ** 2 + TINY) / (gradient + TINY))
    return found


def constants(named: FeatureSet, *, num_data: Any, time: Any, total_steps: int | None) -> list[Any]:
    """The features of the context that are the same for all tensors, between those of its size and its shape."""
    # 0 at a thousand training points, 1 at a million.
    found = [*[time / (time + each) for each in named.times], scalar_log10(num_data) / 3 - 1]
    if named.matrix:  # the share of the run that is over before its ``time``-th step, and whether it has an end
        share = 0.0 if total_steps is None else min((time - 1) / total_steps, 1.0)
        found += [share, float(total_steps is not None)]
    return found
