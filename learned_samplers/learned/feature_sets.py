"""The named sets of features that a network may see of each weight of a chain.

- "paper": g, θ, r and six running averages of g, each x·rsqrt(1e-5 + mean x²) with the mean over the tensor (the paper
  says "l2 norm 1"; the published code does this). The magnitudes are lost. The richer sets give them back
  (t = step + 1, ε = √(lr/N), ‖·‖ root mean square over the tensor):
- "adaptive": also, with v̂ the bias-corrected average of g² at d = 0.99: g/√v̂, m_.9/√v̂ and m_.99/√v̂ (bias-corrected,
  held to ±8), and ¼·log(√v̂/‖√v̂‖) at d = 0.99 and 0.999, coordinate by coordinate. Constant over a tensor: ¼ of
  log‖ε·N·g‖ (the kick, in units of the momentum), of log‖θ‖, log‖r‖ and log(ε‖r‖/‖θ‖), and of the coherence
  log(‖m_d‖/((1−dᵗ)·‖g‖)) at d = 0.9, 0.99, 0.999 (½·log((1−d)/(1+d)) is pure noise: the gradient-to-noise ratio);
  log₁₀(size)/3 − 1; t/(t+τ) at τ = 10, 100, 1000; log₁₀(N)/3 − 1.
- "matrix": also the matrix direction, the momentum of each matrix whitened and made orthogonal
  (`learned_samplers.base.matrices.directions`), before the adaptive rows; and constant over a tensor t/(t+τ) at
  τ = 10,000; (t − 1)/``total_steps`` held to 1 ("progress", the share of the run that is over) and 1 ("has_total"), or
  0 and 0 where the length of the run is not known; 1 for a matrix, 0 for another tensor ("is_matrix").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

#: d of the running averages m ← d·m + (1−d)·g that the network sees (Appendix I.1 of the paper).
AVERAGE_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
#: d of the running averages v ← d·v + (1−d)·g² of an adaptive set.
_SECOND_MOMENT_DECAYS = (0.99, 0.999)
#: d of the averages whose ratios to √v̂ an adaptive set has; the matrix direction is made of the first average.
RATIO_DECAYS = (0.9, 0.99)
#: d of the averages whose length beside the gradient's is in the context: the gradient-to-noise ratio.
COHERENCE_DECAYS = (0.9, 0.99, 0.999)


@dataclass(frozen=True)
class FeatureSet:
    """A named choice of features; weights are bound to the name, so a name's meaning never changes.

    The rows are: g, θ, r, the running averages of g, each divided by its root mean square over the tensor; the matrix
    direction; the adaptive rows, made coordinate by coordinate: ratios of gradient and averages to √v̂, logarithms of
    √v̂; then ``context``, one value a tensor.
    """

    name: str
    #: Whether second moments are kept, adaptive rows made of them, and there is a context.
    adaptive: bool = False
    #: Whether there is the matrix direction, the momentum of each matrix whitened and
    #: made orthogonal, and whether the context tells the run's progress and what is a matrix.
    matrix: bool = False
    #: τ of the features t/(t + τ) of the context.
    times: tuple[int, ...] = ()

    @property
    def num_averages(self) -> int:
        """Running averages that the rule keeps for each coordinate."""
        return len(AVERAGE_DECAYS) + len(self.second_moment_decays)

    @property
    def size(self) -> int:
        """F, the number of features."""
        return len(self.names)

    @cached_property
    def second_moment_decays(self) -> tuple[float, ...]:
        """d of v, whose averages stand after those of g."""
        return _SECOND_MOMENT_DECAYS if self.adaptive else ()

    @cached_property
    def context(self) -> tuple[str, ...]:
        """Names of the features with one value a tensor."""
        if not self.adaptive:
            return ()
        magnitudes = ("log_kick", "log_parameter", "log_momentum", "log_displacement")
        coherences, times = (f"log_coherence_{d:g}" for d in COHERENCE_DECAYS), (f"time_{time}" for time in self.times)
        of_matrices = ("progress", "has_total", "is_matrix") if self.matrix else ()
        return (*magnitudes, *coherences, "log_size", *times, "log_data", *of_matrices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A name for each feature, in order."""
        raw = ("gradient", "parameter", "momentum", *(f"average_{d:g}" for d in AVERAGE_DECAYS))
        ratios = ("gradient_to_rms", *(f"average_{d:g}_to_rms" for d in RATIO_DECAYS)) if self.adaptive else ()
        logs = (f"log_rms_{d:g}" for d in self.second_moment_decays)
        return (*raw, *("matrix_direction",) * self.matrix, *ratios, *logs, *self.context)


FEATURE_SETS: dict[str, FeatureSet] = {
    feature_set.name: feature_set
    for feature_set in (
        FeatureSet("paper"),
        FeatureSet("adaptive", adaptive=True, times=(10, 100, 1000)),
        FeatureSet("matrix", adaptive=True, matrix=True, times=(10, 100, 1000, 10000)),
    )
}


def feature_set_named(name: str | FeatureSet) -> FeatureSet:
    """Return the feature set of that name.

    Raises:
        ValueError: there is none.
    """
    if isinstance(name, FeatureSet):
        return name
    if name not in FEATURE_SETS:
        raise ValueError(f"feature_set must be one of {', '.join(map(repr, FEATURE_SETS))}, got {name!r}")
    return FEATURE_SETS[name]
