"""Says once when samples are kept at a learning rate at which a chain hardly moves."""

from __future__ import annotations

import warnings
from typing import Any

#: Below this share of the largest learning rate of a kept sample, samples are near copies of each other.
SHARE = 0.01


class LearningRates:
    """The largest learning rate at which a collector has kept a sample."""

    def __init__(self) -> None:
        self._largest, self._said = 0.0, False

    def keep(self, sampler: Any, step: int) -> None:
        """Take note of a kept sample; warn, once, if the learning rate has fallen far below that of others."""
        # A cyclical schedule means to fall, and goes up again; draws from a Gaussian do not depend on the rate.
        if self._said or getattr(sampler, "schedule", None) is not None or hasattr(sampler, "sampled_params"):
            return
        present = max((float(group["lr"]) for group in sampler.param_groups if "lr" in group), default=0.0)
        self._largest = max(self._largest, present)
        if present < SHARE * self._largest:
            self._said = True
            warnings.warn(
                f"the sample of step {step} was kept at lr={present:.3g}, and others at up to {self._largest:.3g}: at "
                "so small a learning rate samples are near copies of each other. End the schedule above 0, detach() "
                "before, or use CyclicalSchedule",
                stacklevel=2,
            )
