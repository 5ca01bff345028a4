"""One network of L2E fitted to two on the states that both meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor, nn
from tqdm import tqdm, trange

from experiments.meta_training.cards import check_same_rule, commit, with_reproduction
from learned_samplers.learned import weights
from learned_samplers.learned.features import data_feature, features, update_averages
from learned_samplers.learned.l2e.rule import L2ESettings
from learned_samplers.learned.network import apply_network
from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.inner_loop.unroll import Unroll
from meta_tasks.objectives import BMALoss
from meta_tasks.random_streams import derive_seed
from meta_tasks.rules.learned import L2ERule
from meta_tasks.tasks import ImageTaskFamily, family_named

_FEATURES = "adaptive_data"
_BATCH, _LEARNING_RATE, _HELD_OUT = 4096, 2e-3, 0.1


@dataclass(frozen=True)
class Options:
    """Fit one network to two, one for few training data and one for many."""

    # Weight file or shipped name: the network for few training data.
    few: tyro.conf.Positional[str]
    # Weight file or shipped name: the network for many training data, of the same rule.
    many: tyro.conf.Positional[str]
    # Folder for weights.safetensors and its card.
    folder: Path
    # Two weight files, start and end of another meta-training: the difference between them is added to MANY.
    learned: tuple[str, str] | None = None
    # Share of that difference (--learned) that is added; by default 1, all of it.
    share: float | None = None
    # N₀ and N₁: FEW is used up to N₀ training data, MANY from N₁ on, and a mixture of both in between.
    num_data: tuple[int, int] = (1400, 8000)
    # decay_time τ of the new network, in steps (see L2E); by default that of MANY. FEW and MANY may differ in it.
    decay_time: float | None = None
    # Task family whose states the networks are compared on.
    family: Literal["paper", "full", "cpu", "small", "digits"] = "cpu"
    # Data sets of its tasks, equally likely; by default the family's own.
    datasets: tuple[str, ...] | None = None
    # Number of tasks.
    tasks: int = 48
    # Steps of a run, one or several numbers in turn.
    steps: tuple[int, ...] = (500, 1500)
    # Steps between two states that are kept.
    every: int = 20
    # Coordinates kept of each state, chosen at random, before and after the momentum's update.
    coordinates: int = 60
    # Steps of Adam for the fit.
    fit_steps: int = 6000
    # Seed of the tasks and the fit.
    seed: int = 0
    # Folder of the data files; by default the one that LEARNED_SAMPLERS_DATA names, else ~/.cache/learned_samplers.
    data: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.num_data[0] < self.num_data[1]:
            raise ValueError(f"num_data must be two positive numbers, the smaller first, got {self.num_data}")
        for name in ("tasks", "every", "coordinates", "fit_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.share is not None and self.learned is None:
            raise ValueError(f"share={self.share} is of the difference of --learned, which is not given")
        for name in ("share", "decay_time"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.steps or min(self.steps) < self.every:
            raise ValueError(f"steps must be one number or several, none below every={self.every}, got {self.steps}")


class Recording(L2ERule):
    """An L2E that keeps some of the features that it meets, with the further one."""

    def __init__(
        self, settings: L2ESettings, hidden: Sequence[int], *, every: int, coordinates: int, stream: torch.Generator
    ) -> None:
        super().__init__(hidden=hidden, settings=settings)
        self.every, self.coordinates, self.stream = every, coordinates, stream
        self.kept: list[Tensor] = []

    def update(self, prepared, at):
        copied = replace(at, parameter=at.parameter.clone(), state=tuple(each.clone() for each in at.state))
        after = super().update(prepared, copied)
        if int(at.step) % self.every == 0:
            averages, hyper = update_averages(at.state[1], at.gradient, _FEATURES), at.hyper
            known: dict[str, Any] = dict(lr=hyper.lr, num_data=hyper.num_data, step=at.step)
            for momentum in (at.state[0], after[1][0]):
                x = features(at.parameter, momentum, at.gradient, averages, at.segments, _FEATURES, **known)
                chosen = torch.randint(x.shape[-1], (self.coordinates,), generator=self.stream)
                self.kept.append(x[..., chosen].transpose(-1, -2))
        return after


def met(rule: Recording, networks: Tensor, family: ImageTaskFamily, options: Options) -> Tensor:
    """Features of states along both networks' runs, (rows, F), without those of a run that became non-finite."""
    rows = []
    with trange(options.tasks, unit="task") as tasks:
        for number in tasks:
            task, steps = family.task("distill", options.seed, number), options.steps[number % len(options.steps)]
            seed = derive_seed("distill", options.seed, number)
            unroll = Unroll(task, rule, BMALoss, Schedule(steps, steps - 1, 1), [seed], stepping="loop")
            unroll.advance(networks)
            states = torch.stack(rule.kept, 1)  # (network, state, coordinate, F)
            rule.kept.clear()
            rows.append(states[unroll.losses().isfinite()].flatten(0, 2))
    if not sum(map(len, rows)):
        raise ValueError(
            f"tasks={options.tasks}: both networks became non-finite on every one; there is nothing to fit"
        )
    return torch.cat(rows)


