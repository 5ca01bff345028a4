"""Warnings, each given once, of a chain whose samples are not worth keeping: near copies, or far from the posterior."""

from __future__ import annotations

import warnings

from torch.optim import Optimizer

from learned_samplers.base.warning import Once

#: Below this share of the largest learning rate of a kept sample, samples are near copies of each other.
VANISHING = 0.01
#: Times T, or 1: a kinetic temperature that no chain near its posterior has; minibatches rarely heat it so far.
RUNAWAY = 30.0


class Watch:
    """Looks at a sampler whenever a sample is kept, and warns once of either fault."""

    def __init__(self) -> None:
        self._largest_rate = 0.0
        self._warns_of_rate, self._warns_of_heat = Once(), Once()

    def kept(self, sampler: Optimizer, step: int, number: int) -> None:
        """The ``number``-th state of a chain was kept at ``step``."""
        if not self._warns_of_rate.is_over:
            self._rate(sampler, step)
        # The 1st, 2nd, 4th, ...: it costs a pass over the momenta.
        if not self._warns_of_heat.is_over and number.bit_count() == 1:
            self._heat(sampler, step)

    def _rate(self, sampler: Optimizer, step: int) -> None:
        # A cyclical schedule means to fall, and goes up again; draws from a Gaussian do not depend on the rate.
        if getattr(sampler, "schedule", None) is not None or hasattr(sampler, "sampled_params"):
            return
        present = max((float(group["lr"]) for group in sampler.param_groups if "lr" in group), default=0.0)
        self._largest_rate = max(self._largest_rate, present)
        if present < VANISHING * self._largest_rate and self._warns_of_rate():
            warnings.warn(
                f"the sample of step {step} was kept at lr={present:.3g}, and others at up to {self._largest_rate:.3g}:"
                " at so small a learning rate samples are near copies of each other. End the schedule above 0, "
                "detach() before, or use CyclicalSchedule",
                stacklevel=3,
            )

    def _heat(self, sampler: Optimizer, step: int) -> None:
        temperatures = getattr(sampler, "temperatures", None)
        if temperatures is None:
            return
        for measured, group in zip(temperatures(), sampler.param_groups, strict=True):
            kinetic, asked = measured["kinetic"], float(group["temperature"])
            if kinetic > RUNAWAY * max(asked, 1.0) and self._warns_of_heat():
                warnings.warn(
                    f"the sample of step {step} was kept at a kinetic temperature of {kinetic:.3g}, where "
                    f"temperature={asked:g} was asked for: it is no sample of the posterior. Usual causes: "
                    "too short a burn_in, no zero_grad() between steps, a loss that is a sum, step() without the "
                    "GradScaler's, or an lr so large that minibatches heat the chain",
                    stacklevel=3,
                )
                return
