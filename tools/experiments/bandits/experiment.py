"""Options and runs: Thompson sampling by every method on every problem."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from experiments.bandits.posteriors import INITIAL_PULLS, METHODS, Budget, History, Posterior
from experiments.bandits.problems import Bandit, mushroom, read_mushrooms, wheel
from experiments.harness.methods import one_of
from experiments.harness.options import DataOptions, RunOptions, each_once
from experiments.harness.run_store import RunStore, fingerprint
from meta_tasks.progress import progress

POINTS = 200  # of a regret curve that are kept
#: The wheel's radii δ by the problem's name.
WHEELS = {f"wheel_{delta}": delta for delta in (0.5, 0.7, 0.9, 0.95, 0.99)}
#: For each kind of problem by what rewards are divided before the network sees them, and the standard deviation of the
#: noise that the likelihood assumes, in units of the reward. The wheel's own, 0.01, is too small to learn from.
SCALES = {"mushroom": (10.0, 1.0), "wheel": (50.0, 5.0)}


@dataclass(frozen=True)
class BanditOptions(DataOptions, RunOptions):
    """Thompson sampling on contextual bandits, with posteriors by f-SVGD, bootstrap and SGHMC.

    Raises:
        ValueError: an argument out of range, by name and value.
    """

    # Problems to play.
    problem: tuple[Annotated[str, one_of(("mushroom", *WHEELS))], ...] = ("mushroom", *WHEELS)
    # Posteriors for Thompson sampling, in any letter case.
    method: tuple[Annotated[str, one_of(METHODS)], ...] = tuple(METHODS)
    # Rounds, networks and training.
    budget: Annotated[Budget, tyro.conf.OmitArgPrefixes] = field(default_factory=Budget)
    # Folder of the runs, the table, the results and the figure.
    out: Path = Path("runs/bandits")

    def __post_init__(self) -> None:
        super().__post_init__()
        each_once(self, "problem", "method")


def play(
    bandit: Bandit, make: Callable[..., Posterior], budget: Budget, scale: float, noise: float, seed: int
) -> Tensor:
    """The arms that Thompson sampling chooses, (n,).

    Args:
        bandit: its rounds.
        make: the posterior, one of `METHODS`.
        budget: of training.
        scale, noise: see `SCALES`.
        seed: of the networks, the minibatches and the choices.
    """
    rounds, arms = bandit.expected.shape
    generator = torch.Generator().manual_seed(seed)
    posterior = make(bandit.contexts, arms, noise / scale, budget, generator)
    history = History(bandit.contexts)
    chosen = torch.zeros(rounds, dtype=torch.long)
    first = min(INITIAL_PULLS * arms, rounds)
    # Between two updates the posterior does not change, so that these rounds are played at once.
    for start, end in pairwise([0, *range(first, rounds, budget.interval), rounds]):
        now = torch.arange(end) % arms if start == 0 else posterior.choose(bandit.contexts[start:end])
        chosen[start:end] = now
        history.add(now, bandit.rewards[start:end].gather(1, now[:, None])[:, 0] / scale)
        posterior.update(history)
    return chosen


class Runs:
    """Every method on every problem."""

    def __init__(self, options: BanditOptions):
        self.options = options
        self.stores = {problem: RunStore(options.out, fresh=options.fresh) for problem in options.problem}
        self.mushrooms: tuple[Tensor, Tensor] | None = None
        if "mushroom" in options.problem:
            self.mushrooms = read_mushrooms(options.data)
            self.stores["mushroom"].data = fingerprint(self.mushrooms)

    def bandit(self, problem: str, seed: int) -> Bandit:
        """The rounds of a problem."""
        generator = torch.Generator().manual_seed(seed)
        rounds = self.options.budget.contexts
        if problem == "mushroom":
            assert self.mushrooms is not None
            return mushroom(*self.mushrooms, rounds, generator)
        return wheel(WHEELS[problem], rounds, generator)

    def run(self, problem: str, method: str, seed: int) -> dict[str, Any]:
        """``relative_regret`` in percent after ``rounds``, ``arms``: how often each was taken, and ``seconds``."""
        budget, (scale, noise) = self.options.budget, SCALES[problem.partition("_")[0]]

        def make() -> dict[str, Any]:
            bandit, start = self.bandit(problem, seed), time.perf_counter()
            # Another stream than that of the rounds.
            arms = play(bandit, METHODS[method].build, budget, scale, noise, seed + 10_000)
            seconds, curve = time.perf_counter() - start, bandit.relative_regret(arms)
            rounds = torch.linspace(1, len(curve), min(POINTS, len(curve))).round().long()
            counts = arms.bincount(minlength=bandit.expected.shape[1]).tolist()
            regret = curve[rounds - 1].tolist()
            return {"rounds": rounds.tolist(), "relative_regret": regret, "arms": counts, "seconds": seconds}

        settings = {"problem": problem, "method": method, "seed": seed, "scale": scale, "noise": noise}
        settings |= asdict(budget)
        return self.stores[problem].run(f"{problem}_{method}_seed{seed}", settings, make)

    def all(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Problem → method → its runs, one a seed."""
        options = self.options
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {p: {m: [] for m in options.method} for p in options.problem}
        with progress(total=len(options.problem) * len(options.method) * options.seeds, unit="run") as bar:
            for seed in options.seed_list():
                for problem in options.problem:
                    for method in options.method:
                        bar.set_description(f"{problem}, {method}, seed {seed}")
                        runs[problem][method].append(self.run(problem, method, seed))
                        bar.update()
        return runs
