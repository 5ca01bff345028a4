"""L2E in the paper's form as 15 numbers: β linear in the nine features, and its gain in five root mean squares.

Its step is compiled (a tenth of the time of torch's operations, which were half of an iteration): needs g++.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learned_samplers.base.segments import Segments
from learned_samplers.learned.feature_sets import AVERAGE_DECAYS, FEATURE_SETS
from learned_samplers.learned.features import FLOOR, LOG_SCALE, SMALL, TINY
from meta_tasks.rules.base import MemberStep, SamplerRule, State

START = 5.0  # β = START·r̂ at the start.
LARGEST_GAIN = 3.0  # bound on the logarithm of the gain
COHERENCES = (0.9, 0.99)

Prepared = tuple[Tensor, Tensor]


class LeanRule(SamplerRule):
    """Eq. 6 of the L2E paper with α = 0 and, x̂ the nine features of its feature set "paper",

        β = START·(r̂ + w·x̂)·exp(c·y + c₀),

    where y are of a tensor: ¼ of the logarithms of ‖ε·N·g‖, ‖θ‖, ‖r‖ (root mean squares) and of the gradient's
    coherence at d = 0.9 and 0.99, as the set "adaptive" has them. The meta-parameters are (w, c, c₀), zero at the
    start, where β is the gradient of a kinetic energy and the sampler has a law.
    """

    name = "LeanL2E"
    #: g, θ, r and the averages of g, in one tensor (P, 9, d).
    state_names = ("rows",)
    names = (
        *FEATURE_SETS["paper"].names,
        *(f"gain {name}" for name in ("kick", "parameter", "momentum", *(f"coherence {d}" for d in COHERENCES))),
        "gain",
    )
    num_weights = len(names)
    by_member = True

    def specification(self) -> dict[str, Any]:
        return {**super().specification(), "start": START, "names": list(self.names)}

    def prepare(self, weights: Tensor) -> Prepared:
        """Weights of the features (P, 9), and of the gain (P, 6)."""
        begun = torch.zeros(9)
        begun[2] = 1.0
        return START * (begun + weights[:, :9]), weights[:, 9:].contiguous()

    def initial_state(self, parameter: Tensor, segments: Segments) -> State:
        return (parameter.new_zeros(len(parameter), 9, segments.total),)

    def update(self, prepared: Prepared, at: MemberStep) -> tuple[Tensor, State]:
        """Take one step in place, see `SamplerRule.update`; β at the new momentum differs in what hangs on r alone."""
        (rows,), theta, hyper = at.state, at.parameter, at.hyper
        assert at.noise is not None
        of_member = (hyper.lr, hyper.num_data, hyper.prior_precision, hyper.temperature)
        settings = torch.empty(len(theta), 4)
        for column, value in zip(settings.unbind(1), of_member, strict=True):
            column.copy_(value.squeeze(1)) if isinstance(value, Tensor) else column.fill_(value)
        sizes = map(ctypes.c_long, (len(theta), at.segments.total, len(at.segments.lengths)))
        edges = (ctypes.c_long * len(at.segments.edges))(*at.segments.edges)
        tensors = (settings, *prepared, rows, theta, at.gradient, at.noise)
        if not all(x.dtype == torch.float32 and x.is_contiguous() for x in tensors):
            raise ValueError("LeanRule takes contiguous float32 tensors")
        addresses = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
        constants = ctypes.byref(Constants.of(hyper.momentum_decay))
        library().lean_step(constants, *sizes, edges, ctypes.c_long(at.step), *addresses)
        return theta, (rows,)


class Constants(ctypes.Structure):
    """Those of lean_rule.cpp."""

    _fields_ = [
        *((name, ctypes.c_float) for name in ("momentum_decay", "largest_gain", "log_scale")),
        *((name, ctypes.c_float) for name in ("floor", "small", "tiny")),
        ("shares", ctypes.c_float * 6),
        ("coherences", ctypes.c_float * 2),
        ("rows", ctypes.c_int * 2),
    ]

    @classmethod
    @cache
    def of(cls, momentum_decay: float) -> Constants:
        shares = (ctypes.c_float * 6)(*(1 - d for d in AVERAGE_DECAYS))
        rows = (ctypes.c_int * 2)(*(3 + AVERAGE_DECAYS.index(d) for d in COHERENCES))
        numbers = (momentum_decay, LARGEST_GAIN, 0.5 * LOG_SCALE, FLOOR, SMALL, TINY)
        return cls(*numbers, shares, (ctypes.c_float * 2)(*COHERENCES), rows)


@cache
def library() -> ctypes.CDLL:
    """lean_rule.cpp, compiled once a process."""
    path = Path(tempfile.mkdtemp()) / "lean_rule.so"
    source = Path(__file__).with_suffix(".cpp")
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))
