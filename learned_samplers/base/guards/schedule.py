"""A cyclical schedule and its sampler keep step: no step at the learning rate or temperature of another one."""

from __future__ import annotations

from learned_samplers.base.protocol import Chain


def keep_step(sampler: Chain) -> None:
    """Before a step of a sampler that has a `CyclicalSchedule`, or had one when its state was saved.

    Raises:
        RuntimeError: the schedule has not followed the last step, or there is none any more.
    """
    if sampler.schedule is None:
        raise RuntimeError(
            f"the lr and temperature of {type(sampler).__name__}, from a saved state, are those of one step of a "
            "CyclicalSchedule, and none is attached: make one, or set both and delete the groups' 'peak_lr' and "
            "'sampling_temperature'"
        )
    sampler.schedule.validate()
