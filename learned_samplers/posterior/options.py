"""The options that all predictions share, and what is refused of them."""

from __future__ import annotations

from typing import Any, TypedDict

from learned_samplers.base import validation
from learned_samplers.posterior.outputs import Noise, Output, OutputFormat


class Options(TypedDict, total=False):
    """The options that all predictions share; see `Predictive.predict`."""

    batch_size: int | None
    sample_chunk: int
    num_samples: int | None
    output: Output
    class_axis: int | None
    noise: Noise
    select: int | str | None
    vectorize: bool | None
    targets: bool | None


#: Their values where they are left out.
DEFAULTS: Options = {
    "batch_size": 256,
    "sample_chunk": 8,
    "num_samples": None,
    "output": "softmax",
    "class_axis": None,
    "noise": None,
    "select": None,
    "vectorize": None,
    "targets": None,
}


def validated(options: Options, held: int) -> tuple[OutputFormat, Options]:
    """Return the meaning of the output, and all options with their values.

    Args:
        options: as the user gave them.
        held: the number of samples of the collection.

    Raises:
        TypeError, ValueError: an option that is unknown or cannot be used, by name.
    """
    unknown = set(options) - set(DEFAULTS)
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}; there are {', '.join(DEFAULTS)}")
    complete: Any = {**DEFAULTS, **options}
    count = complete["num_samples"]
    if count is not None:
        validation.integer("num_samples", count)
        if count > held:
            raise ValueError(f"num_samples must be at most the {held} samples held, got {count}")
    validate_batch_size(complete["batch_size"])
    validation.integer("sample_chunk", complete["sample_chunk"])
    for name in ("vectorize", "targets"):
        validation.one_of(name, complete[name], (True, False, None))
    form = OutputFormat(complete["output"], complete["class_axis"], complete["noise"], complete["select"])
    return form, complete


def validate_batch_size(batch_size: int | None) -> None:
    """Raise TypeError or ValueError unless it is a count of examples, or None for all in one piece."""
    if batch_size is not None:
        validation.integer("batch_size", batch_size)
