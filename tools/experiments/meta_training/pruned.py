"""The sparsest directions of a learned one on fresh tasks, and the card of the one that is chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tqdm import tqdm

from experiments.meta_training.cards import commit, with_reproduction, without_infinities
from experiments.meta_training.options import TaskOptions
from experiments.meta_training.sampler_options import SamplerOptions
from learned_samplers.base.files import write_atomically
from learned_samplers.learned import weights
from meta_tasks.inner_loop.schedule import Horizon
from meta_tasks.rules.linear import L2ELinearRule
from meta_tasks.tasks.family import upgraded_fingerprints
from meta_tasks.training.pruning import Candidate, compared, losses_on_fresh_tasks, sparsest


@dataclass(frozen=True)
class Options:
    """Leave out of a learned direction what fresh tasks cannot tell from noise."""

    # Folder to write to; continued if it has losses.
    folder: Path
    # The direction, by --linear, --normalise-output True and --start-weights.
    rule: Annotated[SamplerOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=SamplerOptions)
    # What it is compared on.
    tasks: Annotated[TaskOptions, tyro.conf.OmitArgPrefixes] = field(default_factory=TaskOptions)
    # Fresh tasks.
    num_tasks: int = 64
    # Steps of the inner loop: shortest and longest, log-uniform between them.
    horizon: tuple[int, int] = (400, 400)
    # States collected in an inner loop.
    samples: int = 10
    # Share of the inner loop before the first collected state.
    burn_in: float = 0.5
    # Seed of the tasks.
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_tasks < 2:
            raise ValueError(f"num_tasks must be at least 2, for a standard error, got {self.num_tasks}")
        if self.rule.start_weights is None:
            raise ValueError("start_weights: the weight file whose direction is to be pruned is needed")


def losses(options: Options, rule: L2ELinearRule, choices: torch.Tensor) -> torch.Tensor:
    """The meta-losses (tasks, k) on fresh tasks; those that a run before this one has found are read from the folder.

    Raises:
        ValueError, FileNotFoundError: the losses in the folder are of other settings, or the data are not there.
    """
    family, horizon = options.tasks.make(), Horizon(*options.horizon, samples=options.samples, burn_in=options.burn_in)
    of: dict[str, Any] = {
        "tasks": family.specification(),
        "data": family.data_fingerprints(),
        "rule": rule.specification(),
    }
    of["horizon"], of["seed"] = horizon.specification(), options.seed
    settings = json.loads(json.dumps(of))
    path, kept = options.folder / "losses.json", []
    if path.exists():
        before = json.loads(path.read_text())
        theirs = {**before["settings"], "data": upgraded_fingerprints(family, before["settings"].get("data", {}))}
        if theirs != settings:
            raise ValueError(f"folder: the losses in {path} are of other settings; choose another folder")
        kept = before["losses"][: options.num_tasks]
    found = torch.tensor([[float("nan") if x is None else x for x in row] for row in kept], dtype=torch.float64)
    new = losses_on_fresh_tasks(
        family, rule, choices, horizon, tasks=options.num_tasks, seed=options.seed, first=len(kept)
    )
    for row in tqdm(new, total=options.num_tasks, initial=len(kept), unit="task"):
        found = torch.cat([found.reshape(-1, len(choices)), row.cpu().double()[None]])
        content = {"settings": settings, "losses": without_infinities(found.tolist())}
        write_atomically(path, json.dumps(content).encode())
    return found


def table(names: Sequence[Sequence[str]], rows: Sequence[Candidate], chosen: int) -> str:
    """Markdown: a line for each number of features."""
    lines = ["| features | the last of them | meta-loss | to the best | ± | failed |", "|---:|---|---:|---:|---:|---:|"]
    for number, (kept, row) in enumerate(zip(names, rows, strict=True)):
        mark = "**" if number == chosen else ""
        values = f"{row.loss:.4f} | {row.difference:+.4f} | {row.error:.4f} | {row.failed}"
        lines.append(f"| {mark}{len(kept)}{mark} | {kept[-1]} | {values} |")
    return "\n".join(lines)


def run(options: Options, command: str) -> Path:
    """Compare, choose and write; returns the weight file.

    Raises:
        ValueError, FileNotFoundError: the options do not name a learned direction of length 1, or the data are missing.
    """
    rule = options.rule.make()
    if not isinstance(rule, L2ELinearRule):
        raise ValueError("linear: a direction that was learned with --linear is needed")
    assert options.rule.start_weights is not None
    card: dict[str, Any]
    _, card = weights.load(options.rule.start_weights)
    names, choices = rule.sparser(rule.initial_weights(options.seed))
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = compared(losses(options, rule, choices))
    chosen = sparsest(rows)
    print(table(names, rows, chosen))
    pruned = {
        "from": card["sha256"],
        "kept": list(names[chosen]),
        "candidates": [{"features": len(kept), **asdict(row)} for kept, row in zip(names, rows, strict=True)],
        "tasks": options.num_tasks,
        "commit": commit(),
        "command": command,
        "curve": "that of the direction before",
    }
    training = {**with_reproduction(card["meta_training"]), "pruned": without_infinities(pruned)}
    filled = {**card, **rule.card(), "name": options.folder.name, "meta_training": training, "metrics": {}}
    filled.pop("law", None)  # of the direction before
    path = options.folder / "weights.safetensors"
    weights.save(path, rule.network(choices[chosen]), filled)
    return path
