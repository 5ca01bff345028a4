"""Several comparisons of the same data, network and posterior as one table, from their results.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.harness.tables import plain
from experiments.images.compare_corruptions import images_of
from experiments.images.compare_statistics import paired
from experiments.images.compare_verdict import verdict
from experiments.images.earlier import RESULTS, check_finished
from experiments.images.methods import METHODS
from experiments.images.more_seeds import differences, same_weights, with_more_seeds
from experiments.images.own_models import is_own
from experiments.images.result import Result
from experiments.images.settings import Settings


def read(path: Path) -> dict[str, Any]:
    """The numbers of a comparison, of its folder or of the file itself.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not that of a comparison, or one that has not ended, or of before the settings had a text of
            their own.
    """
    file = path / RESULTS if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"comparisons: no {RESULTS}, which a finished comparison leaves, in {path}")
    try:
        found = json.loads(file.read_text())
        for budget in found["budgets"].values():
            Settings(**budget["settings"])
            for method in budget["methods"].values():
                if "also_tuned" not in method:
                    raise ValueError("it was written by an older compare.py; run its command once more")
                [(run["seed"], run["diverged"]) for run in method["runs"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"comparisons: {file} is not that of a comparison: {error}") from error
    check_finished("comparisons", file, found)
    return dict(found)


def combined(comparisons: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The numbers of each budget, as `compare_report.content` gives them, with the methods of all comparisons.

    A method is called what its table calls it. One that is in two comparisons at the same setting, with other seeds,
    has the runs of both in one row. Differences to the first one are paired over the seeds that both have;
    the error that the choice of test images gives is not known, for that needs the predictions. Runs at equal time took
    the seconds of their own comparison's first row, and are left out where that is not the table's.

    Args:
        comparisons: name (of the file) → what `read` gave, in the order of the rows.

    Raises:
        ValueError: two differ in data, network, posterior, corrupted images or the reference that their predictions are
            compared with, or have a row of the same name with another setting, or with a seed in common.
    """
    found: dict[int, dict[str, Any]] = {}
    for source, comparison in comparisons.items():
        for budget, numbers in comparison["budgets"].items():
            together = found.setdefault(
                int(budget),
                {**numbers, "methods": {}, "lost": {}, "first": source, "common": common(numbers), "beside": {}},
            )
            if common(numbers) != together["common"]:
                raise ValueError(f"comparisons: {source} and {together['first']} differ {_where(numbers, together)}")
            _check_beside(source, numbers, together)
            together["other_code"] = bool(together.get("other_code") or numbers.get("other_code"))
            for name, method in numbers["methods"].items():
                made = {"method": name, "source": source, "command": comparison["command"]}
                own = {**made, **method}  # of one that was combined before, its own
                other = together["methods"].get(key := plain(method["label"]))
                together["methods"][key] = own if other is None else _further(other, own, budget, source)
            together["lost"] |= {_named(name, numbers["settings"]): why for name, why in numbers["lost"].items()}
    for numbers in found.values():
        numbers["lost"] = {name: why for name, why in numbers["lost"].items() if name not in numbers["methods"]}
        numbers["methods"] = {method["label"]: method for method in numbers["methods"].values()}
        del numbers["first"], numbers["common"], numbers["beside"]
        _compare(numbers)
    return dict(sorted(found.items()))


def _named(name: str, settings: Mapping[str, Any]) -> str:
    """A method that has no row, with the weights that it would have had, as rows have them."""
    network = METHODS[name].network if name in METHODS else None
    return f"{name} [{Path(settings[network]).stem}]" if network and network in settings else name


def _further(first: Mapping[str, Any], second: Mapping[str, Any], budget: str, source: str) -> dict[str, Any]:
    """The method with the seeds of both."""
    both = f"comparisons: {first['label']} at {budget} gradients is in {first['source']} and in {source}"
    if different := differences(first, second):
        settings = " and ".join(f"lr {each['lr']:g}, {each['also_tuned']}" for each in (first, second))
        raise ValueError(f"{both}, at different settings: {settings} ({'; '.join(different)})")
    if not same_weights(first, second):
        raise ValueError(f"{both}, with different weights of that name")
    try:
        return with_more_seeds(first, second)
    except ValueError as error:
        raise ValueError(f"{both}, and {error}") from error


