"""Where runs were made, the device and torch's threads: times of different places cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from experiments.harness.devices import device_name
from experiments.harness.output import counted
from experiments.images.result import Result

#: A device's name, and torch's threads on it; None in the runs of before these were noted.
Place = tuple[str | None, int | None]


def here(device: torch.device) -> tuple[str, int]:
    """The place of this process."""
    return device_name(str(device)), torch.get_num_threads()


def place_of(result: Result) -> Place:
    """Where a run was made."""
    return result.device, result.threads


def places_line(places: Mapping[str, Iterable[Place]]) -> str | None:
    """A line of Markdown that says which methods ran where; None where all known places are one.

    Args:
        places: what a table calls a method → the places of its runs.
    """
    methods: dict[Place, dict[str, None]] = {}
    for label, each in places.items():
        for place in each:
            if None not in place:
                methods.setdefault(place, {})[label] = None
    if len(methods) < 2:
        return None
    parts = [f"{_text(place)} ({', '.join(labels)})" for place, labels in methods.items()]
    return f"- **Seconds are not alike**, the runs were made in different places: {'; '.join(parts)}."


def check_equal_time(device: torch.device, results: Iterable[Result]) -> None:
    """Refuse runs at equal time beside runs of another place.

    Raises:
        ValueError: by name, with both places.
    """
    now = here(device)
    for result in results:
        if None not in (there := place_of(result)) and there != now:
            raise ValueError(
                f"equal_time=True compares times, and {result.name} ran on {_text(there)}, this process runs on "
                f"{_text(now)}: take the same --device and --threads, or --fresh"
            )


def _text(place: Place) -> str:
    name, threads = place
    return f"{name} with {counted(threads or 0, 'thread')}"
