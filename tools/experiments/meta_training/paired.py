"""Networks of L2E on the same fresh tasks: the runs, their losses in a file, and the table."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from tqdm import tqdm

from experiments.harness.tables import markdown
from experiments.meta_training.cards import blend, check_same_rule
from learned_samplers.learned import weights
from learned_samplers.learned.network import flatten, layers_of
from meta_tasks.inner_loop.schedule import Horizon, Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules.base import steps_for
from meta_tasks.rules.learned import MetaSGMCMCRule, NetworkRule, rule_from_card
from meta_tasks.tasks import FAMILIES, ImageTaskFamily, family_named

if TYPE_CHECKING:
    FamilyName: TypeAlias = str
else:
    FamilyName = Literal[*FAMILIES]


@dataclass(frozen=True)
class Options:
    """Compare networks of L2E on the same fresh tasks, with common random numbers."""

    # Weight files or shipped names; ratios are taken to the first.
    networks: tyro.conf.Positional[tuple[str, ...]]
    # With exactly two networks: also try these points on the line between them, 0 being the first and 1 the second.
    shares: tuple[float, ...] = ()
    # Task family.
    family: FamilyName = "cpu"
    # Data sets of its tasks, equally likely; by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Number of tasks, at least 2.
    tasks: int = 24
    # Minibatch gradients of a run; with several numbers, every task is run with each. A step takes one gradient, of
    # Kinetic-L2E two.
    steps: tuple[int, ...] = (500,)
    # States collected in the second half of a run.
    samples: int = 10
    # Whether networks that see the progress of a run are told how long it is (those of ScaleAdaptedL2E always are).
    tell_horizon: bool = False
    # Learning rate of every run; by default the one that the task was drawn with.
    lr: float | None = None
    # Seed of the tasks: another one gives fresh tasks.
    seed: int = 0
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None
    # Folder for the losses.
    out: Path = Path("runs/paired")

    def __post_init__(self) -> None:
        if len(self.networks) + len(self.shares) < 2:
            raise ValueError(f"networks: at least two are compared, got {self.networks}")
        if self.shares and len(self.networks) != 2:
            raise ValueError(f"shares={self.shares} lie between exactly two networks, got {len(self.networks)}")
        if not all(0 < share < 1 for share in self.shares):
            raise ValueError(f"shares must lie between 0 and 1, got {self.shares}")
        if self.tasks < 2:
            raise ValueError(f"tasks must be at least 2, got {self.tasks}")
        if not self.steps:
            raise ValueError("steps must not be empty")
        for steps in self.steps:
            Horizon(steps, steps, self.samples)


@dataclass(frozen=True)
class Candidate:
    """A network, under the name that the table calls it by."""

    name: str
    key: str
    rule: NetworkRule
    weights: Tensor


def rule_of(card: dict[str, Any]) -> NetworkRule:
    """The inner loop's rule of a weight card.

    Raises:
        ValueError: it is of no learned sampler, or of one that is not compared here.
    """
    rule = rule_from_card(card)
    if isinstance(rule, MetaSGMCMCRule):
        raise ValueError(f"networks: {card['name']!r} belongs to {rule.name}; only those of L2E can be compared")
    return rule


def candidates(options: Options) -> list[Candidate]:
    """Those named, then the points between them."""
    loaded = [weights.load(weights.find(name)) for name in options.networks]
    found = [_candidate(name, *each, tell_horizon=options.tell_horizon) for name, each in zip(options.networks, loaded)]
    if options.tell_horizon and not any(map(_is_told, found)):
        raise ValueError(
            "tell_horizon: none of the networks can be told how long a run is: they do not see its progress, or are of "
            "ScaleAdaptedL2E, which knows"
        )
    for share in options.shares:
        (_, card), (second, other) = loaded
        check_same_rule((f"shares: {options.networks[0]}", options.networks[1]), card, other)
        between = weights.load(weights.find(options.networks[0]))[0]
        key = f"{weights.fingerprint(card)}+{share:g}*{weights.fingerprint(other)}"
        blended, told = blend(between, second, share), options.tell_horizon
        found.append(_candidate(f"share {share:g}", blended, card, key, tell_horizon=told))
    return found


def _is_told(candidate: Candidate) -> bool:
    return getattr(candidate.rule, "tell_horizon", 0.0) > 0


def _candidate(
    name: str, network: nn.Module, card: dict[str, Any], key: str | None = None, *, tell_horizon: bool = False
) -> Candidate:
    rule: Any = rule_of(card)
    if tell_horizon and rule.can_be_told:
        rule.tell_horizon = 1.0
    return Candidate(name, key or weights.fingerprint(card), rule, flatten(layers_of(network)).detach())


class Losses:
    """Losses by (network, task, steps), kept in a file of one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[tuple[Any, ...], float] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the last line of a run that was killed while it wrote
                print(f"{path}: left out a line that cannot be read: {line[:40]!r}", file=sys.stderr)
                continue
            self.known[tuple(row["key"])] = row["loss"]

    def add(self, key: tuple[Any, ...], loss: float) -> None:
        self.known[key] = loss
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a") as file:
            file.write("\n" * torn + json.dumps({"key": key, "loss": loss}) + "\n")


