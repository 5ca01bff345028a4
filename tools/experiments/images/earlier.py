"""What an earlier comparison chose, for one that takes its settings over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.images.methods import ImageMethod, Setting
from experiments.images.settings import Settings

#: The file with all numbers of a comparison.
RESULTS = "results.json"


def check_finished(argument: str, path: Path, numbers: Mapping[str, Any]) -> None:
    """Refuse the numbers of a comparison that was interrupted before the last of its budgets.

    What was written before the file named them is taken as it is.

    Raises:
        ValueError: by name of the argument, the file and the budgets.
    """
    missing = [str(budget) for budget in numbers.get("planned", ()) if str(budget) not in numbers["budgets"]]
    if missing:
        raise ValueError(
            f"{argument}: {path} is of a comparison that has not ended: it lacks the budgets {', '.join(missing)}; the "
            "command that stands in it goes on from there"
        )


def earlier_settings(folder: Path, method: ImageMethod, settings: Settings, num_data: int, count: int) -> list[Setting]:
    """The settings with the lowest validation NLL at the largest budget of the comparison in a folder, best first.

    An optimizer's weight decay is taken over as such, whatever N is, and that of the posterior's mode as that of this
    posterior's mode.

    Args:
        folder: of the earlier comparison; it has another network or other data, most often smaller ones.
        method, settings, num_data: of this comparison.
        count: how many settings at the most.

    Raises:
        FileNotFoundError: there is no finished comparison.
        ValueError: it has not ended, the method is not in it, a learned sampler had other weights there, or what was
            found cannot be taken over.
    """
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise FileNotFoundError(f"settings_of: no {RESULTS}, which a finished comparison leaves, in {folder}")
    try:
        numbers = json.loads(path.read_text())
        budgets = numbers["budgets"]
        found = budgets[max(budgets, key=int)]
        methods, then = found["methods"], Settings(**found["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"settings_of: {path} is not that of a comparison: {error}") from error
    check_finished("settings_of", path, numbers)
    if method.name not in methods:
        raise ValueError(f"settings_of: {method.name} is not in {path}, which has {', '.join(methods)}")
    if method.network is not None and (was := getattr(then, method.network)) != (
        here := getattr(settings.with_weights(num_data), method.network)
    ):
        raise ValueError(f"settings_of: {method.name} had {method.network}={was!r} in {path}, here it has {here!r}")

    def setting(numbers: dict[str, Any]) -> Setting:
        own = {name: numbers[name] for name in method.tunes if name in numbers}
        precision = own.get("prior_precision")
        if precision == then.prior_precision:
            own["prior_precision"] = settings.prior_precision
        elif precision and "num_data" not in found:
            raise ValueError(f"settings_of: {path} does not say its number of data; run its command once more")
        elif precision:
            own["prior_precision"] = precision / found["num_data"] * num_data
        return Setting(numbers["lr"], tuple(own.items()))

    tried = [each for each in methods[method.name]["tuning"] if each["validation_nll"] is not None]
    tried.sort(key=lambda each: each["validation_nll"])
    return [setting(each) for each in (tried or [methods[method.name]])[:count]]  # it may have been given there, too
