"""State of a run in the middle: written every few minutes, read when the same command is given again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def packed(state: Any) -> Any:
    """A state whose symmetric matrices (covariances, masses) are half as large."""
    if isinstance(state, dict):
        return {key: packed(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(packed, state))
    square = isinstance(state, Tensor) and state.ndim > 1 and state.shape[-1] == state.shape[-2]
    if square and torch.equal(state, state.mT):
        side = state.shape[-1]
        rows, columns = torch.triu_indices(side, side)
        return {"triangle": state[..., rows, columns], "side": side}
    return state


def unpacked(state: Any) -> Any:
    """The state that `packed` was given."""
    if isinstance(state, dict) and state.keys() == {"triangle", "side"}:
        triangle, side = state["triangle"], state["side"]
        rows, columns = torch.triu_indices(side, side)
        matrix = triangle.new_empty(*triangle.shape[:-1], side, side)
        matrix[..., rows, columns] = matrix[..., columns, rows] = triangle
        return matrix
    if isinstance(state, dict):
        return {key: unpacked(value) for key, value in state.items()}
    return type(state)(map(unpacked, state)) if isinstance(state, list | tuple) else state


class TimeIsUp(Exception):
    """The minutes of a command are over; the state of its run has been written."""


class Checkpoint:
    """File of a run's state, which is small enough to commit: weights, optimizer, samples so far, random numbers."""

    def __init__(
        self,
        path: Path | None = None,
        made_of: Mapping[str, Any] | None = None,
        minutes: float = 5.0,
        end: float | None = None,
    ) -> None:
        self.path, self.made_of, self.minutes, self.end = path, dict(made_of or {}), minutes, end
        self._written = time.monotonic()
        #: State dicts of the members of an ensemble that are finished.
        self.members: list[dict[str, Any]] = []
        self.state: dict[str, Any] | None = None
        if path is not None and path.is_file():
            saved = torch.load(path, "cpu", weights_only=True)  # it may come from another device
            if saved["made_of"] != self.made_of:
                raise ValueError(f"{path} is the state of a run with other settings; delete it or name another --state")
            self.state, self.members = unpacked(saved["state"]), saved["members"]

    def begin(self, member: int, parts: Mapping[str, Any], device: torch.device) -> int:
        """Restore the parts of a run (or of a member of it) and torch's random numbers; the steps that it has done."""
        state, self.state = self.state, None
        if state is None or state["member"] != member:
            self.state = state
            return 0
        for name, part in parts.items():
            part.load_state_dict(state["parts"][name])
        if state["device"] == device.type:  # another device's noise goes on from the seed
            (torch.set_rng_state if device.type == "cpu" else torch.cuda.set_rng_state)(state["random"])
        return state["step"]

    def keep(self, member: int, step: int, parts: Mapping[str, Any], device: torch.device) -> None:
        """Write the state if it is due."""
        now = time.monotonic()
        over = self.end is not None and now > self.end
        if self.path is not None and (over or now - self._written > 60 * self.minutes):
            random = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state()
            state = {"member": member, "step": step, "device": device.type, "random": random}
            state["parts"] = packed({name: part.state_dict() for name, part in parts.items()})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".part")
            torch.save({"made_of": self.made_of, "state": state, "members": self.members}, partial)
            partial.replace(self.path)
            self._written = now
        if over:
            raise TimeIsUp

    def remove(self) -> None:
        """Delete the file of a run that is finished."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