def schedule_of(candidate: Candidate, gradients: int, samples: int) -> Schedule:
    """Of a run of so many minibatch gradients; the last state is that of its last step.

    Raises:
        ValueError: the second half of its steps are fewer than ``samples``.
    """
    steps = steps_for(candidate.rule, gradients)
    if steps // 2 < samples:
        raise ValueError(
            f"steps: {gradients} gradients are {steps} steps of {candidate.name}, whose second half has fewer than "
            f"samples={samples}"
        )
    return Schedule.ending(steps, steps // 2, samples)


def loss_of(candidate: Candidate, family: ImageTaskFamily, number: int, gradients: int, options: Options) -> float:
    """The model average's validation loss in nats; infinite if the run became non-finite."""
    config = family.config("paired", options.seed, number)
    config = config if options.lr is None else replace(config, lr=options.lr)
    task = family.make(config, "paired", options.seed, number)
    schedule = schedule_of(candidate, gradients, options.samples)
    seed = derive_seed("paired", options.seed, number, gradients)
    rule = candidate.rule.for_run(schedule.steps, seed)
    unroll = Unroll(task, rule, BMALoss, schedule, [seed], members_per_group=1)
    unroll.advance(candidate.weights[None])
    loss = unroll.losses().item()
    return math.inf if math.isnan(loss) else loss


def table(names: Sequence[str], losses: np.ndarray) -> str:
    """Of losses (networks, tasks): geometric mean, and mean ± standard error and median of the log-ratio to the first.

    A task on which a network became non-finite is lost by it. It is left out of that network's log-ratios, and of the
    geometric means of all, so that these are over the same tasks.
    """
    rows, common = [], losses[:, np.isfinite(losses).all(0)]
    for i, (name, own) in enumerate(zip(names, losses)):
        finite = np.isfinite(own) & np.isfinite(losses[0])
        ratio = np.log(own[finite] / losses[0][finite])
        error = ratio.std(ddof=1) / math.sqrt(len(ratio)) if len(ratio) > 1 else math.nan
        row = {"network": name, "loss": f"{math.exp(np.log(common[i]).mean()):.4f}" if common.size else "–"}
        row["log-ratio to the first"] = f"{ratio.mean():+.4f} ± {error:.4f}" if i and len(ratio) else "–"
        row["median"] = f"{np.median(ratio):+.4f}" if i and len(ratio) else "–"
        row["tasks won"] = f"{int((own < losses[0]).sum())}" if i else "–"
        rows.append({**row, "failed": f"{int((~np.isfinite(own)).sum())}"})
    return markdown(rows)


def digest_of(family: ImageTaskFamily, data: dict[str, str]) -> str:
    """Changes with what the tasks are drawn from, the fingerprints of their data, and torch's version."""
    made_of = [family.specification(), data, torch.__version__]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]


def key_of(candidate: Candidate, number: int, gradients: int, options: Options, tasks: str) -> tuple[Any, ...]:
    """What a run is kept under; the steps stand there only where they are fewer than the gradients.

    Args:
        tasks: `digest_of` their family; losses of before, which lack it, are not known to be of the same data.
    """
    key: tuple[Any, ...]
    key = (candidate.key, options.family, options.seed, number, gradients, options.samples, options.lr)
    key = key if options.datasets is None else (*key, *options.datasets)
    key = (*key, "told") if _is_told(candidate) else key
    steps = steps_for(candidate.rule, gradients)
    return (*key, tasks) if steps == gradients else (*key, steps, tasks)


def run(options: Options) -> dict[int, np.ndarray]:
    """Losses (networks, tasks) by number of gradients."""
    entries, family = candidates(options), family_named(options.family, root=options.data)
    if options.datasets is not None:
        family = replace(family, dataset_names=tuple(options.datasets))
    for entry in entries:
        for gradients in options.steps:
            schedule_of(entry, gradients, options.samples)  # refuses what cannot be run, before anything is
    store, tasks = Losses(options.out / "losses.jsonl"), digest_of(family, family.data_fingerprints())
    # Losses that an earlier version kept stand under its fingerprints of the data; from now on under these, too.
    others = any(key[-1] != tasks for key in store.known)
    earlier = digest_of(family, family.scaled_fingerprints()) if others else tasks
    found = {gradients: np.full((len(entries), options.tasks), math.nan) for gradients in options.steps}
    total = sum(options.steps) * len(entries) * options.tasks
    with tqdm(total=total, unit="grad", smoothing=0.05) as bar:
        for number in range(options.tasks):
            for gradients in options.steps:
                for i, entry in enumerate(entries):
                    key = key_of(entry, number, gradients, options, tasks)
                    before = key_of(entry, number, gradients, options, earlier)
                    if key not in store.known and before in store.known:
                        store.add(key, store.known[before])
                    if key not in store.known:
                        store.add(key, loss_of(entry, family, number, gradients, options))
                    found[gradients][i, number] = store.known[key]
                    bar.update(gradients)
    return found
