"""`compare` from Python: the comparison of `tools/compare.py` for a network and data of one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from experiments.harness.devices import prepare_torch
from experiments.images.compare_report import BudgetReport, content, tables, write_results
from experiments.images.compare_validation import validation_tables, write_validation
from experiments.images.comparison import Comparison
from experiments.images.methods import METHODS
from experiments.images.options import CompareOptions
from experiments.images.own_models import register
from experiments.images.settings import GIVEN, Settings
from learned_samplers.base.validation import one_of
from meta_tasks.datasets import ImageData, array_data
from meta_tasks.datasets.arrays import arrays_in
from meta_tasks.progress import progress

_PATHS = ("reference", "settings_of")  # options that may be given as text
# Settings of what is read from files, which data that are given do not listen to.
_OF_FILES = ("ood", "size", "grayscale", "limit", "division", "labels", "length", "vocabulary")
# Options of the command line alone: a preset has data and a network, published corruptions are of the data's files.
_OF_THE_COMMAND = ("dry_run", "preset", "corruption_files", "data")


@dataclass(frozen=True)
class ComparisonTable:
    """What a comparison found; prints as the tables of ``tools/compare.py``.

    Attributes:
        reports: of each budget, the trials and runs of every method.
        numbers: of each budget, everything as plain numbers, as in ``results.json``.
        folder: where every run is kept, with its samples, predictions and curves.
        validation: with ``tune_only`` the tables of validation NLLs, and there are no reports and no numbers; else "".
    """

    reports: list[BudgetReport]
    numbers: list[dict[str, Any]]
    folder: Path
    validation: str = ""

    def __str__(self) -> str:
        if self.validation:
            return self.validation
        both = zip(self.reports, self.numbers, strict=True)
        return "\n\n".join(tables(report.budget, found) for report, found in both)

    __repr__ = _repr_markdown_ = __str__


def compare(
    model: Callable[..., nn.Module] | str,
    data: ImageData | Mapping[str, Any] | str | os.PathLike[str],
    samplers: Sequence[str] = ("SGHMC", "BAOA", "CyclicalSGMCMC", "L2E", "SGD", "DeepEnsemble"),
    *,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ComparisonTable:
    """Tune samplers and optimizers alike on a network and data of your own, run them, and return the table.

    Args:
        model: a function that returns a fresh network, of nothing or of ``input_shape`` and ``outputs``; or the name
            of one, as ``--model`` takes it.
        data: arrays or tensors ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and ``x_val``, ``y_val``) by name, as
            `meta_tasks.datasets.arrays` explains; an npz file of them; or an `ImageData`.
        samplers: names of methods, as ``--sampler`` takes them.
        out: folder of the runs; a second call goes on from there. By default one under ``runs/``.
        options: every other option of ``tools/compare.py`` but presets and those of files, with underscores:
            ``steps``, ``batch_size``, ``noise``, ``temperatures``, ``tries``, ``seeds``, ``device``, … With
            ``tune_only=True`` no run looks at the test data; the table is that of validation NLLs.

    Raises:
        TypeError, ValueError: an option that does not exist or is out of range, by name; data or a network that cannot
            be used; runs in ``out`` that were made from other data.
    """
    names = {name.lower(): name for name in METHODS}
    for name in samplers:
        one_of("samplers", name.lower(), names)
    own = {each.name for each in fields(Settings)} - {"dataset", "model", *_OF_FILES}
    known = own | {each.name for each in fields(CompareOptions)} - {"settings", "sampler", "out", *_OF_THE_COMMAND}
    if unknown := sorted(set(options) - known):
        raise TypeError(f"compare has no option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    settings = Settings(
        dataset=GIVEN,
        model=model if isinstance(model, str) else register(model),
        **{name: options.pop(name) for name in list(options) if name in own},
    )
    for name in _PATHS:
        if not isinstance(path := options.get(name), str | os.PathLike | None):
            raise TypeError(f"{name} must be a path, got {type(path).__name__}")
        options[name] = None if path is None else Path(path)
    chosen = CompareOptions(
        settings=settings,
        sampler=tuple(names[name.lower()] for name in samplers),
        out=None if out is None else Path(out),
        **options,
    )
    device = prepare_torch(chosen.device, chosen.threads)
    given = chosen.validated(_data(data, settings).to(device))
    with progress(unit="grad", smoothing=0.05) as bar:
        if chosen.tune_only:
            text = validation_tables(Comparison(chosen, given, bar), chosen.all_budgets(given))
            write_validation(chosen.folder(), text, "compare from Python")
            return ComparisonTable([], [], chosen.folder(), text)
        comparison = Comparison(chosen, given, bar, {}, chosen.load_reference(given))
        budgets = chosen.all_budgets(given)
        reports = [comparison.report(budget) for budget in budgets]
    write_results(chosen.folder(), reports, "compare from Python", chosen.settings_note(), budgets)
    return ComparisonTable(reports, [content(report) for report in reports], chosen.folder())


def _data(data: Any, settings: Settings) -> ImageData:
    if isinstance(data, ImageData):
        if settings.validation is not None:
            raise ValueError(f"validation={settings.validation} cannot be applied: {data.name} has its validation set")
        return data
    if isinstance(data, str | os.PathLike):
        path = Path(data).expanduser()
        if (arrays := arrays_in(path)) is None:
            raise ValueError(f"data={str(data)!r} is no npz file with x_train, y_train, x_test and y_test")
        data = arrays
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a mapping of arrays, an npz file or ImageData, got {type(data).__name__}")
    return array_data(data, "data", validation=settings.validation)


__all__ = ["ComparisonTable", "compare"]
