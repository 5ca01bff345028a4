"""What tuning alone says: the validation NLL of every setting of every method, before any test image is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.harness.tables import failed_of, markdown, rectangular, spread
from experiments.harness.tuning import Tuning
from experiments.images.comparison import Comparison, losers
from experiments.images.methods import METHODS, Setting
from experiments.images.result import Result
from learned_samplers.base.files import write_atomically


def validation_tables(comparison: Comparison, budgets: Iterable[int]) -> str:
    """Tune every method at every budget, from the smallest; tables of what was found.

    A method that diverged everywhere is named above its budget's table.
    """
    options, parts = comparison.options, []
    for budget in budgets:
        tunings: dict[str, Tuning[Setting, Result]] = {}
        lost = {}
        for method in options.sampler:
            try:
                tuning = tunings[_title(comparison, method)] = comparison.tune(method, budget)
            except RuntimeError as error:  # the others are worth their table
                lost[method] = str(error)
                continue
            for loser in losers(tuning):
                comparison.runs[budget].discard_samples(loser)
        parts += [f"### {budget} gradients, validation NLL", *(f"{name}: {why}" for name, why in lost.items())]
        if tunings:
            parts.append(markdown(validation_rows(tunings, comparison.data.num_data)))
    return "\n\n".join(parts)


def validation_rows(tunings: Mapping[str, Tuning[Setting, Result]], num_data: int) -> list[dict[str, str]]:
    """A row for each setting, each method's best first, those that diverged last."""
    rows = []
    for name, tuning in tunings.items():
        ranked = tuning.ranked()
        for setting in (*ranked, *(each for each in tuning.trials if each not in ranked)):
            runs = tuning.trials[setting]
            scores = [score for run in runs if (score := tuning.score(run)) is not None]
            text = failed_of(spread(scores, 4), len(runs) - len(scores), len(runs))
            also = {"also tuned": setting.text(num_data)} if setting.also else {}
            rows.append(
                {"method": name, "lr": f"{setting.lr:g}", **also, "validation NLL": text, "runs": str(len(runs))}
            )
    return [{"method": row.pop("method"), **row} for row in rectangular(rows)]


def write_validation(out: Path, text: str, command: str) -> None:
    """Put the tables under their command in validation.md."""
    head = "Mean ± standard deviation over the tuning seeds; no test image has been looked at."
    write_atomically(out / "validation.md", f"`{command}`\n\n{head}\n\n{text}\n".encode())


def _title(comparison: Comparison, method: str) -> str:
    network: str | None = METHODS[method].network
    return method if network is None else f"{method} [{getattr(comparison.options.settings, network)}]"