def target(rule: L2ERule, networks: Tensor, rows: Tensor, num_data: tuple[int, int]) -> Tensor:
    """The mixture of both networks' outputs, (rows, 2); ``networks`` is (2, n), few data first."""
    low, high = (data_feature(n) for n in num_data)
    share = ((high - rows[:, -1:]) / (high - low)).clamp(0, 1)
    few, many = (
        torch.stack(apply_network(rule.prepare(each[None]), rows[None].transpose(-1, -2)), -1)[0] for each in networks
    )
    return share * few + (1 - share) * many


def fit(network: nn.Module, rows: Tensor, targets: Tensor, steps: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Least squares by Adam with a rate that goes to zero; after every step the two errors on held-out rows or nothing.

    An error is the mean square of the difference over the variance of the target, or over a hundredth of the other
    output's where that is more.
    """
    held_out = max(1, round(_HELD_OUT * len(rows)))
    order = torch.randperm(len(rows), generator=stream)
    test, train = order[:held_out], order[held_out:]
    variance = targets.var(0)
    variance = variance.clamp(min=0.01 * variance.max().item())
    optimizer = torch.optim.Adam(network.parameters(), _LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        chosen = train[torch.randint(len(train), (_BATCH,), generator=stream)]
        optimizer.zero_grad()
        ((network(rows[chosen]) - targets[chosen]).square().mean(0) / variance).sum().backward()
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 20) == 0 or step == steps - 1:
            with torch.no_grad():
                yield (network(rows[test]) - targets[test]).square().mean(0) / variance


def _with_hidden(card: dict[str, Any]) -> dict[str, Any]:
    return {**card, "hidden": [out for out, _ in card["layers"][:-1]]}


def run(options: Options, command: str) -> Path:
    """Fit the network and write it; returns its file.

    Raises:
        ValueError, FileNotFoundError: the networks cannot be loaded or are not two of one L2E, or the data are not
            there; nothing was written.
    """
    names = (options.few, options.many, *(options.learned or ()))
    loaded = [weights.load(weights.find(name)) for name in names]
    card, other = loaded[0][1], loaded[1][1]
    for name, (_, each) in zip(names, loaded):
        described = each["sampler"], each.get("form"), each["feature_set"]
        if described not in {("L2E", "residual", known) for known in ("adaptive", _FEATURES)}:
            raise ValueError(
                f"{name}: a network of L2E in its residual form with the features 'adaptive' or {_FEATURES!r} is "
                "needed, got " + ", ".join(map(repr, described))
            )
        for scale in ("gated", "normalise_output"):  # a gate is not fitted; of outputs of any size no mixture is either
            if each["scales"].get(scale):
                raise ValueError(f"{name}: {scale}=True: α and β alone are fitted, as they come out of the network")
        check_same_rule((options.few, name), _with_hidden(card), _with_hidden(each), ("scales", "hidden"))
    hidden = [out for out, _ in card["layers"][:-1]]
    changed = {} if options.decay_time is None else {"decay_time": options.decay_time}
    settings = L2ESettings.from_card({**other, "feature_set": _FEATURES}, **changed)
    stream = torch.Generator().manual_seed(options.seed)
    rule = Recording(settings, hidden, every=options.every, coordinates=options.coordinates, stream=stream)
    family = family_named(options.family, root=options.data)
    if options.datasets is not None:
        family = family_named(options.family, root=options.data, dataset_names=tuple(options.datasets))
    wide = [L2ERule(hidden=hidden, start=weights.find(name), settings=settings) for name in names]
    few, many, *added = (each.initial_weights(options.seed) for each in wide)
    start = many
    if added:
        many = many + (1.0 if options.share is None else options.share) * (added[1] - added[0])
    networks = torch.stack([few, many])
    rows = met(rule, networks, family, options)
    network = wide[1].network(start)
    targets = target(rule, networks, rows, options.num_data).detach()
    curve = [error.tolist() for error in tqdm(fit(network, rows, targets, options.fit_steps, stream), unit="look")]
    print(f"of {len(rows)} states; unexplained variance of α {curve[-1][0]:.1e}, of β {curve[-1][1]:.1e}")
    training = {
        "tasks": family.specification(),
        "horizon": list(options.steps),
        "estimator": {"name": "distillation", "num_data": list(options.num_data), "unexplained": curve[-1]},
        "seed": options.seed,
        "commit": commit(),
        "command": command,
        "few": with_reproduction(card["meta_training"]),
        "many": with_reproduction(other["meta_training"]),
    }
    if options.learned is not None:
        training["learned"] = with_reproduction(loaded[3][1]["meta_training"])
    filled = {
        **other,
        **wide[1].card(),
        "name": options.folder.name,
        "meta_training": training,
        "metrics": {},
        "curve": [beta for _, beta in curve],
    }
    path = options.folder / "weights.safetensors"
    options.folder.mkdir(parents=True, exist_ok=True)
    weights.save(path, network, filled)
    return path
