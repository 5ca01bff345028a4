"""What the comparing tools share: where to compute, and choosing by validation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from tqdm import tqdm

from experiments.common.checks import check_at_least_one
from experiments.images.runner import Result, new_result, run
from experiments.images.settings import Settings
from meta_tasks.datasets import ImageData

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class CommonOptions:
    """The options of every tool that compares methods.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # Data, network, posterior and budget.
    settings: Annotated[Settings, tyro.conf.OmitArgPrefixes] = field(default_factory=Settings)
    # First seed: of the initial weights, the minibatches and the noise. The division of the images is the same for all.
    seed: int = 0
    # Number of seeds, counted up from --seed; the table gives mean ± standard deviation over them.
    seeds: int = 3
    # Device, such as cpu or cuda:0; auto takes a GPU where there is one.
    device: str = "auto"
    # CPU threads of torch. Small networks gain little from more than one, and on a busy machine more of them wait for
    # each other; large networks want as many as there are cores.
    threads: int = 1
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Folder for the results; by default one under runs/.
    out: Path | None = None
    # Run again what is already there with the same settings.
    fresh: bool = False

    def __post_init__(self) -> None:
        check_at_least_one(self, "seeds", "threads")

    def folder(self) -> Path:
        dataset = Path(self.settings.dataset.removeprefix("npz:")).stem
        return self.out or Path("runs") / f"{dataset}_{self.settings.model}"

    def seed_list(self, count: int) -> range:
        return range(self.seed, self.seed + count)


class RunStore:
    """The runs of one call; none is done twice, and with ``fresh`` none is read back that an earlier call has done."""

    def __init__(self, data: ImageData, ood: ImageData | None, *, fresh: bool) -> None:
        self.data, self.ood, self.fresh = data, ood, fresh
        self.done: set[Path] = set()

    def run(
        self, settings: Settings, method: str, lr: float, seed: int, out: Path, *, title: str, bar: tqdm | None = None,
        variant: str = "", **options: Any,
    ) -> Result:  # fmt: skip
        """One run, as `experiments.images.runner.run`; a bar's total becomes what there is to compute."""
        key = out / new_result(settings, method, lr, seed, variant).name
        known, before = key in self.done, 0 if bar is None else bar.n
        fresh = self.fresh and not known
        result = run(
            settings, method, lr, seed, self.data, self.ood, out,
            fresh=fresh, title=title, bar=bar, variant=variant, **options,
        )  # fmt: skip
        self.done.add(key)
        if bar is not None and not known:
            bar.total -= settings.budget(self.data.num_data) - (bar.n - before)
            bar.refresh()
        return result


def prepare_torch(device: str, threads: int) -> str:
    """Set torch's number of threads; the device that ``auto`` means, others as they are.

    Raises:
        ValueError: torch knows no such device, or sees none here.
    """
    torch.set_num_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used: {reason}") from error
    return device


def validation_nll(runs: Sequence[Result]) -> float | None:
    """Mean validation NLL of some runs; None if one of them diverged."""
    values = [result.validation_nll for result in runs if result.validation_nll is not None]
    return sum(values) / len(values) if len(values) == len(runs) else None


def ranked(scores: Mapping[Choice, float | None]) -> list[Choice]:
    """The choices from the lowest score to the highest, without those that have none."""
    finished = {choice: score for choice, score in scores.items() if score is not None}
    return sorted(finished, key=finished.__getitem__)


def best(scores: Mapping[Choice, float | None]) -> Choice | None:
    """The choice with the lowest score; None if none has one."""
    order = ranked(scores)
    return order[0] if order else None


def text(nll: float | None) -> str:
    return "diverged" if nll is None else f"{nll:.4f}"
