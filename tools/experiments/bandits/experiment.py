"""The runs of `bandits.py`: Thompson sampling by every method on every problem."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from experiments.bandits.options import SCALES, WHEELS, BanditOptions
from experiments.bandits.posteriors import METHODS, Budget, History, Posterior
from experiments.bandits.problems import Bandit, mushroom, read_mushrooms, wheel
from experiments.harness.run_store import RunStore, fingerprint
from meta_tasks.progress import progress

POINTS = 200  # of a regret curve that are kept


def play(
    bandit: Bandit,
    make: Callable[..., Posterior],
    budget: Budget,
    scale: float,
    noise: float,
    seed: int,
    tell: Callable[[int], object] | None = None,
) -> Tensor:
    """The arms that Thompson sampling chooses, (n,).

    Args:
        bandit: its rounds.
        make: the posterior, one of `METHODS`.
        budget: of training.
        scale, noise: see `SCALES`.
        seed: of the networks, the minibatches and the choices.
        tell: called after each update of the posterior, with the number of rounds since the one before.
    """
    rounds, arms = bandit.expected.shape
    generator = torch.Generator().manual_seed(seed)
    posterior = make(bandit.contexts, arms, noise / scale, budget, generator)
    history = History(bandit.contexts)
    chosen = torch.zeros(rounds, dtype=torch.long)
    first = min(budget.initial_pulls * arms, rounds)
    # Between two updates the posterior does not change, so that these rounds are played at once.
    for start, end in pairwise([0, *range(first, rounds, budget.interval), rounds]):
        now = torch.arange(end) % arms if start == 0 else posterior.choose(bandit.contexts[start:end])
        chosen[start:end] = now
        history.add(now, bandit.rewards[start:end].gather(1, now[:, None])[:, 0] / scale)
        posterior.update(history)
        if tell is not None:
            tell(end - start)
    return chosen


class Runs:
    """Every method on every problem."""

    def __init__(self, options: BanditOptions):
        self.options = options
        folder = options.folder()
        self.stores = {problem: RunStore(folder, fresh=options.fresh) for problem in options.problem}
        self.problems = list(options.problem)
        self.mushrooms: tuple[Tensor, Tensor] | None = None
        if "mushroom" in self.problems:
            try:
                self.mushrooms = read_mushrooms(options.data)
                self.stores["mushroom"].data = fingerprint(self.mushrooms)
            except FileNotFoundError as error:
                print(f"left out: {error}", file=sys.stderr)
                self.problems.remove("mushroom")
        if not self.problems:
            raise ValueError("no problem is left")

    def bandit(self, problem: str, seed: int) -> Bandit:
        generator = torch.Generator().manual_seed(seed)
        rounds = self.options.budget.contexts
        if problem == "mushroom":
            assert self.mushrooms is not None
            bandit = mushroom(*self.mushrooms, rounds, generator)
        else:
            bandit = wheel(WHEELS[problem], rounds, generator)
        return replace(bandit, rewards=bandit.expected) if self.options.expected_rewards else bandit

    def run(self, problem: str, method: str, seed: int, tell: Callable[[int], object] | None = None) -> dict[str, Any]:
        """``relative_regret`` in percent after ``rounds``, ``arms``: how often each was taken, and ``seconds``."""
        budget, (scale, noise) = self.options.budget, SCALES[problem.partition("_")[0]]
        name, store = f"{problem}_{method}_seed{seed}", self.stores[problem]

        def make() -> dict[str, Any]:
            bandit, start = self.bandit(problem, seed), time.perf_counter()
            # Another stream than that of the rounds.
            arms = play(bandit, METHODS[method].build, budget, scale, noise, seed + 10_000, tell)
            seconds = time.perf_counter() - start
            curve = bandit.relative_regret(arms)
            rounds = torch.linspace(1, len(curve), min(POINTS, len(curve))).round().long()
            store.begin(name)
            with SummaryWriter(store.board(name)) as writer:
                for at in rounds.tolist():
                    writer.add_scalar(f"relative_regret/{problem}", curve[at - 1], at)
            counts = arms.bincount(minlength=bandit.expected.shape[1])
            return {
                "rounds": rounds.tolist(),
                "relative_regret": curve[rounds - 1].tolist(),
                "arms": counts.tolist(),
                "seconds": seconds,
            }

        settings = {
            "problem": problem,
            "method": method,
            "seed": seed,
            "scale": scale,
            "noise": noise,
            **asdict(budget),
            "expected_rewards": self.options.expected_rewards,
        }
        return store.run(name, settings, make)

    def all(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Problem → method → its runs, one a seed."""
        options = self.options
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {p: {m: [] for m in options.method} for p in self.problems}
        rounds, done = options.budget.contexts, 0
        total = rounds * len(self.problems) * len(options.method) * options.seeds
        with progress(total=total, unit="round") as bar:
            for seed in options.seed_list():
                for problem in self.problems:
                    for method in options.method:
                        bar.set_description(f"{problem}, {method}, seed {seed}")
                        runs[problem][method].append(self.run(problem, method, seed, bar.update))
                        done += rounds
                        bar.update(done - bar.n)  # a kept run tells nothing
        return runs
