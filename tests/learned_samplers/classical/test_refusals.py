"""Arguments that one sampler alone has, out of their range: an error that names them."""

from __future__ import annotations

import pytest
import torch

from learned_samplers import (
    HMC,
    MCLMC,
    PSGLD,
    SGHMC,
    SGLRW,
    SGNHT,
    AdaptedSGHMC,
    CyclicalSGMCMC,
    EntropyMCMC,
)

NAN = float("nan")
WARMED, CYCLES = {"warmup_steps": 5}, {"cycle_length": 10}
#: Sampler, arguments that must be there, the argument, a value that it cannot have, the error.
ROWS = [
    (SGHMC, {}, "momentum_decay", 0.0, ValueError),
    (SGHMC, {}, "momentum_decay", 1.1, ValueError),
    (SGHMC, {}, "momentum_decay", -0.1, ValueError),
    (SGHMC, {}, "momentum_init", "ones", ValueError),
    (SGNHT, {}, "momentum_decay", 0.0, ValueError),
    (SGNHT, {}, "thermostat_rate", 0.0, ValueError),
    (SGNHT, {}, "temperature", 0.0, ValueError),
    (PSGLD, {}, "decay", 1.0, ValueError),
    (PSGLD, {}, "eps", 0.0, ValueError),
    (PSGLD, {}, "correction", "full", ValueError),
    (PSGLD, {}, "probe_size", 0, ValueError),
    (CyclicalSGMCMC, {}, "cycle_length", 0, ValueError),
    (CyclicalSGMCMC, {}, "cycle_length", 2.5, TypeError),
    (CyclicalSGMCMC, CYCLES, "exploration_ratio", 1.0, ValueError),
    (CyclicalSGMCMC, {"cycle_length": 2}, "exploration_ratio", 0.9, ValueError),
    (CyclicalSGMCMC, CYCLES, "base", "adam", ValueError),
    (CyclicalSGMCMC, CYCLES, "momentum_decay", 2, ValueError),
    (SGLRW, {}, "temperature", 0.0, ValueError),
    (EntropyMCMC, {}, "guide_variance", 0.0, ValueError),
    (EntropyMCMC, {}, "guide_variance", NAN, ValueError),
    (AdaptedSGHMC, {}, "warmup_steps", -1, ValueError),
    (AdaptedSGHMC, {}, "warmup_steps", 2.0, TypeError),
    (AdaptedSGHMC, WARMED, "warmup_temperature", -1.0, ValueError),
    (AdaptedSGHMC, WARMED, "momentum_decay", 0.0, ValueError),
    (AdaptedSGHMC, WARMED, "decay", 1.0, ValueError),
    (AdaptedSGHMC, WARMED, "eps", 0.0, ValueError),
    (AdaptedSGHMC, WARMED, "integrator", "euler", ValueError),
    (MCLMC, {}, "temperature", 0.0, ValueError),
    (MCLMC, {}, "momentum_decay", 0.0, ValueError),
    (MCLMC, {}, "preconditioner", "adam", ValueError),
    (MCLMC, {}, "energy_target", 0.0, ValueError),
    (HMC, {}, "leapfrog_steps", 0, ValueError),
    (HMC, {}, "adapt_steps", -1, ValueError),
    (HMC, {}, "target_acceptance", 1.0, ValueError),
    (HMC, {}, "step_jitter", 1.0, ValueError),
    (HMC, {}, "temperature", 0.0, ValueError),
]


@pytest.mark.parametrize(("cls", "given", "argument", "value", "error"), ROWS)
def test_own_arguments(cls, given, argument, value, error):
    with pytest.raises(error, match=argument):
        cls([torch.zeros(3, requires_grad=True)], 0.1, 100, **given, **{argument: value})
