"""The particle samplers that the toy problems compare, with their settings in their names."""

from __future__ import annotations

from collections.abc import Callable

from learned_samplers import MOOSVGD, MTSGD
from learned_samplers.particles import MGDA, RBF, LinearScalarisation, ParetoMTL
from learned_samplers.particles.base import ParticleSampler

Maker = Callable[..., ParticleSampler]

#: Name in the tables → what makes the sampler from parameters, lr and base optimizer.
METHODS: dict[str, Maker] = {
    "MTSGD, exact U": MTSGD,
    "MTSGD, code's rule": lambda params, lr, **more: MTSGD(
        params, lr, target_weights="gradients", gradient_normalisation="coordinate", **more
    ),
    "SVGD (equal weights)": lambda params, lr, **more: MTSGD(params, lr, target_weights="equal", **more),
    "MOOSVGD, kernel on losses": MOOSVGD,
    "MOOSVGD, kernel on particles": lambda params, lr, **more: MOOSVGD(params, lr, kernel_on="parameters", **more),
    "MGDA": MGDA,
    "LinearScalarisation": LinearScalarisation,
}
#: On a Pareto front MT-SGD is shown with settings that mend its collapse, and ParetoMTL is a further baseline; with
#: three targets it has no default preferences.
ON_A_FRONT: dict[str, Maker] = {
    "MTSGD, exact U": MTSGD,
    "MTSGD, exact U, scores normalised by particle": lambda params, lr, **more: MTSGD(
        params, lr, gradient_normalisation="particle", **more
    ),
    "MTSGD, exact U, bandwidth 10": lambda params, lr, **more: MTSGD(params, lr, kernel=RBF(10.0), **more),
    "MTSGD, code's rule": METHODS["MTSGD, code's rule"],
    "MTSGD, code's rule, kernel on objectives": lambda params, lr, **more: MTSGD(
        params, lr, target_weights="gradients", gradient_normalisation="coordinate", kernel_on="features", **more
    ),
    **{name: make for name, make in METHODS.items() if not name.startswith("MTSGD")},
    "ParetoMTL": ParetoMTL,
}
