"""Settings that a command names, `METHOD:name=value,…`, for a comparison to try in the place of a balanced choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.images.methods import METHODS, ImageMethod, Setting

#: An optimizer's weight decay on the mean loss, for λ/N.
WEIGHT_DECAY = "weight_decay"


def given_settings(given: Sequence[str], method: ImageMethod, num_data: int) -> list[Setting]:
    """The settings that are given for one method, in their order.

    Args:
        given: texts such as ``SGHMC:lr=0.05,temperature=1``. The names are ``lr``, which must be there, and what
            `ImageMethod.tunes` has, with ``weight_decay`` for ``prior_precision`` over N; what is not named is as the
            comparison's options say.
        num_data: N.

    Raises:
        ValueError: one of them cannot be read, or stands twice.
    """
    found = [_setting(text, method, num_data) for text in given if _method_of(text) is method]
    for setting in found:
        if found.count(setting) > 1:
            raise ValueError(f"given: {method.name} has the same setting twice: {setting}, {setting.text(num_data)}")
    return found


def count_given(given: Sequence[str], methods: Sequence[str]) -> int:
    """How many settings are given for each of the methods; 0 where none is given at all.

    Raises:
        ValueError: a method has more of them than another, or is not compared.
    """
    counts = dict.fromkeys(methods, 0)
    for text in given:
        name = _method_of(text).name
        if name not in counts:
            raise ValueError(f"given={text!r} is for {name}, which is not among sampler={', '.join(methods)}")
        counts[name] += 1
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"given must hold equally many settings of every method, got {each}")
    return max(counts.values())


def _method_of(text: str) -> ImageMethod:
    name = text.partition(":")[0].strip().lower()
    known = {each.lower(): method for each, method in METHODS.items()}
    if name not in known:
        raise ValueError(f"given={text!r} must begin with a method and a colon, as SGHMC:lr=0.05,temperature=1 does")
    return known[name]


def _setting(text: str, method: ImageMethod, num_data: int) -> Setting:
    numbers: dict[str, float] = {}
    for pair in text.partition(":")[2].split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = name.replace("-", "_")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not math.isfinite(number) or number < 0:
            raise ValueError(f"given={text!r}: {pair.strip()!r} must be name=value, of a number that is not negative")
        if name == WEIGHT_DECAY:
            name, number = "prior_precision", number * num_data
        if name != "lr" and name not in method.tunes:
            tunes = ", ".join(each if each != "prior_precision" else WEIGHT_DECAY for each in method.tunes)
            raise ValueError(f"given={text!r}: {method.name} does not tune {name}; it has lr, {tunes}")
        if name in numbers:
            raise ValueError(f"given={text!r} has {name} twice")
        numbers[name] = number
    if not numbers.get("lr"):
        raise ValueError(f"given={text!r} must have a positive lr")
    return Setting(numbers["lr"], tuple((name, numbers[name]) for name in method.tunes if name in numbers))