def common(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """What all methods of a budget share: its settings without the learned samplers' weights, and the data.

    Compiled steps are not among it, which change numbers by rounding.
    """
    settings = asdict(Settings(**numbers["settings"]))
    own = {name: value for name, value in settings.items() if not name.endswith("_network") and name != "compiled"}
    # Fingerprints of a network of the user's own; of a file that has none of them it cannot be told.
    network = numbers.get("network", {"model_code": "not in the file"} if is_own(settings["model"]) else {})
    return {**own, "num_data": numbers["num_data"], "data": numbers.get("data"), "network": network}


def _check_beside(source: str, numbers: Mapping[str, Any], together: dict[str, Any]) -> None:
    """Refuse corrupted images or a reference that differ from those so far, where both have them; note the new ones.

    What was written before the reference was in the file is taken as it is.
    """
    for what, found in _beside(numbers).items():
        known, whose = together["beside"].setdefault(what, (found, source))
        if found != known:
            raise ValueError(f"comparisons: {source} and {whose} differ in {what}: {found!r}, {known!r}")
    together["reference"] = together["beside"].get("reference", (None, ""))[0]


def _beside(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's fingerprint, and how many corrupted images there are and whose, of what there is."""
    found = {"reference": numbers["reference"]} if numbers.get("reference") is not None else {}
    images = [images_of(method["corruptions"]) for method in numbers["methods"].values() if "corruptions" in method]
    return found | ({"corrupted images": images[0]} if images else {})


def _where(numbers: Mapping[str, Any], together: Mapping[str, Any]) -> str:
    ours, theirs = common(numbers), together["common"]
    return ", ".join(f"in {name}: {ours[name]!r}, {theirs[name]!r}" for name in ours if ours[name] != theirs[name])


def _compare(numbers: dict[str, Any]) -> None:
    """Put the differences to the first method, the sentence about the best rival and the lowest NLL in."""
    methods = numbers["methods"]
    runs = {label: _results(method) for label, method in methods.items()}
    first = next(iter(runs.values()))
    leading = next(iter(methods.values()))["source"]
    for label, method in methods.items():
        if method["source"] != leading:
            method["equal_time"] = None
        pair = None if runs[label] is first else paired(runs[label], first)
        method["difference"] = None if pair is None else {"mean": pair[0], "error": pair[1], "image_error": None}
    numbers["verdict"] = verdict(runs, None)
    ended = [label for label, method in methods.items() if method["mean"].get("nll") is not None]
    numbers["lowest_nll"] = min(ended, key=lambda label: methods[label]["mean"]["nll"]) if ended else None


def _results(method: Mapping[str, Any]) -> list[Result]:
    """A method's runs, as far as JSON has them.

    Raises:
        ValueError: there is no such method.
    """
    if method["method"] not in METHODS:
        raise ValueError(f"comparisons: {method['source']} has a method that is not known: {method['method']}")
    kept = ("nll", "accuracy")
    return [
        Result(
            method["method"],
            run["lr"],
            run["seed"],
            {},
            scores={key: run[key] for key in kept if run.get(key) is not None},
            diverged=run["diverged"],
        )
        for run in method["runs"]
    ]


def sources(numbers: Mapping[int, Mapping[str, Any]]) -> Sequence[str]:
    """Lines of Markdown: which command made which rows."""
    rows: dict[str, dict[str, None]] = {}
    for budget in numbers.values():
        for label, method in budget["methods"].items():
            for command in (method["command"], *method.get("further", ())):
                rows.setdefault(command, {})[label] = None
    return [f"- {', '.join(labels)}: `{command}`" for command, labels in rows.items()]
